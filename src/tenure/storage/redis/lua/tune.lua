#!lua flags=allow-oom
-- requires: parking, limits, changes
-- tune: merge settings into those in force, and apply them at once.
--
-- Request: {kind, name, settings[, by, lift, expected]}. `lift`: the name of a limit of the queue to end, '*' for all.
-- `settings` has the fields of Settings; those that do not change are left out. `expected`: the settings that the caller
-- has read; if a field of `settings` has another value now, nothing changes.
-- Answer: the settings in force, as msgpack.
local kind, name, changes = REQUEST.kind, REQUEST.name, REQUEST.settings

-- Return the fields of `before`, with those of `changes` replaced or added.
local function merged(before, changes)
  local after = {}
  for field, value in pairs(before or {}) do
    after[field] = value
  end
  for field, value in pairs(changes) do
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

-- Maximum number of queues that one call visits. Sweeps release the jobs that are parked in the others: each sweep
-- visits some of the places.
local QUEUES = 150

-- Maximum number of rates per call whose reserved time reaches further ahead than the new pace allows.
local RETUNED = 2000

-- Call `visit(queue)` for the queues that have parked jobs.
local function where_parked(visit)
  local from = '-'
  for _ = 1, QUEUES do
    local place = call('ZRANGEBYLEX', key('places'), from, '+', 'LIMIT', 0, 1)[1]
    if not place then
      return
    end
    local queue = parts_of(place)
    visit(queue)
    from = '(' .. queue .. '\1'
  end
end

-- Apply the new pace of a queue's rate.
local function retune(queue, rate)
  if call('ZSCORE', key('taken'), pair(queue, rate[1])) then
    Rates.keep(queue, rate, Rates.retuned(Rates.taken(queue, rate), rate))
  end
end

-- Apply the new pace of a rate in all queues, up to RETUNED of them. The others continue at the old pace until the time
-- that is already reserved has passed.
local function retune_all(rate)
  local reach = Rates.whole_reach(rate)
  local further = call('ZRANGEBYSCORE', key('taken'), beyond(NOW + reach), '+inf', 'LIMIT', 0, RETUNED)
  local till, reaches = {}, {}
  for _, place in ipairs(further) do
    local _, name = parts_of(place)
    if name == rate[1] then
      till[#till + 1], till[#till + 2] = NOW, place
      reaches[#reaches + 1], reaches[#reaches + 2] = place, reach
    end
  end
  for from = 1, #till, 1000 do
    call('ZADD', key('taken'), unpack(till, from, min(from + 999, #till)))
    call('HSET', key('reach'), unpack(reaches, from, min(from + 999, #reaches)))
  end
end

-- The names under which a task's own rates park jobs of a queue: `task:<task>`, `task/<interval>:<task>`.
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

-- Apply the new pace of a task's rate, and check the jobs that wait for it again: here up to this call's limit, the
-- rest with the next claim. Visiting a place counts like one released job.
local function retune_task(task, rate)
  retune_all(rate)
  local left = PROMOTE_LIMIT + 1
  where_parked(function(queue)
    for _, parked_under in ipairs(parked_by_rate(queue, task)) do
      if left > 0 then
        left = left - 1 - Parking.recheck_rate(queue, parked_under, left)
      else
        call('ZADD', key('opening', queue), 0, parked_under)
      end
      Notifications.notify_queue(queue)
    end
  end)
end

-- Release the jobs that a task's pause has parked: here up to this call's limit; sweeps release the rest.
local function resume(task)
  local left, parked_under = PROMOTE_LIMIT + 1, PAUSED .. task
  where_parked(function(queue)
    local place = pair(queue, parked_under)
    if call('EXISTS', key('parked', place)) == 1 then
      left = max(0, left - 1 - Parking.unpark(queue, parked_under, left))
      if call('EXISTS', key('parked', place)) == 1 then
        call('ZADD', key('resumed'), 0, place)
      end
    end
  end)
end

-- Return true if the fields that change have their expected values. No value is the same as false.
local function agrees(before, expected)
  for field in pairs(changes) do
    if not same(before[field] or false, expected[field] or false) then
      return false
    end
  end
  return true
end

return Changes.run(function()
  local before = Settings.get(kind, name)
  if REQUEST.expected and not agrees(before, REQUEST.expected) then
    return cmsgpack.pack(before)
  end
  if REQUEST.lift then
    local lifted = Limits.lift(name, REQUEST.lift)
    for _, limit in ipairs(lifted) do
      local rate = limit ~= QUEUE_RATE and limit or nil
      EventLog.record('queue_limited', { queue = name, rate = rate, by = REQUEST.by })
    end
    if #lifted > 0 then
      Notifications.notify_queue(name)
    end
  end
  local after = merged(before, changes)
  for _, group in ipairs({ 'stall', 'retention' }) do
    if changes[group] then
      after[group] = merged(before[group], changes[group])
    end
  end
  if not same(before, after) then
    Settings.put(kind, name, after)
    if kind == 'worker' then
      Notifications.notify('owner:' .. name)
    end
    if kind == 'queue' and (before.paused or false) ~= (after.paused or false) then
      EventLog.record(after.paused and 'queue_paused' or 'queue_resumed', { queue = name, by = REQUEST.by })
      Notifications.notify_queue(name)
    end
    if kind == 'task' and before.paused and not after.paused then
      resume(name)
    end
    if after.rate and not same(before.rate, after.rate) then
      if kind == 'task' then
        retune_task(name, Rates.from_settings(after.rate))
      else
        retune(name, Rates.from_settings(after.rate))
        Notifications.notify_queue(name)
      end
    end
  end
  return cmsgpack.pack(after)
end)
