-- requires: prelude, record, settings, notifications, rates, job_indexes, audit, known_tasks
-- Parks jobs that may not start yet, and unparks them: because of a full key, a closed rate, or a paused or unknown
-- task.
local Parking = {}

-- The name under which a job must be parked; nil if it may start.
function Parking.blocking_name(job)
  if Settings.task_paused(job.task) then
    return PAUSED .. job.task
  end
  if not KnownTasks.may_start(job) then
    return KnownTasks.place_of(job)
  end
  for _, held in ipairs(job.keys) do
    -- If the limit is missing, which only manual changes can cause, the job's own limit applies.
    if JobIndexes.room(job.queue, held[1], held[2]) == 0 then
      return held[1]
    end
  end
  for _, rate in ipairs(Rates.of(job)) do
    if Rates.opens_at(Rates.state(job.queue, rate), rate) > NOW then
      return RATE .. rate[1]
    end
  end
  return nil
end

-- The rate under which jobs are parked, as the first of them has it; nil if that job does not have it any more.
local function rate_of(queue, name)
  local first = call('ZRANGE', key('parked', pair(queue, name)), 0, 0)[1]
  local job = first and Record.get_in(queue, first)
  for _, rate in ipairs(job and Rates.of(job) or {}) do
    if RATE .. rate[1] == name then
      return rate
    end
  end
  return nil
end

-- Note when a rate lets the next job start that is parked under it. `so_far`: its state, with the jobs just unparked.
local function note_opening(queue, name, so_far)
  local opening = key('opening', queue)
  if call('EXISTS', key('parked', pair(queue, name))) == 0 then
    call('ZREM', opening, name)
    return
  end
  local rate = rate_of(queue, name)
  call('ZADD', opening, rate and Rates.opens_at(so_far or Rates.state(queue, rate), rate) or NOW, name)
end

-- How many of the jobs parked under a name may be unparked.
local function room(queue, name)
  if starts_with(name, PAUSED) then
    return Settings.task_paused(string.sub(name, #PAUSED + 1)) and 0 or PROMOTE_LIMIT
  end
  if starts_with(name, RATE) then
    local rate = rate_of(queue, name)
    return rate and Rates.free(Rates.state(queue, rate), rate) or PROMOTE_LIMIT
  end
  if starts_with(name, UNKNOWN) then
    return 0
  end
  -- Each job that is parked under a key names it. A damaged record can stand under a name that is not a key.
  return JobIndexes.room(queue, name, PROMOTE_LIMIT)
end

-- Unpark as many jobs as have room under a name, at most `most`; return how many.
function Parking.unpark(queue, name, most)
  local parked = key('parked', pair(queue, name))
  local unparked = first_of(parked, min(room(queue, name), most or PROMOTE_LIMIT, PROMOTE_LIMIT))
  for _, id in ipairs(unparked) do
    local job = Audit.checked_in('parked', queue, id, name)
    if job then
      JobIndexes.move(job, { parked_under = NONE })
    end
  end
  if #unparked > 0 then
    Notifications.notify_queue(queue)
  end
  return #unparked
end

-- Park a ready job.
function Parking.park(job, under)
  JobIndexes.move(job, { parked_under = under })
  if starts_with(under, RATE) then
    note_opening(job.queue, under)
  end
  if starts_with(under, UNKNOWN) then
    Notifications.notify_queue(job.queue)
  end
end

-- Unpark the best job that is parked under some names, if it precedes all ready jobs of the queue; return the id of the
-- first ready job, nil without one.
function Parking.first(queue, names)
  local id, under = KnownTasks.first(queue, names)
  if under then
    local job = Audit.checked_in('parked', queue, id, under)
    if job then
      JobIndexes.move(job, { parked_under = NONE })
    end
  end
  return id
end

-- Unpark the jobs that a rate lets start, and note when the next may be unparked, assuming that all these start.
local function open(queue, name, limit)
  local rate = rate_of(queue, name)
  if not rate then
    local unparked = Parking.unpark(queue, name, limit)
    note_opening(queue, name)
    return unparked
  end
  local so_far = Rates.state(queue, rate)
  local opens = tonumber(call('ZSCORE', key('opening', queue), name) or '')
  if opens then
    so_far = Rates.later(so_far, Rates.taken_if_open(opens, rate))
  end
  local unparked = Parking.unpark(queue, name, min(Rates.free(so_far, rate), limit))
  note_opening(queue, name, Rates.after(so_far, rate, unparked))
  return unparked
end

-- Unpark the jobs that the rates of a queue let start now, beginning with the rate that has been open longest.
function Parking.release_open_rates(queue)
  local left = PROMOTE_LIMIT
  for _, name in ipairs(up_to(key('opening', queue), NOW, PROMOTE_LIMIT)) do
    if left == 0 then
      break
    end
    left = left - open(queue, name, left)
  end
end

-- Unpark all jobs that a rate lets start now, ignoring jobs unparked earlier; return how many.
function Parking.recheck_rate(queue, name, limit)
  call('ZREM', key('opening', queue), name)
  return open(queue, name, limit or PROMOTE_LIMIT)
end

-- How many jobs this script may still unpark under keys: many keys may get more room at once, with many jobs under
-- each.
local allowed = PROMOTE_LIMIT

-- Unpark the jobs for which a key has room. If this script's limit is reached, note the place for the sweeps: they do
-- not visit a key's place while its queue has ready jobs.
--
-- resumed  ZSET  the places where jobs are left for the sweeps to unpark: queue and name, all at 0
local function fill(queue, name)
  local before = allowed
  allowed = allowed - (before > 0 and Parking.unpark(queue, name, before) or 0)
  if allowed == 0 and before < PROMOTE_LIMIT then
    call('ZADD', key('resumed'), 0, pair(queue, name))
  end
end

-- Unpark jobs under the keys and rates that were freed since the last call; every script that moves jobs calls this.
function Parking.unpark_freed()
  for place, left in JobIndexes.next_freed do
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

-- Apply the limits of a new job's keys; unpark jobs if a limit has grown.
function Parking.apply_limits(job)
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
