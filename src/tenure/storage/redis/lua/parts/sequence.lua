-- requires: prelude
-- The sequence numbers of new jobs, and whether a new job is the latest by the clock, too.
--
-- counters  HASH  made: how many numbers were given to jobs; at: when the latest job was made; workers: the number of
--                 the latest worker
local Sequence = {}

local COUNTERS = key('counters')

local answering = {}

-- Return true if any job of a queue answers for calls in addition to its own.
function Sequence.has_merged_calls(queue)
  if answering[queue] == nil then
    answering[queue] = call('EXISTS', key('answers', queue)) == 1
  end
  return answering[queue]
end

-- Note that a job of a queue does so from now on.
function Sequence.note_merged_call(queue)
  answering[queue] = true
end

local made, reserved, back = nil, 0, nil

local function read()
  local got = call('HMGET', COUNTERS, 'made', 'at')
  local latest = tonumber(got[2] or '')
  made, back = tonumber(got[1] or '') or 0, latest ~= nil and latest > NOW
end

-- Return a new sequence number: later jobs have higher ones. Numbers are reserved in batches, so some stay unused.
function Sequence.next()
  if not made then
    read()
  end
  if reserved == 0 then
    reserved = max(1, min(REQUEST.jobs or #REQUEST, 100))
    if back then
      call('HSET', COUNTERS, 'made', made + reserved)
    else
      call('HSET', COUNTERS, 'made', made + reserved, 'at', NOW)
    end
  end
  made, reserved = made + 1, reserved - 1
  return made
end

-- Return true if a job was made later than now, because the clock was set back since. Then sequence numbers do not show
-- which job has waited longest.
function Sequence.clock_is_back()
  if not made then
    read()
  end
  return back or nil
end
