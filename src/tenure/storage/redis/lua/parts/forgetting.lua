-- requires: cell, form, folding, settings
-- How jobs that are over are forgotten as a set: all keys of many jobs by one command, and of each index all entries. The
-- sweep does so, and each script that completes jobs of a queue that keeps too many (Keep.most in core/retention.py).
local Forgetting = {}

-- What it takes to forget one job, in microseconds.
Forgetting.PRICE = 8

-- How many are forgotten at once by a script that adds to too many, in all queues together, and what these may count for;
-- and what it pays for that: less than the price, as its purse leaves room for it.
local TOGETHER, MOST = 200, 400
Forgetting.IN_STEP = 300

-- What it takes to forget what counts for one, in microseconds.
Forgetting.COUNTED = 4

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

-- How many completed jobs a queue has too many, and how many are forgotten at once then (Keep.forgotten_at_once in
-- core/retention.py); `quiet`: nothing is set for any queue or task.
function Forgetting.surplus(queue, quiet)
  local count = (quiet and KEPT.completed or Forgetting.keep(queue, 'completed')).count
  if not count then
    return -math.huge, 0
  end
  local slack = max(floor(count / 10), 100)
  return call('ZCARD', key('over', pair(queue, 'completed'))) - count - slack, min(floor(slack / 2) + 1, TOGETHER)
end

-- Note that jobs of a queue are completed: as many are forgotten when the script ends, if there are too many.
function Forgetting.note(queue, jobs)
  completed[queue] = (completed[queue] or 0) + jobs
end

local STATES = { completed = Form.COMPLETED, failed = 5, cancelled = 6, expired = 7 }
local FORM, STARTS_AT = Form.NUMBER, Form.HEAD_SIZE + 1

-- The kinds of keys that lie beside the record of a plain job that ran, by its marks. Such a job has no log and no calls.
local BESIDE = {}
for marks = Form.PLAIN + Form.RAN, 255, 2 do
  if bit.band(marks, Form.RAN) > 0 then
    BESIDE[marks] = {}
    for kind, mark in pairs({ load = Form.APART, result = Form.RESULT_APART }) do
      if bit.band(marks, mark) > 0 then
        table.insert(BESIDE[marks], kind)
      end
    end
  end
end

-- Put into `words` the keys of what lies beside a record, and its own; return false for a job that may have taken in other
-- calls, or does not look as it should: it is forgotten by itself.
local function put_keys(words, ref, body, state)
  local readable, job = pcall(Folding.unfold, body or '')
  if not readable or string.byte(body, 2) ~= state or job.merge and job.merge.type ~= 'unique' then
    return false
  end
  for _, kind in ipairs({ 'job', 'load', 'result', 'runs', 'log' }) do
    words[#words + 1] = key(kind, ref)
  end
  return true
end

-- What a job counts for that is not plain: its record is read, and all keys are removed that may lie beside it.
local NOT_PLAIN = 6

-- Forget at most 500 jobs, and no more than count for `most`: a plain job counts for one, and for one more with each key
-- beside its record. As a rule all are alike, and the lists are used as they are. Return how many, which are left, and what they
-- count for.
local function forget_some(queue, state, ids, first, most)
  local names, beginning, stands = {}, key('job', pair(queue, '')), STATES[state]
  for number = 1, #ids do
    names[number] = beginning .. ids[number]
  end
  local words, gone, left, counted = nil, nil, {}, 0
  for number, body in ipairs(call('MGET', unpack(names))) do
    local form, stood, marks = string.byte(body or '', 1, 3)
    local beside = form == FORM and stood == stands and BESIDE[marks]
    if beside then
      local starts, more = string.byte(body, STARTS_AT, STARTS_AT + 1)
      -- Or it may have runs before the last.
      beside = starts <= 1 and more == 0 and beside
    end
    if not words and not (beside and #beside == 0) then
      words, gone = { unpack(names, 1, number - 1) }, { unpack(ids, 1, number - 1) }
    end
    local counts = beside and 1 + #beside or NOT_PLAIN
    if counted + counts > most and number > 1 then
      words, gone = words or { unpack(names, 1, number - 1) }, gone or { unpack(ids, 1, number - 1) }
      break
    end
    counted = counted + counts
    if words then
      local id = ids[number]
      if beside then
        words[#words + 1] = names[number]
        for _, kind in ipairs(beside) do
          words[#words + 1] = key(kind, pair(queue, id))
        end
        gone[#gone + 1] = id
      elseif put_keys(words, pair(queue, id), body, stands) then
        gone[#gone + 1] = id
      else
        left[#left + 1] = id
      end
    end
  end
  words, gone = words or names, gone or ids
  for from = 1, #words, 1000 do
    call('UNLINK', unpack(words, from, min(from + 999, #words)))
  end
  local over = key('over', pair(queue, state))
  if first and #left == 0 then
    -- Nothing has to be found.
    call('ZREMRANGEBYRANK', over, 0, #gone - 1)
  elseif #gone > 0 then
    call('ZREM', over, unpack(gone))
  end
  if #gone > 0 then
    call('ZREM', key('in', pair(queue, state)), unpack(gone))
  end
  return #gone, left, counted
end

-- Forget jobs of a queue that came to an end, by their ids: the first of them, up to what counts for `most`. Return how many
-- those are, the ids of those that are each to be forgotten by itself, and what they count for. `first`: they are the longest
-- ended ones. This script may not have loaded any of them.
function Forgetting.forget(queue, state, ids, first, most)
  if #ids <= 500 then
    return forget_some(queue, state, ids, first, most)
  end
  local forgotten, left, counted = 0, {}, 0
  for from = 1, #ids, 500 do
    local some = { unpack(ids, from, min(from + 499, #ids)) }
    local gone, others, counts = forget_some(queue, state, some, false, most - counted)
    forgotten, counted = forgotten + gone, counted + counts
    for _, id in ipairs(others) do
      left[#left + 1] = id
    end
    if gone + #others < #some then
      break
    end
  end
  return forgotten, left, counted
end

-- How many more jobs this script may forget in step with completions, in all queues together: many queues may pass their
-- limits at the same time. A queue that is left over has its turn with the next script that completes one of its jobs.
local room, most = TOGETHER, MOST

-- Forget the longest completed jobs of each queue that keeps too many and that this script has added to. What is to be forgotten
-- by itself is left to the sweeps; and all where the clock was set back, for then the longest completed jobs do not come
-- first.
function Forgetting.at_once()
  for queue, jobs in pairs(completed) do
    completed[queue] = nil
    local surplus, batch = 0, 0
    if room > 0 and most > 0 then
      surplus, batch = Forgetting.surplus(queue)
    end
    local over = key('over', pair(queue, 'completed'))
    if surplus > 0 and call('ZCOUNT', over, beyond(NOW), '+inf') == 0 then
      local ids = first_of(over, min(room, max(batch, min(surplus, jobs + floor(jobs / 4) + 1))))
      room = room - #ids
      local _, _, counted = Forgetting.forget(queue, 'completed', ids, true, most)
      most = most - counted
    end
  end
end
