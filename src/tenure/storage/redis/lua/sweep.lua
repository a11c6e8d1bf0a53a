#!lua flags=allow-oom
-- requires: sweep_steps, suspects, reclaiming, schedules, time_budget, changes
-- sweep: elect the caller unless another owner leads, then do a bounded amount of the chores.
--
-- leader  HASH  owner, epoch, length and `until` of the term; swept_at: when the last sweep ended; busy_at: when any
--               chore was last done; resumed_at: when chores were done again after a gap
--
-- A whole sweep at its limits would block the server for too long. So one call does a part, and says where to continue.
--
-- Request: {owner, scope, term, every, grace, max_skip, chore, done}. Without `term` it sweeps without an election.
-- `max_skip`: how long the leader may skip the partition afterwards, if at all. `chore`, `done`: the chore to begin
-- with, and how much of it is done already.
-- Answer: {retry_in} if another owner leads; else {false, epoch or false, stalled, did, more, troubles, due, next_tick,
-- now, chore, done, skip}. `chore`, `done`: where the next call continues; `chore` is false at the end. `skip`: the
-- length of the skip that begins now, or 0. An entry of `stalled` is {ref, record, payload, reason, owner, silent_for}.
-- `did`: the counts of this call, in the order of the chores.
local LEADER = key('leader')

-- Return the epoch of the bidder's term; or nil and the remaining time of the current term, if another owner leads.
local function elect(bidder, length)
  local got = call('HMGET', LEADER, 'owner', 'epoch', 'length', 'until')
  local leader, epoch, given, ends = got[1], tonumber(got[2] or '') or 0, tonumber(got[3] or ''), tonumber(got[4] or '')
  if leader == bidder and NOW < ends then
    call('HSET', LEADER, 'length', length, 'until', NOW + length)
    return epoch
  end
  if leader then
    -- If a term ends later than its whole length from now, the clock was set back since: it counts as over.
    if NOW < ends and ends <= NOW + given then
      return nil, ends - NOW
    end
    EventLog.record('leadership_lost', { scope = REQUEST.scope, owner = leader, epoch = epoch, reason = 'expired' })
  end
  epoch = epoch + 1
  call('HSET', LEADER, 'owner', bidder, 'epoch', epoch, 'length', length, 'until', NOW + length)
  EventLog.record('leadership_acquired', { scope = REQUEST.scope, owner = bidder, epoch = epoch })
  return epoch
end

local epoch, retry_in
if REQUEST.term then
  epoch, retry_in = elect(REQUEST.owner, REQUEST.term)
  if not epoch then
    return { retry_in }
  end
end
call('HDEL', LEADER, 'skipped_until', 'term')
local times = call('HMGET', LEADER, 'swept_at', 'busy_at', 'resumed_at')
local swept_at, busy_at, resumed_at = tonumber(times[1] or ''), tonumber(times[2] or ''), tonumber(times[3] or '')
-- Unfinished sweeps do not count as a gap: otherwise suspects would get the longer grace for ever. A skip does not
-- either: `busy_at` is its end.
if busy_at and NOW - busy_at > 3 * REQUEST.every then
  resumed_at = NOW
  call('HSET', LEADER, 'resumed_at', NOW)
end
call('HSET', LEADER, 'busy_at', NOW)

-- No caller waits for a sweep, and the data it reads was last used long ago: so its time budget is smaller.
TimeBudget.spend(800)

local stalled, due, next_tick = {}, {}, false

-- EXAMINE_COST: the cost of reading a record. MIN_EXAMINED: with time for fewer looks than this, leave them to the next
-- call.
local EXAMINE_COST, MIN_EXAMINED = 8, 50

-- The chores in the order that the protocol defines: expired jobs are not promoted, redriven jobs are not trimmed.
--
-- Each is {name, limit, cost, work}. `work` gets the number of items to do. It returns how many it did, whether there
-- is more that it has not counted, the cost of its looks, and true if it stopped early because time ran out. `cost` is
-- the approximate time for one item, in microseconds.
local CHORES = {
  {
    'reclaim',
    SWEEP_LIMIT,
    60,
    function(limit)
      local overdue = up_to(key('suspects'), NOW, limit)
      for number, ref in ipairs(overdue) do
        if TimeBudget.is_spent() then
          return number - 1, false, 0, true
        end
        local job = Audit.checked('suspects', ref)
        if job then
          local taken = Reclaiming.take(job, REQUEST.owner)
          TimeBudget.spend_on_bytes(taken[2], taken[3])
          stalled[#stalled + 1] = taken
        end
      end
      return #overdue
    end,
  },
  -- Before chores that release jobs, because they use the times noted here at which rates open.
  { 'rates', LOOK_LIMIT, 0, function()
    return 0, SweepSteps.recheck_rates(swept_at and NOW < swept_at)
  end },
  { 'suspect', SWEEP_LIMIT, 50, function(limit)
    local made, unfinished, looks = Suspects.suspect(REQUEST.grace, resumed_at, limit)
    return made, unfinished, EXAMINE_COST * looks
  end },
  { 'shorten', LOOK_LIMIT, EXAMINE_COST, function(limit)
    if limit < MIN_EXAMINED then
      return 0, false, TimeBudget.left, true
    end
    local looks, stopped = Suspects.shorten(REQUEST.grace, limit)
    return 0, false, EXAMINE_COST * looks, stopped
  end },
  { 'expire', EXPIRE_LIMIT, 65, SweepSteps.expire },
  { 'promote', PROMOTE_LIMIT, 85, SweepSteps.promote },
  { 'unpark', PROMOTE_LIMIT, 60, SweepSteps.unpark },
  { 'redrive', SWEEP_LIMIT, 130, SweepSteps.redrive },
  { 'trim', TRIM_LIMIT, Deletion.COST, SweepSteps.trim },
  { 'events', TRIM_LIMIT, 9, SweepSteps.trim_events },
  { 'workers', TRIM_LIMIT, 2, SweepSteps.remove_workers },
  { 'windows', WINDOW_LIMIT, 6, SweepSteps.remove_windows },
  { 'old rates', PASSED_LIMIT, 4, SweepSteps.remove_rates },
  { 'lines', PASSED_LIMIT, 1, SweepSteps.trim_fair_queues },
  { 'queues', LOOK_LIMIT, 0, SweepSteps.remove_queues },
  { 'audit', Audit.LIMIT, 30, Audit.step },
  { 'schedules', LOOK_LIMIT, 0, function()
    due, next_tick = Schedules.due()
  end },
}
local COUNTED = { reclaim = 1, suspect = 2, expire = 3, promote = 4, unpark = 5, redrive = 6, trim = 7, events = 8 }

local did, troubles, more = { 0, 0, 0, 0, 0, 0, 0, 0 }, {}, false

-- Do a chore as far as the time budget allows. An error becomes a trouble; the work done before it stays done. Return
-- how many items were done, and true if the chore is finished.
local function work_at(chore, limit)
  local name, cost = chore[1], chore[3]
  local room = TimeBudget.affords(cost, limit)
  -- Write deferred changes of indexes first, because chores read all indexes.
  IndexWrites.flush()
  local well, result, unfinished, looks, stopped = pcall(chore[4], room)
  if not well then
    local text = type(result) == 'table' and result.err or tostring(result)
    troubles[#troubles + 1] = name .. ': ' .. string.gsub(text, '%s+', ' ')
    return 0, true
  end
  local count = result or 0
  TimeBudget.spend(count * cost + (looks or 0))
  more = more or unfinished == true
  return count, not stopped and (count < room or room == limit)
end

local next_chore, done = REQUEST.chore, REQUEST.done
while CHORES[next_chore] and not TimeBudget.is_spent() do
  local chore = CHORES[next_chore]
  local count, finished = work_at(chore, chore[2] - done)
  done = done + count
  local number = COUNTED[chore[1]]
  if number then
    did[number] = did[number] + count
  end
  more = more or done >= chore[2]
  if finished then
    next_chore, done = next_chore + 1, 0
  end
end
local freed, trouble = pcall(Parking.unpark_freed)
if not freed then
  troubles[#troubles + 1] = tostring(trouble)
end
-- Return how long the leader may skip the partition; 0 if there is work for a sweep, now or soon. The next change ends
-- the skip (parts/skips.lua), so only what is here already counts. core/leadership.py gives the reasons for `max_skip`.
local function longest_skip()
  if call('EXISTS', key('leases'), key('suspects'), key('places')) > 0 then
    return 0
  end
  local skip = REQUEST.max_skip
  for _, index in ipairs({ 'dues', 'aging', 'redrives', 'ticks' }) do
    local head = head_of(key(index))
    skip = head and min(skip, head - NOW) or skip
  end
  -- The leader comes one sweep before the end, so a shorter skip would save nothing.
  return skip >= 2 * REQUEST.every and floor(skip) or 0
end

-- Begin a skip. The term lasts for the skip plus its usual length, so that no other process sweeps here meanwhile.
local function begin_skip(length)
  call('HSET', LEADER, 'skipped_until', NOW + length, 'busy_at', NOW + length)
  if REQUEST.term then
    local term = REQUEST.term
    call('HSET', LEADER, 'term', term, 'length', length + term, 'until', NOW + length + term)
  end
end

-- Write before deciding about a skip, because that depends on the indexes.
Changes.write()
local ends, skip = not CHORES[next_chore], 0
if ends then
  call('HSET', LEADER, 'swept_at', NOW)
  if REQUEST.max_skip and not more and #troubles == 0 then
    skip = longest_skip()
    if skip > 0 then
      begin_skip(skip)
    end
  end
end
Notifications.publish()
return Changes.with_repairs({
  false,
  epoch or false,
  stalled,
  did,
  more and 1 or 0,
  troubles,
  due,
  next_tick,
  NOW,
  not ends and next_chore,
  done,
  skip,
})
