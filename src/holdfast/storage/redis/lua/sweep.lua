#!lua flags=allow-oom
-- requires: upkeep, suspicion, reclaiming, timetable
-- sweep: elect the bidder if need be, then do one bounded turn of the chores.
--
-- leader  HASH  owner, epoch, length and `until` of the term; when a leader swept_at last, and after a gap resumed_at
--
-- Request: {owner, scope, term, every, grace}; without a term it is swept without an election.
-- Answer: {retry_in} where another leads; else {false, epoch or false, stalled, did, more, troubles, due, next_tick, now}.
-- A stalled one is {ref, record, payload, reason, owner, silent_for}; `did`: the counts in the order of the chores.
local LEADER = key('leader')

-- The epoch of the bidder's term, or nil where another's stands against it, and for how long that still does.
local function elect(bidder, length)
  local got = call('HMGET', LEADER, 'owner', 'epoch', 'length', 'until')
  local leader, epoch, given, ends = got[1], tonumber(got[2] or '') or 0, tonumber(got[3] or ''), tonumber(got[4] or '')
  if leader == bidder and NOW < ends then
    call('HSET', LEADER, 'length', length, 'until', NOW + length)
    return epoch
  end
  if leader then
    -- A term that ends further ahead than it is long was given before the clock was set back.
    if NOW < ends and ends <= NOW + given then
      return nil, ends - NOW
    end
    Journal.record('leadership_lost', { scope = ASKED.scope, owner = leader, epoch = epoch, reason = 'expired' })
  end
  epoch = epoch + 1
  call('HSET', LEADER, 'owner', bidder, 'epoch', epoch, 'length', length, 'until', NOW + length)
  Journal.record('leadership_acquired', { scope = ASKED.scope, owner = bidder, epoch = epoch })
  return epoch
end

-- A sweep does as much as one chore may: what the chores before have not taken of it is left to those behind, but a
-- little to each of them, or what is most would keep the others from ever being done.
local LITTLE = 20
local left = 1
local did, troubles, more = {}, {}, false

-- Do one chore, whatever happens to it; what it had done until then stays done.
local function chore(name, limit, work)
  local room = max(floor(left * limit + 0.5), math.ceil(limit / LITTLE))
  local done, result, unfinished = pcall(work, room)
  if not done then
    local text = type(result) == 'table' and result.err or tostring(result)
    troubles[#troubles + 1] = name .. ': ' .. string.gsub(text, '%s+', ' ')
    return 0
  end
  local count = result or 0
  left = max(0, left - count / limit)
  more = more or count >= room or unfinished == true
  return count
end

local function counted(name, limit, work)
  did[#did + 1] = chore(name, limit, work)
end

local epoch, retry_in
if ASKED.term then
  epoch, retry_in = elect(ASKED.owner, ASKED.term)
  if not epoch then
    return { retry_in }
  end
end
local times = call('HMGET', LEADER, 'swept_at', 'resumed_at')
local swept_at, resumed_at = tonumber(times[1] or ''), tonumber(times[2] or '')
if swept_at and NOW - swept_at > 3 * ASKED.every then
  resumed_at = NOW
  call('HSET', LEADER, 'resumed_at', NOW)
end

local stalled = {}
counted('reclaim', SWEEP_LIMIT, function(limit)
  local overdue = up_to(key('suspects'), NOW, limit)
  for _, ref in ipairs(overdue) do
    local job = Audit.known('suspects', ref)
    if job then
      stalled[#stalled + 1] = Reclaiming.take(job, ASKED.owner)
    end
  end
  return #overdue
end)
chore('rates anew', LOOK_LIMIT, function()
  return 0, Upkeep.look_anew(swept_at and NOW < swept_at)
end)
counted('suspect', SWEEP_LIMIT, function(limit)
  return Suspicion.suspect(ASKED.grace, resumed_at, limit)
end)
-- In the order that the protocol tells: what was expired is not promoted, what was redriven is not trimmed.
counted('expire', EXPIRE_LIMIT, Upkeep.expire)
counted('promote', PROMOTE_LIMIT, Upkeep.promote)
counted('unpark', PROMOTE_LIMIT, Upkeep.unpark)
counted('redrive', SWEEP_LIMIT, Upkeep.redrive)
counted('trim', TRIM_LIMIT, Upkeep.trim)
counted('events', TRIM_LIMIT, Upkeep.forget_events)
chore('workers', TRIM_LIMIT, Upkeep.forget_workers)
chore('windows', WINDOW_LIMIT, Upkeep.forget_windows)
chore('rates', PASSED_LIMIT, Upkeep.forget_rates)
chore('lines', PASSED_LIMIT, Upkeep.pass_lines)
chore('queues', LOOK_LIMIT, function()
  Upkeep.forget_queues()
  Upkeep.remember_queues()
end)
chore('audit', LOOK_LIMIT, Audit.go_on)
chore('let in', LOOK_LIMIT, Parking.let_in)
local due, next_tick = {}, false
chore('schedules', LOOK_LIMIT, function()
  due, next_tick = Timetable.due()
end)
call('HSET', LEADER, 'swept_at', NOW)
Record.flush()
Journal.flush()
return { false, epoch or false, stalled, did, more and 1 or 0, troubles, due, next_tick, NOW }
