-- requires: cell, record, settings, hints, rates, shelf, audit, known
-- Who is out of line until there is room: under a key that is full, a rate that is not open, a task that is paused.
local Parking = {}

-- What a job must be parked under before it may start; nil where all its keys and rates have room.
function Parking.full(job)
  if Settings.task_paused(job.task) then
    return PAUSED .. job.task
  end
  if not Known.may_have(job) then
    return Known.place_of(job)
  end
  for _, held in ipairs(job.keys) do
    -- Where a limit is lost, as only somebody's hand can lose it, the job goes by its own.
    if Shelf.room(job.queue, held[1], held[2]) == 0 then
      return held[1]
    end
  end
  for _, rate in ipairs(Rates.of(job)) do
    if Rates.opens_at(Rates.taken(job.queue, rate), rate) > NOW then
      return RATE .. rate[1]
    end
  end
  return nil
end

-- The rate that the first of those parked under it goes by; nil where it has that rate no more.
local function rate_of(queue, name)
  local first = call('ZRANGE', key('parked', pair(queue, name)), 0, 0)[1]
  local job = first and Record.of(queue, first)
  for _, rate in ipairs(job and Rates.of(job) or {}) do
    if RATE .. rate[1] == name then
      return rate
    end
  end
  return nil
end

-- Note when a rate lets the first of those start who are parked under it; `so_far`: with those let in.
local function note_opening(queue, name, so_far)
  local opening = key('opening', queue)
  if call('EXISTS', key('parked', pair(queue, name))) == 0 then
    call('ZREM', opening, name)
    return
  end
  local rate = rate_of(queue, name)
  call('ZADD', opening, rate and Rates.opens_at(so_far or Rates.taken(queue, rate), rate) or NOW, name)
end

-- How many of those parked under a name may be let in.
local function room(queue, name)
  if starts_with(name, PAUSED) then
    return Settings.task_paused(string.sub(name, #PAUSED + 1)) and 0 or PROMOTE_LIMIT
  end
  if starts_with(name, RATE) then
    local rate = rate_of(queue, name)
    return rate and Rates.free(Rates.taken(queue, rate), rate) or PROMOTE_LIMIT
  end
  if starts_with(name, UNKNOWN) then
    return 0
  end
  -- Each job that is parked under a key names it. A damaged record can stand under a name that is not a key.
  return Shelf.room(queue, name, PROMOTE_LIMIT)
end

-- Let as many jobs back in line as have room under a name, so many at most; return how many that were.
function Parking.unpark(queue, name, most)
  local parked = key('parked', pair(queue, name))
  local let_in = first_of(parked, min(room(queue, name), most or PROMOTE_LIMIT, PROMOTE_LIMIT))
  for _, id in ipairs(let_in) do
    local job = Audit.known_in('parked', queue, id, name)
    if job then
      Shelf.move(job, { parked_under = NONE })
    end
  end
  if #let_in > 0 then
    Hints.knock_queue(queue)
  end
  return #let_in
end

-- Take a ready job out of line until there is room.
function Parking.park(job, under)
  Shelf.move(job, { parked_under = under })
  if starts_with(under, RATE) then
    note_opening(job.queue, under)
  end
  if starts_with(under, UNKNOWN) then
    Hints.knock_queue(job.queue)
  end
end

-- Put the first of the jobs that are parked under some names back in line, if it is ahead of all that stand there; return the
-- id of the first in line, nil if there is none.
function Parking.first(queue, names)
  local id, under = Known.first(queue, names)
  if under then
    local job = Audit.known_in('parked', queue, id, under)
    if job then
      Shelf.move(job, { parked_under = NONE })
    end
  end
  return id
end

-- Let in whom a rate allows to start, and note when the next may be let in: when all these might have started.
local function open(queue, name, limit)
  local rate = rate_of(queue, name)
  if not rate then
    local let_in = Parking.unpark(queue, name, limit)
    note_opening(queue, name)
    return let_in
  end
  local so_far = Rates.taken(queue, rate)
  local opens = tonumber(call('ZSCORE', key('opening', queue), name) or '')
  if opens then
    so_far = Rates.later(so_far, Rates.taken_if_open(opens, rate))
  end
  local let_in = Parking.unpark(queue, name, min(Rates.free(so_far, rate), limit))
  note_opening(queue, name, Rates.after(so_far, rate, let_in))
  return let_in
end

-- Let back in line whom the rates of a queue allow to start by now, those rates first that have been open for longest.
function Parking.open_up(queue)
  local left = PROMOTE_LIMIT
  for _, name in ipairs(up_to(key('opening', queue), NOW, PROMOTE_LIMIT)) do
    if left == 0 then
      break
    end
    left = left - open(queue, name, left)
  end
end

-- Let in whom a rate allows to start, whoever was let in before; return how many that were.
function Parking.open_anew(queue, name, limit)
  call('ZREM', key('opening', queue), name)
  return open(queue, name, limit or PROMOTE_LIMIT)
end

-- How many this script may still let in under keys: many keys may get more room at once, with many jobs under each.
local allowed = PROMOTE_LIMIT

-- Let in whom a key has room for. What is beyond this script is left to the sweeps, and noted: they do not look for who is
-- parked as long as others of his queue stand in line.
--
-- resumed  ZSET  where jobs were left for the sweeps to let in: queue and name, all at 0
local function fill(queue, name)
  local before = allowed
  allowed = allowed - (before > 0 and Parking.unpark(queue, name, before) or 0)
  if allowed == 0 and before < PROMOTE_LIMIT then
    call('ZADD', key('resumed'), 0, pair(queue, name))
  end
end

-- Let others in line under the keys that were left since the last time; whoever moves jobs does so in the end.
function Parking.let_in()
  for place, left in Shelf.next_freed do
    local queue, name = parts_of(place)
    if call('EXISTS', key('parked', place)) == 1 then
      if starts_with(name, RATE) then
        Parking.unpark(queue, name, left)
      else
        fill(queue, name)
      end
    end
  end
end

-- Go by the limits that a new job brings along.
function Parking.limit(job)
  for _, held in ipairs(job.keys) do
    local limits = key('limits', job.queue)
    local before = tonumber(call('HGET', limits, held[1]) or '')
    if before ~= held[2] then
      call('HSET', limits, held[1], held[2])
      if before and held[2] > before then
        fill(job.queue, held[1])
      end
    end
  end
end
