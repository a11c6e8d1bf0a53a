-- requires: cell, form, folding, settings, bytes
-- How jobs that are over are forgotten as a set: all keys of many jobs by one command, and of each index all entries. The
-- sweep does so, and each script that completes jobs of a queue that keeps too many (Keep.most in core/retention.py).
local Forgetting = {}

-- What it takes to forget one job, in microseconds.
Forgetting.PRICE = 8

local HOUR = 3600000000
local KEPT = {
  cancelled = { age = 7 * 24 * HOUR },
  completed = { age = HOUR, count = 10000 },
  expired = { age = 7 * 24 * HOUR },
  failed = { age = 30 * 24 * HOUR },
}

-- How many completed jobs of each queue this script has added to those that are kept by the queue's terms.
local completed = {}

-- For how long a queue keeps its jobs of one end, and the newest how many of them.
function Forgetting.keep(queue, state)
  local told = Settings.of('queue', queue).retention
  return told and told[state] or KEPT[state]
end

-- How many completed jobs a queue has too many; `quiet`: nothing is set for any queue or task.
function Forgetting.surplus(queue, quiet)
  local count = (quiet and KEPT.completed or Forgetting.keep(queue, 'completed')).count
  return count and call('ZCARD', key('over', pair(queue, 'completed'))) - count - max(floor(count / 10), 100) or 0
end

-- Note that jobs of a queue are completed: as many are forgotten when the script ends, if there are too many.
function Forgetting.note(queue, jobs)
  completed[queue] = (completed[queue] or 0) + jobs
end

-- Whether a job may have taken in other calls, or does not look as it should: then it is forgotten by itself.
local function stands_alone(body, state)
  if not body or #body < Form.HEAD_SIZE then
    return false
  end
  local form, stands, marks = string.byte(body, 1, 3)
  if form ~= Form.NUMBER or stands ~= state then
    return false
  elseif bit.band(marks, Form.PLAIN) ~= 0 then
    return true
  end
  local readable, fields = pcall(Folding.unfold, body)
  return readable and (not fields.merge or fields.merge.type == 'unique')
end

local STATES = { completed = Form.COMPLETED, failed = 5, cancelled = 6, expired = 7 }

-- Forget jobs of a queue that came to an end, by their ids; return how many those are, and the ids of those that are left, as
-- each is to be forgotten by itself. `first`: they are the longest ended ones.
function Forgetting.forget(queue, state, ids, first)
  local refs, left, gone, words, beginning = {}, {}, {}, {}, pair(queue, '')
  for number = 1, #ids do
    refs[number] = beginning .. ids[number]
  end
  -- Or what was moved by this script would be written again after that.
  Bytes.flush()
  Bytes.fetch(refs)
  for number = 1, #ids do
    local id, ref = ids[number], refs[number]
    local body = Bytes.of(ref)
    if stands_alone(body, STATES[state]) then
      local marks, at = string.byte(body, 3), #words
      words[at + 1], words[at + 2] = Bytes.forget(ref), key('log', ref)
      if bit.band(marks, Form.APART) ~= 0 then
        words[#words + 1] = key('load', ref)
      end
      if bit.band(marks, Form.RESULT_APART) ~= 0 then
        words[#words + 1] = key('result', ref)
      end
      if bit.band(marks, Form.RAN) ~= 0 and struct.unpack('<I4', body, Form.HEAD_SIZE + 1) > 1 then
        words[#words + 1] = key('runs', ref)
      end
      gone[#gone + 1] = id
    else
      left[#left + 1] = id
    end
  end
  for from = 1, #words, 1000 do
    call('UNLINK', unpack(words, from, min(from + 999, #words)))
  end
  for from = 1, #gone, 1000 do
    local to = min(from + 999, #gone)
    if not first or #left > 0 then
      call('ZREM', key('over', pair(queue, state)), unpack(gone, from, to))
    end
    call('ZREM', key('in', pair(queue, state)), unpack(gone, from, to))
  end
  if first and #left == 0 then
    -- By rank: nothing has to be found.
    call('ZREMRANGEBYRANK', key('over', pair(queue, state)), 0, #gone - 1)
  end
  return #gone, left
end

-- Forget as many of the longest completed jobs as this script has completed, and a quarter more, where a queue keeps too
-- many. What is to be forgotten by itself is left to the sweeps; and all where the clock was set back, for then the longest
-- completed jobs do not come first.
function Forgetting.at_once()
  for queue, jobs in pairs(completed) do
    completed[queue] = nil
    local limit = min(Forgetting.surplus(queue), jobs + floor(jobs / 4) + 1)
    local over = key('over', pair(queue, 'completed'))
    if limit > 0 and call('ZCOUNT', over, beyond(NOW), '+inf') == 0 then
      Forgetting.forget(queue, 'completed', first_of(over, limit), true)
    end
  end
end
