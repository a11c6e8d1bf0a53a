-- requires: prelude, record_format, record_codec, settings, faults
-- Deletes many finished jobs at once: the keys of all with one command, and their entries of each index with one
-- command. The sweep does so, and each script that completes jobs of a queue that keeps too many (KeepRule.most in
-- core/retention.py).
local Deletion = {}

-- The time to delete one job, in microseconds.
Deletion.COST = 8

-- For a script that completes jobs: the maximum number of jobs that it deletes in all queues together; the maximum that
-- these count for; and what it pays for that. It pays less than the price, because its time budget has room for that.
local JOBS_PER_SCRIPT, KEYS_PER_SCRIPT = TRIM_BATCH, 400
Deletion.STEP_COST = 300

-- The time to delete what counts for one, in microseconds.
Deletion.KEY_COST = 4

-- The default rules of core/retention.py, by outcome.
-- constants: RETENTION

-- For each queue, how many completed jobs this script has added to those that the queue's retention keeps.
local completed = {}

-- A queue's retention for a terminal state: `age`, and the maximum `count`.
function Deletion.retention(queue, state)
  local retention = Settings.get('queue', queue).retention
  return retention and retention[state] or RETENTION[state]
end

-- By how many completed jobs a queue exceeds its limit, and how many are then deleted at once
-- (KeepRule.forgotten_at_once in core/retention.py). `quiet`: no queue or task has settings.
function Deletion.surplus(queue, quiet)
  local count = (quiet and RETENTION.completed or Deletion.retention(queue, 'completed')).count
  if not count then
    return -math.huge, 0
  end
  local slack = max(floor(count / 10), 100)
  local kept = call('ZCARD', key('over', pair(queue, 'completed')))
  return kept - count - slack, min(floor(slack / 2) + 1, JOBS_PER_SCRIPT)
end

-- Note that jobs of a queue are completed: if there are too many, as many are deleted when the script ends.
function Deletion.note_completed(queue, jobs)
  completed[queue] = (completed[queue] or 0) + jobs
end

local STATES = { completed = RecordFormat.COMPLETED, failed = 5, cancelled = 6, expired = 7 }
local FORM, STARTS_AT = RecordFormat.NUMBER, RecordFormat.HEAD_SIZE + 1

-- By its marks, the kinds of further keys that a plain job has after its run. Such a job has no log and no merged
-- calls.
local EXTRA_KEYS = {}
for marks = RecordFormat.PLAIN + RecordFormat.RAN, 255, 2 do
  if bit.band(marks, RecordFormat.RAN) > 0 then
    EXTRA_KEYS[marks] = {}
    for kind, mark in pairs({ load = RecordFormat.PAYLOAD_APART, result = RecordFormat.RESULT_APART }) do
      if bit.band(marks, mark) > 0 then
        table.insert(EXTRA_KEYS[marks], kind)
      end
    end
  end
end

-- Append to `words` all keys that a job may have, and return the job. Return nil for a job that may have merged calls, or
-- whose record is unexpected: it must be deleted by itself.
local function put_keys(words, ref, body, state)
  local readable, job = pcall(RecordCodec.decode, body or '')
  if not readable or string.byte(body, 2) ~= state or job.merge and job.merge.type ~= 'unique' then
    return nil
  end
  for _, kind in ipairs({ 'job', 'load', 'result', 'runs', 'log', 'data' }) do
    words[#words + 1] = key(kind, ref)
  end
  return job
end

-- What a job counts for that is not plain: its record is decoded, and all keys that it may have are deleted.
local NOT_PLAIN = 6

-- Delete at most 500 jobs, and no more than count for `most`: a plain job counts for one, plus one for each further
-- key. Usually all jobs are alike, and the lists are used as they are. Return how many were deleted, which ones are
-- left to be deleted by themselves, and what the deleted ones count for.
local function delete_some(queue, state, ids, first, most)
  local names, beginning, stands = {}, key('job', pair(queue, '')), STATES[state]
  for number = 1, #ids do
    names[number] = beginning .. ids[number]
  end
  local words, gone, left, counted, by_fault = nil, nil, {}, 0, {}
  for number, body in ipairs(call('MGET', unpack(names))) do
    local form, stood, marks = string.byte(body or '', 1, 3)
    local extra = form == FORM and stood == stands and EXTRA_KEYS[marks]
    if extra then
      local starts, more = string.byte(body, STARTS_AT, STARTS_AT + 1)
      -- With more starts, it may have earlier runs.
      extra = starts <= 1 and more == 0 and extra
    end
    if not words and not (extra and #extra == 0) then
      words, gone = { unpack(names, 1, number - 1) }, { unpack(ids, 1, number - 1) }
    end
    local counts = extra and 1 + #extra or NOT_PLAIN
    if counted + counts > most and number > 1 then
      words, gone = words or { unpack(names, 1, number - 1) }, gone or { unpack(ids, 1, number - 1) }
      break
    end
    counted = counted + counts
    if words then
      local id = ids[number]
      if extra then
        words[#words + 1] = names[number]
        for _, kind in ipairs(extra) do
          words[#words + 1] = key(kind, pair(queue, id))
        end
        gone[#gone + 1] = id
      else
        local job = put_keys(words, pair(queue, id), body, stands)
        local list = job and gone or left
        list[#list + 1] = id
        if job and job.fault then
          by_fault[job.fault] = by_fault[job.fault] or {}
          table.insert(by_fault[job.fault], id)
        end
      end
    end
  end
  words, gone = words or names, gone or ids
  for from = 1, #words, 1000 do
    call('UNLINK', unpack(words, from, min(from + 999, #words)))
  end
  local over = key('over', pair(queue, state))
  if first and #left == 0 then
    -- By rank, which is faster than by member.
    call('ZREMRANGEBYRANK', over, 0, #gone - 1)
  elseif #gone > 0 then
    call('ZREM', over, unpack(gone))
  end
  if #gone > 0 then
    call('ZREM', key('in', pair(queue, state)), unpack(gone))
  end
  for fault, failed in pairs(by_fault) do
    Faults.remove(queue, fault, failed)
  end
  return #gone, left, counted
end

-- Delete finished jobs of a queue, by their ids: the first of them, up to what counts for `most`. Return how many were
-- deleted, the ids of those that must each be deleted by itself, and what the deleted ones count for. `first`: these
-- are the ones that ended first. This script must not have loaded any of them.
function Deletion.delete(queue, state, ids, first, most)
  if #ids <= 500 then
    return delete_some(queue, state, ids, first, most)
  end
  local deleted, left, counted = 0, {}, 0
  for from = 1, #ids, 500 do
    local some = { unpack(ids, from, min(from + 499, #ids)) }
    local gone, others, counts = delete_some(queue, state, some, false, most - counted)
    deleted, counted = deleted + gone, counted + counts
    for _, id in ipairs(others) do
      left[#left + 1] = id
    end
    if gone + #others < #some then
      break
    end
  end
  return deleted, left, counted
end

-- How many more jobs this script may delete after completions, in all queues together: many queues may pass their
-- limits at the same time. A queue that is left over follows with the next script that completes one of its jobs.
local room, most = JOBS_PER_SCRIPT, KEYS_PER_SCRIPT

-- Delete the oldest completed jobs of each queue that keeps too many and to which this script has added. Sweeps delete
-- the jobs that must be deleted by themselves; and all, if the clock was set back, because the oldest are then not the
-- first.
function Deletion.delete_surplus()
  for queue, jobs in pairs(completed) do
    completed[queue] = nil
    local surplus, batch = 0, 0
    if room > 0 and most > 0 then
      surplus, batch = Deletion.surplus(queue)
    end
    local over = key('over', pair(queue, 'completed'))
    if surplus > 0 and call('ZCOUNT', over, beyond(NOW), '+inf') == 0 then
      local ids = first_of(over, min(room, max(batch, min(surplus, jobs + floor(jobs / 4) + 1))))
      room = room - #ids
      local _, _, counted = Deletion.delete(queue, 'completed', ids, true, most)
      most = most - counted
    end
  end
end
