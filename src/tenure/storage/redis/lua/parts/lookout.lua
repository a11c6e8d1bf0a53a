-- requires: cell, settings, known
-- Which of many queues have anything for a claim, asked of all of them by a few commands: to look into each would make a
-- claim the dearer, the more queues a worker serves. The keys that are asked for say it
-- themselves, but for delayed jobs, where `dues` says it, as it does to the sweeps: a queue that is missing there would
-- have its jobs come late. The audit holds it against each delayed job, and mends it.
local Lookout = {}

-- So many names one command is called with at most.
local AT_ONCE = 1000

-- So many instants that have not come yet are looked into for one answer.
local LOOKS = 50

local keys_of = {}

local function keys(kind, queues)
  local known = keys_of[kind]
  if not known then
    known = {}
    for number, queue in ipairs(queues) do
      known[number] = key(kind, queue)
    end
    keys_of[kind] = known
  end
  return known
end

-- The number of the first of the queues, from one on, that have a key of a kind; nil if none has.
--
-- Looked for in ever longer stretches, then in the halves of the one that has any: where most have it, the first stretch
-- will do, and where hardly any has, few commands ask about many. All calls must be of the same queues.
function Lookout.first_with(kind, queues, from)
  local names, stretch = keys(kind, queues), 1
  while from <= #names do
    local to = min(from + stretch - 1, #names)
    if call('EXISTS', unpack(names, from, to)) > 0 then
      while from < to do
        local middle = floor((from + to) / 2)
        if call('EXISTS', unpack(names, from, middle)) > 0 then
          to = middle
        else
          from = middle + 1
        end
      end
      return from
    end
    from, stretch = to + 1, min(2 * stretch, AT_ONCE)
  end
  return nil
end

-- What comes to some queues by itself, or is held up there: {told, dues, opening}, the numbers of those that are told
-- anything; by the number of each that has delayed jobs an instant before which none of them is due; and by that of each in
-- which jobs wait for a rate when the first opens.
function Lookout.coming(queues)
  local dues, opening = {}, {}
  local coming = { told = Settings.fetch('queue', queues), dues = dues, opening = opening }
  if call('EXISTS', key('dues'), key('places')) == 0 then
    return coming
  end
  for from = 1, #queues, AT_ONCE do
    local instants = call('ZMSCORE', key('dues'), unpack(queues, from, min(from + AT_ONCE - 1, #queues)))
    for at, instant in ipairs(instants) do
      dues[from + at - 1] = tonumber(instant or '')
    end
  end
  local number = Lookout.first_with('opening', queues, 1)
  while number do
    opening[number] = head_of(key('opening', queues[number]))
    number = Lookout.first_with('opening', queues, number + 1)
  end
  return coming
end

local known

-- Of each of some queues in which jobs are parked whose task and version the caller knows, by its number: under what. The
-- queues share the `PLACE_LIMIT` names that a script looks at. All calls must be of the same queues: the first is remembered.
function Lookout.known(queues)
  if known then
    return known
  end
  known = {}
  if call('EXISTS', key('places')) == 0 then
    return known
  end
  local numbers = {}
  local number = Lookout.first_with('unknown', queues, 1)
  while number do
    numbers[#numbers + 1] = number
    number = Lookout.first_with('unknown', queues, number + 1)
  end
  for _, at in ipairs(numbers) do
    local places = Known.places(queues[at], max(1, floor(PLACE_LIMIT / #numbers)))
    known[at] = #places > 0 and places or nil
  end
  return known
end

-- Whether that is anything at all.
function Lookout.holds_up(coming)
  return #coming.told > 0 or next(coming.dues) ~= nil or next(coming.opening) ~= nil
end

-- When the first delayed job of a queue is due, nil if there is none; noted where it is not the instant that is known.
local function first_due(queue, known)
  local due = head_of(key('delayed', queue))
  if not due then
    call('ZREM', key('dues'), queue)
  elseif due ~= known then
    call('ZADD', key('dues'), due, queue)
  end
  return due
end

-- The least instant at which a delayed job of one of these queues is due, or nil; `dues` as `coming` has told.
--
-- It may be told too early, never too late: where many delayed jobs were cancelled, one claim after the other puts right
-- the instants that they have left behind. What has come by now was looked into by this claim anyway.
function Lookout.next_due(queues, dues)
  local numbers, first = {}, nil
  for number, instant in pairs(dues) do
    if not Settings.queue_paused(queues[number]) then
      numbers[#numbers + 1] = number
      if not first or instant < dues[first] then
        first = number
      end
    end
  end
  local least = first and first_due(queues[first], dues[first])
  if not first or least == dues[first] then
    return least
  end
  table.sort(numbers, function(one, other)
    return dues[one] < dues[other]
  end)
  local looks = 0
  for _, number in ipairs(numbers) do
    local bound = dues[number]
    if least and bound >= least then
      break
    end
    looks = looks + (bound > NOW and 1 or 0)
    if looks > LOOKS then
      return bound
    end
    if number ~= first then
      local due = first_due(queues[number], bound)
      least = due and min(due, least or due) or least
    end
  end
  return least
end
