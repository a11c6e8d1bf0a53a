#!lua flags=allow-oom
-- requires: parking
-- tune: lay settings over those in force, and heed them at once.
--
-- Request: {kind, name, settings[, by]}, the settings by the names of Settings' fields, those not told left out.
-- Answer: the settings in force, as msgpack.
local kind, name, told = ASKED.kind, ASKED.name, ASKED.settings

-- What is told laid over what is in force, whole or field by field.
local function over(known, fresh)
  local after = {}
  for field, value in pairs(known or {}) do
    after[field] = value
  end
  for field, value in pairs(fresh) do
    after[field] = value
  end
  return after
end

local function same(one, other)
  if type(one) ~= 'table' or type(other) ~= 'table' then
    return one == other
  end
  for field, value in pairs(one) do
    if not same(value, other[field]) then
      return false
    end
  end
  for field in pairs(other) do
    if one[field] == nil then
      return false
    end
  end
  return true
end

-- The queues of the cell: so many as one call may look at. Whoever is parked in the others is let in by those who sweep:
-- they look at all the places there are, some in each sweep.
local function queues(limit)
  return first_of(key('queues'), limit)
end

-- Go by the new pace of a queue's rate.
local function retune(queue, rate)
  if call('ZSCORE', key('taken'), pair(queue, rate[1])) then
    Rates.keep(queue, rate, Rates.retuned(Rates.taken(queue, rate), rate))
  end
end

-- What jobs of a queue are parked under by the rates that are a task's own: `task:<task>`, `task/<interval>:<task>`.
local function parked_by_rate(queue, task)
  local found = {}
  for _, ends in ipairs({ { 'task:' .. task, 'task:' .. task .. '\1' }, { 'task/', 'task0' } }) do
    local from, to = pair(queue, RATE .. ends[1]), pair(queue, RATE .. ends[2])
    for _, place in ipairs(call('ZRANGEBYLEX', key('places'), '[' .. from, '(' .. to, 'LIMIT', 0, LOOK_LIMIT)) do
      local _, parked_under = parts_of(place)
      if Rates.is_of_task(string.sub(parked_under, #RATE + 1), task) then
        found[#found + 1] = parked_under
      end
    end
  end
  return found
end

-- Go by the new pace of a task's rate, and look anew at who waits for any that is its own: here, as far as one call may
-- let in; beyond that with the next claim.
local function retune_task(task, rate)
  for _, queue in ipairs(queues(PASSED_LIMIT)) do
    retune(queue, rate)
    Journal.knock_queue(queue)
  end
  local left = PROMOTE_LIMIT
  for _, queue in ipairs(queues(LOOK_LIMIT)) do
    for _, parked_under in ipairs(parked_by_rate(queue, task)) do
      if left > 0 then
        left = left - Parking.open_anew(queue, parked_under, left)
      else
        call('ZADD', key('opening', queue), 0, parked_under)
      end
    end
  end
end

-- Let in whom a task's pause has kept: here, as far as one call may let in; beyond that with the next sweeps.
local function go_on(task)
  local left, parked_under = PROMOTE_LIMIT, PAUSED .. task
  for _, queue in ipairs(queues(LOOK_LIMIT)) do
    left = left - Parking.unpark(queue, parked_under, left)
    if call('EXISTS', key('parked', pair(queue, parked_under))) == 1 then
      call('ZADD', key('resumed'), 0, pair(queue, parked_under))
    end
  end
end

local before = Settings.of(kind, name)
local after = over(before, told)
for _, deeper in ipairs({ 'stall', 'retention' }) do
  if told[deeper] then
    after[deeper] = over(before[deeper], told[deeper])
  end
end
if not same(before, after) then
  Settings.put(kind, name, after)
  if kind == 'queue' and (before.paused or false) ~= (after.paused or false) then
    Journal.record(after.paused and 'queue_paused' or 'queue_resumed', { queue = name, by = ASKED.by })
    Journal.knock_queue(name)
  end
  if kind == 'task' and before.paused and not after.paused then
    go_on(name)
  end
  if after.rate and not same(before.rate, after.rate) then
    if kind == 'task' then
      retune_task(name, Rates.told(after.rate))
    else
      retune(name, Rates.told(after.rate))
      Journal.knock_queue(name)
    end
  end
  Record.flush()
  Journal.flush()
end
return cmsgpack.pack(after)
