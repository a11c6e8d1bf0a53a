-- requires: prelude, transaction, record_bytes, index_writes, record, event_log, job_indexes, parking, deletion
-- requires: figures
-- Runs the work of a script that may move jobs of all kinds.
local Changes = {}

-- A part that was not used has nothing to write.
local function flush(part)
  if is_made(part) then
    part.flush()
  end
end

-- The jobs with unreadable records that this script has repaired: {ref, task, the unreadable parts} of each.
local repaired = {}

-- Store the jobs with unreadable records as they were salvaged, and record events for that.
local function store_salvaged()
  local unreadable = is_made(Record) and Record.unreadable or {}
  while #unreadable > 0 do
    local entry = table.remove(unreadable, 1)
    local job, what, failed = unpack(entry)
    if Record.get(job.ref) == job then
      Record.mark_changed(job)
    end
    EventLog.record_job_event(job, 'repaired', {
      found = 'unreadable: ' .. what,
      repair = (failed or not TERMINAL[job.state]) and 'set aside' or 'emptied',
    })
    repaired[#repaired + 1] = { job.ref, job.task, what }
    if failed then
      EventLog.record_job_event(job, 'failed', {
        attempt = job.failures + 1,
        reason = 'undecodable',
        error = cjson.decode(job.error),
      })
    end
  end
end

-- Write all deferred changes.
function Changes.write()
  store_salvaged()
  flush(Record)
  flush(RecordBytes)
  flush(IndexWrites)
  flush(Figures)
  if is_made(Deletion) then
    Deletion.delete_surplus()
  end
end

-- Return an answer of the script, together with the repaired jobs if there are any, so that the caller logs them.
function Changes.with_repairs(answer)
  return #repaired == 0 and answer or { '\0repaired', repaired, answer or false }
end

function Changes.run(work)
  local answer, rest = Transaction.run(work, Changes.write)
  return Changes.with_repairs(answer), rest
end

-- Unpark jobs if keys were freed. Only JobIndexes moves jobs that hold keys, so without it there are no freed keys.
function Changes.unpark()
  if is_made(JobIndexes) then
    Parking.unpark_freed()
  end
end
