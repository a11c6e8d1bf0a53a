-- requires: cell
-- What is asked for each new job: which number it gets, and whether that is known to be the latest of all.
--
-- counters  HASH  made: how many numbers were given to jobs; at: when the latest job was made; workers: how many there were
local Making = {}

local COUNTERS = key('counters')

local answering = {}

-- Whether any job of a queue answers for calls beside its own.
function Making.anybody_answers_in(queue)
  if answering[queue] == nil then
    answering[queue] = call('EXISTS', key('answers', queue)) == 1
  end
  return answering[queue]
end

-- Note that one does from now on.
function Making.note_answers_in(queue)
  answering[queue] = true
end

local made, reserved, back = nil, 0, nil

local function read()
  local got = call('HMGET', COUNTERS, 'made', 'at')
  local latest = tonumber(got[2] or '')
  made, back = tonumber(got[1] or '') or 0, latest ~= nil and latest > NOW
end

-- A new number for a job: later ones have higher ones. They are taken by the dozen; some stay unused.
function Making.next_made()
  if not made then
    read()
  end
  if reserved == 0 then
    reserved = max(1, min(ASKED.jobs or #ASKED, 100))
    if back then
      call('HSET', COUNTERS, 'made', made + reserved)
    else
      call('HSET', COUNTERS, 'made', made + reserved, 'at', NOW)
    end
  end
  made, reserved = made + 1, reserved - 1
  return made
end

-- Whether a job was made later than now, before the clock was set back: who is made now does not wait for less than it.
function Making.is_back()
  if not made then
    read()
  end
  return back or nil
end
