-- requires: prelude, settings, limits, known_tasks
-- Finds the queues that have jobs for a claim, with a few commands for all queues: reading each queue would make a
-- claim cost more, the more queues a worker serves. The existence of a queue's keys answers it. For delayed jobs,
-- `dues` does, as for the sweeps: if a queue were missing there, its jobs would come late. The audit compares `dues`
-- with each delayed job, and repairs it.
local ReadyQueues = {}

-- Maximum number of names in one command.
local AT_ONCE = 1000

-- Maximum number of future instants in `dues` that are checked for one answer.
local EXAMINED_LIMIT = 50

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

-- Return the number of the first queue, from number `from` on, that has a key of a kind; nil if none has.
--
-- It searches ranges of growing length, then halves the one that has a hit. If most queues have the key, the first
-- range suffices; if few have it, few commands cover many queues. All calls in a script must name the same queues.
function ReadyQueues.first_with(kind, queues, from)
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

-- What may release or hold up jobs of these queues: {tuned, dues, opening}. `tuned`: the numbers of the queues with
-- settings or a limit of their own. `dues`: by number of queue, an instant before which none of its delayed jobs is due. `opening`: by number
-- of queue, when the first rate opens for which jobs wait.
function ReadyQueues.upcoming(queues)
  local dues, opening = {}, {}
  local upcoming = { tuned = Settings.fetch('queue', queues), dues = dues, opening = opening }
  local has_settings = {}
  for _, number in ipairs(upcoming.tuned) do
    has_settings[number] = true
  end
  for _, number in ipairs(Limits.limited_queues(queues)) do
    if not has_settings[number] then
      upcoming.tuned[#upcoming.tuned + 1] = number
    end
  end
  if call('EXISTS', key('dues'), key('places')) == 0 then
    return upcoming
  end
  for from = 1, #queues, AT_ONCE do
    local instants = call('ZMSCORE', key('dues'), unpack(queues, from, min(from + AT_ONCE - 1, #queues)))
    for at, instant in ipairs(instants) do
      dues[from + at - 1] = tonumber(instant or '')
    end
  end
  local number = ReadyQueues.first_with('opening', queues, 1)
  while number do
    opening[number] = head_of(key('opening', queues[number]))
    number = ReadyQueues.first_with('opening', queues, number + 1)
  end
  return upcoming
end

local known

-- By number of queue, the names under which jobs are parked whose task and version the caller knows. The queues share
-- the `PLACE_LIMIT` names that a script examines. All calls must name the same queues: the first answer is cached.
function ReadyQueues.known_places(queues)
  if known then
    return known
  end
  known = {}
  if call('EXISTS', key('places')) == 0 then
    return known
  end
  local numbers = {}
  local number = ReadyQueues.first_with('unknown', queues, 1)
  while number do
    numbers[#numbers + 1] = number
    number = ReadyQueues.first_with('unknown', queues, number + 1)
  end
  for _, at in ipairs(numbers) do
    local places = KnownTasks.places(queues[at], max(1, floor(PLACE_LIMIT / #numbers)))
    known[at] = #places > 0 and places or nil
  end
  return known
end

-- Return true if the answer of `upcoming` holds anything.
function ReadyQueues.has_any(upcoming)
  return #upcoming.tuned > 0 or next(upcoming.dues) ~= nil or next(upcoming.opening) ~= nil
end

-- When the first delayed job of a queue is due, nil without one; if `dues` has another instant, correct it.
local function first_due(queue, known)
  local due = head_of(key('delayed', queue))
  if not due then
    call('ZREM', key('dues'), queue)
  elseif due ~= known then
    call('ZADD', key('dues'), due, queue)
  end
  return due
end

-- The earliest instant at which a delayed job of one of these queues is due, or nil; `dues`: from `upcoming`.
--
-- The answer may be too early, but never too late: if many delayed jobs were cancelled, successive claims correct the
-- instants that those have left behind. This claim has visited the queues with due jobs anyway.
function ReadyQueues.next_due(queues, dues)
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
  local examined = 0
  for _, number in ipairs(numbers) do
    local bound = dues[number]
    if least and bound >= least then
      break
    end
    examined = examined + (bound > NOW and 1 or 0)
    if examined > EXAMINED_LIMIT then
      return bound
    end
    if number ~= first then
      local due = first_due(queues[number], bound)
      least = due and min(due, least or due) or least
    end
  end
  return least
end
