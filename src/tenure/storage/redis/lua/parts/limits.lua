-- requires: prelude
-- Limits that handlers set with RateLimited: nothing of a rate, or of a whole queue, starts before an instant.
--
-- limited      ZSET  for each limit (queue, name of the rate; QUEUE_RATE: the whole queue), the instant
-- limited_for  HASH  for each limit, its length when it was set: one that lies further ahead was set before the clock
--                    was set back, and is over
local Limits = {}

local exist

-- Return true if there may be limits. A partition without any needs only this command.
function Limits.exist()
  if exist == nil then
    exist = call('EXISTS', key('limited')) == 1
  end
  return exist
end

local function bounded(till, length)
  till = tonumber(till or '') or 0
  return till > NOW + (tonumber(length or '') or 0) and NOW or till
end

-- The instant before which nothing of a rate or a queue starts; NOW or earlier if nothing is limited.
function Limits.end_of(queue, name)
  if not Limits.exist() then
    return 0
  end
  local place = pair(queue, name)
  local till = call('ZSCORE', key('limited'), place)
  return till and bounded(till, call('HGET', key('limited_for'), place)) or 0
end

-- The numbers of the queues that are limited as a whole, in their order.
function Limits.limited_queues(queues)
  local numbers = {}
  if not Limits.exist() then
    return numbers
  end
  for from = 1, #queues, 1000 do
    local places = {}
    for number = from, min(from + 999, #queues) do
      places[#places + 1] = pair(queues[number], QUEUE_RATE)
    end
    for at, till in ipairs(call('ZMSCORE', key('limited'), unpack(places))) do
      if till then
        numbers[#numbers + 1] = from + at - 1
      end
    end
  end
  return numbers
end

-- Let nothing start for a time; return the instant, or nil if the present limit lasts longer.
function Limits.set(queue, name, length)
  local till, place = NOW + length, pair(queue, name)
  if Limits.end_of(queue, name) >= till then
    return nil
  end
  call('ZADD', key('limited'), till, place)
  call('HSET', key('limited_for'), place, length)
  call('ZADD', key('opening', queue), 'XX', 'GT', till, RATE .. name)
  exist = true
  return till
end

-- The limits in force, the earliest to end first, at most `most`: a flat list of queue and name, and instant.
function Limits.all(most)
  local found = {}
  local some = Limits.exist() and call('ZRANGEBYSCORE', key('limited'), beyond(NOW), '+inf', 'LIMIT', 0, most) or {}
  for from = 1, #some, 1000 do
    local to = min(from + 999, #some)
    local lengths = call('HMGET', key('limited_for'), unpack(some, from, to))
    local instants = call('ZMSCORE', key('limited'), unpack(some, from, to))
    for at, length in ipairs(lengths) do
      local till = bounded(instants[at], length)
      if till > NOW then
        found[#found + 1], found[#found + 2] = some[from + at - 1], till
      end
    end
  end
  return found
end

-- End the limit of this name in a queue, or with '*' all of its limits up to LOOK_LIMIT; return the sorted names of
-- those that were in force. The next claim looks at the jobs that they have held back.
function Limits.lift(queue, name)
  local names = {}
  if name == '*' then
    local all = Limits.all(PASSED_LIMIT)
    for at = 1, #all, 2 do
      local of, limit = parts_of(all[at])
      if of == queue then
        names[#names + 1] = limit
      end
    end
    table.sort(names)
  elseif Limits.end_of(queue, name) > NOW then
    names[1] = name
  end
  local lifted = {}
  for number = 1, min(#names, LOOK_LIMIT) do
    local place = pair(queue, names[number])
    call('ZREM', key('limited'), place)
    call('HDEL', key('limited_for'), place)
    call('ZADD', key('opening', queue), 'XX', 0, RATE .. names[number])
    lifted[number] = names[number]
  end
  return lifted
end
