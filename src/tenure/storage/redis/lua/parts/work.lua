-- requires: cell, step, bytes, index, record, journal, shelf, parking, forgetting
-- Runs the work of a script that may move jobs of all kinds.
local Work = {}

-- A part that was not used has nothing to write.
local function flush(part)
  if is_made(part) then
    part.flush()
  end
end

-- The jobs with unreadable records that this script has repaired: {ref, task, the unreadable parts} of each.
local repaired = {}

-- Store the jobs with unreadable records as they were salvaged, and record events for that.
local function set_aside()
  local unreadable = is_made(Record) and Record.unreadable or {}
  while #unreadable > 0 do
    local one = table.remove(unreadable, 1)
    local job, what, failed = unpack(one)
    if Record.at(job.ref) == job then
      Record.keep(job)
    end
    Journal.record_of(job, 'repaired', {
      found = 'unreadable: ' .. what,
      mended = (failed or not TERMINAL[job.state]) and 'set aside' or 'emptied',
    })
    repaired[#repaired + 1] = { job.ref, job.task, what }
    if failed then
      Journal.record_of(job, 'failed', {
        attempt = job.failures + 1,
        reason = 'undecodable',
        error = cjson.decode(job.error),
      })
    end
  end
end

-- Write all deferred changes.
function Work.write_down()
  set_aside()
  flush(Record)
  flush(Bytes)
  flush(Index)
  if is_made(Forgetting) then
    Forgetting.at_once()
  end
end

-- Return an answer of the script, together with the repaired jobs if there are any, so that the caller logs them.
function Work.answer(answer)
  return #repaired == 0 and answer or { '\0repaired', repaired, answer or false }
end

function Work.carry_out(work)
  local answer, rest = Step.carry_out(work, Work.write_down)
  return Work.answer(answer), rest
end

-- Unpark jobs if keys were freed. Only Shelf moves jobs that hold keys, so without it there are no freed keys.
function Work.let_in()
  if is_made(Shelf) then
    Parking.let_in()
  end
end
