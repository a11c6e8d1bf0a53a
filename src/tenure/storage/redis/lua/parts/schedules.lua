-- requires: prelude, event_log, skips, audit, enqueue, settings
-- Schedules: put, pause, remove, and move on tick by tick, each tick once. core/schedule.py has the same rules with
-- reasons.
--
-- schedules  HASH  for each, by its name: the fields of Schedule that scripts use; the whole schedule as it was put, as
--                  text in `rest`
-- ticks      ZSET  the schedules that are not paused, by their next tick, if they have one
-- reached    ZSET  the schedules that are not paused, by the last tick that was dealt with
local Schedules = {}

-- constants: AHEAD

-- A schedule by its name, or nil.
function Schedules.get(name)
  local body = call('HGET', key('schedules'), name)
  return body and cmsgpack.unpack(body) or nil
end

local function keep(name, schedule)
  Skips.finish()
  call('HSET', key('schedules'), name, cmsgpack.pack(schedule))
  if schedule.paused then
    call('ZREM', key('ticks'), name)
    call('ZREM', key('reached'), name)
    return
  end
  call('ZADD', key('reached'), schedule.last_tick, name)
  if schedule.next_tick then
    call('ZADD', key('ticks'), schedule.next_tick, name)
  else
    call('ZREM', key('ticks'), name)
  end
end

-- Return true if a schedule is ahead of the clock: then the clock was set back since.
local function is_ahead(schedule)
  return schedule.last_tick > NOW + AHEAD
end

local function ticks_as(one, other)
  for _, field in ipairs({ 'cron', 'tz', 'every', 'start', 'stop', 'limit' }) do
    if one[field] ~= other[field] then
      return false
    end
  end
  return true
end

-- Return true if a schedule has had as many runs as its limit allows.
local function is_spent(schedule)
  return schedule.limit ~= nil and (schedule.runs or 0) >= schedule.limit
end

-- Make the creation of a schedule its first tick, if it begins immediately.
local function begin(new)
  local begun = not new.start or new.start <= new.created
  if new.immediately and begun and not (new.stop and new.stop < new.created) then
    new.last_tick, new.next_tick = new.created - 1, new.created
  end
end

-- Put a schedule. If it exists already, its definition is replaced, but its progress is kept.
function Schedules.put(name, new)
  local known = Schedules.get(name)
  if known then
    local set_back = is_ahead(known)
    if ticks_as(known, new) and not set_back then
      new.last_tick, new.next_tick = known.last_tick, known.next_tick
    elseif not set_back then
      new.last_tick = max(new.last_tick, known.last_tick)
    end
    new.paused, new.created, new.last_id, new.runs = known.paused, known.created, known.last_id, known.runs
    if is_spent(new) then
      new.next_tick = nil
    end
  else
    begin(new)
  end
  keep(name, new)
end

-- Pause or resume a schedule. Ticks during the pause are neither fired nor counted as missed.
function Schedules.pause(name, known, paused, next_tick)
  if not paused and known.paused then
    known.last_tick = is_ahead(known) and NOW or max(known.last_tick, NOW)
    known.next_tick = not is_spent(known) and next_tick or nil
  end
  known.paused = paused
  keep(name, known)
end

-- Delete a schedule; the jobs that it has made stay.
function Schedules.remove(name)
  call('HDEL', key('schedules'), name)
  call('ZREM', key('ticks'), name)
  call('ZREM', key('reached'), name)
end

-- Return true if a tick may make a job although jobs of earlier ticks are unfinished.
local function may_fire(name, overlap)
  if overlap == 'allow' then
    return true
  end
  if Audit.has_any('queued', name) then
    return false
  end
  return overlap == 'queue_one' or not Audit.has_any('running', name)
end

-- Enqueue a tick's job; return its id, or nil and the reason why no job was made.
local function fire(name, known, job, place)
  if not may_fire(name, known.overlap) then
    return nil, 'overlap'
  end
  local made = Enqueue.add(job, place)
  if made[1] == 'throttled' or made[1] == 'duplicate' then
    return nil, made[1]
  end
  return made[2]
end

-- Move a schedule on by a tick, unless another process has done so; return the verdict, and the id of the tick's job.
function Schedules.advance(name, known, asked)
  if known.paused or is_spent(known) or known.last_tick ~= asked.expected then
    return 'superseded'
  end
  if asked.job and Settings.moved_to(asked.job.queue) then
    return 'superseded'
  end
  local id, instead
  if asked.job then
    id, instead = fire(name, known, asked.job, asked.place)
  end
  known.runs = (known.runs or 0) + (id and 1 or 0)
  known.last_tick, known.last_id = asked.tick, id or known.last_id
  known.next_tick = not is_spent(known) and asked.next_tick or nil
  keep(name, known)
  if asked.missed > 0 then
    EventLog.record('schedule_missed', { name = name, tick = asked.tick, ticks = asked.missed, policy = known.missed })
  end
  if id then
    local late_by = max(0, NOW - asked.tick) / 1000000
    EventLog.record(
      'schedule_fired',
      { name = name, tick = asked.tick, late_by = late_by, queue = asked.job.queue, id = id }
    )
  elseif instead then
    EventLog.record('schedule_skipped', { name = name, tick = asked.tick, reason = instead })
  end
  return 'done', id
end

-- Return the due schedules in their stored form, and the time until another schedule has a tick (false: none has).
--
-- First those with a due tick, the longest due first; then those that are ahead of the clock.
function Schedules.due()
  local names = up_to(key('ticks'), NOW, DUE_LIMIT)
  if #names < DUE_LIMIT then
    -- A bounded number: the caller's answer corrects each of these, so that it is not ahead any more.
    local ahead = call('ZRANGEBYSCORE', key('reached'), beyond(NOW + AHEAD), '+inf', 'LIMIT', 0, LOOK_LIMIT)
    local has_come = {}
    for _, name in ipairs(names) do
      has_come[name] = true
    end
    table.sort(ahead)
    for _, name in ipairs(ahead) do
      if #names < DUE_LIMIT and not has_come[name] then
        names[#names + 1] = name
      end
    end
  end
  local coming = call('ZRANGEBYSCORE', key('ticks'), beyond(NOW), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return #names > 0 and call('HMGET', key('schedules'), unpack(names)) or {}, coming[2] and coming[2] - NOW or false
end
