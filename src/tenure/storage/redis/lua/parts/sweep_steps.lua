-- requires: prelude, settings, notifications, fair_queue, rates, job_indexes, audit, parking, expiry, transitions
-- requires: redriving, deletion, time_budget, record
-- The chores of a sweep that follow the reclaim. Each is bounded, and returns how many items it did.
local SweepSteps = {}

-- In how many queues one sweep looks for jobs whose retention has ended; the next sweep continues after them.
local QUEUES = 200

-- The additional time to delete a job by itself instead of together with others, in microseconds.
local SINGLE_COST = 57

-- How many places are read at a time; if a queue is skipped, the rest of them is read for nothing.
local PLACES = 16

-- For how long a worker that has disappeared without leaving is shown.
-- constants: WORKER_KEPT

local TERMINAL_STATES = { 'cancelled', 'completed', 'expired', 'failed' }

-- Expire jobs that are too old to start; a job that is deleted counts as many as the calls that it answers for.
function SweepSteps.expire(limit)
  local expired = 0
  for _, ref in ipairs(up_to(key('aging'), NOW, limit)) do
    if expired >= limit then
      break
    end
    local job = Audit.checked('aging', ref)
    if job then
      local answers_for = job.on_expire == 'discard' and Expiry.count_calls(job) or 1
      Expiry.expire(job)
      expired = expired + answers_for
    end
  end
  Parking.unpark_freed()
  return expired
end

-- Promote due delayed jobs, those of the queue with the longest overdue job first.
function SweepSteps.promote(limit)
  local promoted = 0
  for _, queue in ipairs(up_to(key('dues'), NOW, LOOK_LIMIT)) do
    -- An instant there is too early if the job that set it has left: the order of the queues needs the correct one.
    local first = head_of(key('delayed', queue))
    if first then
      call('ZADD', key('dues'), 'GT', first, queue)
    else
      call('ZREM', key('dues'), queue)
    end
  end
  for _, queue in ipairs(up_to(key('dues'), NOW, LOOK_LIMIT)) do
    local due = Transitions.promote_due(queue, limit - promoted)
    if due > 0 then
      Notifications.notify_queue(queue)
    end
    promoted = promoted + due
    local next_due = head_of(key('delayed', queue))
    if next_due then
      call('ZADD', key('dues'), next_due, queue)
    else
      call('ZREM', key('dues'), queue)
    end
    if promoted >= limit then
      break
    end
  end
  Parking.unpark_freed()
  return promoted
end

local function visit(queue, name, limit)
  if not starts_with(name, RATE) then
    return Parking.unpark(queue, name, limit)
  end
  return Rates.queue_opens_at(queue) <= NOW and Parking.recheck_rate(queue, name, limit) or 0
end

-- Unpark jobs that earlier calls have left to the sweeps: those of resumed tasks, and of keys that got more room than
-- one call could fill.
local function unpark_deferred(limit)
  local let_in = 0
  for _, place in ipairs(first_of(key('resumed'), PLACES)) do
    if let_in >= limit then
      break
    end
    local queue, name = parts_of(place)
    local may = limit - let_in
    local more = Parking.unpark(queue, name, may)
    let_in = let_in + more
    if more < may then
      call('ZREM', key('resumed'), place)
    end
  end
  return let_in
end

-- Unpark jobs where there is room; each sweep continues where the last one ended.
--
-- In a queue with ready jobs, only the places of paused tasks are visited: the ready jobs come first, and may need the
-- same slot.
function SweepSteps.unpark(limit)
  local round = key('sweep')
  local from = call('HGET', round, 'places') or '-'
  local unparked, visits, lined, current = unpark_deferred(limit), 0, false, nil
  while visits < LOOK_LIMIT and unparked < limit do
    local places = call('ZRANGEBYLEX', key('places'), from, '+', 'LIMIT', 0, PLACES)
    if #places == 0 then
      call('HDEL', round, 'places')
      return unparked, false, 3 * visits
    end
    for _, place in ipairs(places) do
      local queue, name = parts_of(place)
      visits = visits + 1
      if queue ~= current then
        current, lined = queue, call('EXISTS', key('ready', queue)) == 1
      end
      if lined and not starts_with(name, PAUSED) then
        local behind = name > PAUSED and '(' .. queue .. '\1'
        from = behind or '[' .. pair(queue, PAUSED)
        break
      end
      unparked = unparked + visit(queue, name, limit - unparked)
      -- If the limit is reached, visit this place again: there may be more jobs to unpark.
      from = (unparked < limit and '(' or '[') .. place
      if unparked >= limit or visits >= LOOK_LIMIT then
        break
      end
    end
  end
  call('HSET', round, 'places', from)
  return unparked, false, 3 * visits
end

-- Let the next claim check all jobs that wait for a rate again, because the noted opening times date from before the
-- clock was set back. Some queues at a time; return true if there are more.
function SweepSteps.recheck_rates(set_back)
  local round = key('sweep')
  local from = set_back and '-' or call('HGET', round, 'recheck_rates')
  if not from then
    return false
  end
  for _ = 1, LOOK_LIMIT do
    local place = call('ZRANGEBYLEX', key('places'), from, '+', 'LIMIT', 0, 1)[1]
    if not place then
      call('HDEL', round, 'recheck_rates')
      return false
    end
    local queue = parts_of(place)
    local opening = key('opening', queue)
    local later = call('ZRANGEBYSCORE', opening, beyond(NOW), '+inf', 'LIMIT', 0, LOOK_LIMIT)
    for _, name in ipairs(later) do
      call('ZADD', opening, 0, name)
    end
    if #later > 0 then
      Notifications.notify_queue(queue)
    end
    from = '(' .. queue .. '\1'
  end
  call('HSET', round, 'recheck_rates', from)
  return true
end

-- Redrive failed jobs whose rule says so.
function SweepSteps.redrive(limit)
  local due = up_to(key('redrives'), NOW, limit)
  for _, ref in ipairs(due) do
    local job = Audit.checked('redrives', ref)
    if job and Redriving.holder(job) then
      -- A later job with the same key is unfinished, so do not redrive this one.
      JobIndexes.move(job, { redrive_at = NONE })
    elseif job then
      Redriving.redrive(job, 0, 'rule', true)
    end
  end
  return #due
end

local queues, cursor

-- The queues that this sweep visits: their names and numbers.
function SweepSteps.queues()
  if not queues then
    local from = call('HGET', key('sweep'), 'queues')
    local entries =
      call('ZRANGEBYSCORE', key('queues'), from and '(' .. from or '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, QUEUES)
    queues = {}
    for at = 1, #entries, 2 do
      queues[#queues + 1] = { name = entries[at], number = entries[at + 1] }
    end
    cursor = #queues == QUEUES and queues[QUEUES].number or nil
  end
  return queues
end

-- Note how far the queues were visited; but no further than the trim got in this or an earlier call of this sweep.
local function remember_queues()
  local round = key('sweep')
  local trimmed = call('HGET', round, 'trimmed')
  if trimmed then
    call('HDEL', round, 'trimmed')
    cursor = trimmed ~= '' and trimmed or nil
  end
  if cursor then
    call('HSET', round, 'queues', cursor)
  else
    call('HDEL', round, 'queues')
  end
end

-- The ids of a queue's jobs in a terminal state whose retention has ended, those that ended first at the front.
local function surplus_jobs(over, keep, room)
  local surplus = keep.count and max(0, call('ZCARD', over) - keep.count) or 0
  -- Jobs that ended later than now ended before the clock was set back: they are older than they seem.
  local gone = surplus > 0
      and room > 0
      and call('ZRANGEBYSCORE', over, beyond(NOW), '+inf', 'LIMIT', 0, min(surplus, room))
    or {}
  room, surplus = room - #gone, surplus - #gone
  -- Both lists begin with the jobs that ended first, so the longer one contains the shorter one.
  local aged, others = up_to(over, NOW - keep.age, room), first_of(over, min(surplus, room))
  for _, id in ipairs(#aged > #others and aged or others) do
    gone[#gone + 1] = id
  end
  return gone
end

-- Delete the jobs that this script has not loaded, all together, up to what counts for `most`. Return how many, the ids
-- of those that are left, what the deleted ones count for, and true if `most` stopped it.
local function delete_unloaded(queue, state, ids, most)
  local others, loaded = {}, {}
  for _, id in ipairs(ids) do
    local list = Record.is_loaded(pair(queue, id)) and loaded or others
    list[#list + 1] = id
  end
  if #others == 0 then
    return 0, loaded, 0, false
  end
  local gone, left, counted = Deletion.delete(queue, state, others, false, most)
  local cut_short = gone + #left < #others
  for _, id in ipairs(loaded) do
    left[#left + 1] = id
  end
  return gone, left, counted, cut_short
end

-- Delete jobs whose retention has ended: first those with a lifetime of their own, then queue by queue. Most jobs of a
-- queue are deleted together. A job that must be deleted by itself takes longer, so there may be no time for all.
function SweepSteps.trim(limit)
  local trimmed, spent, stopped = 0, 0, false
  local function forget(job)
    trimmed, spent = trimmed + Expiry.count_calls(job), spent + SINGLE_COST
    Expiry.delete(job)
  end
  local function has_time()
    stopped = stopped or spent > 0 and spent + trimmed * Deletion.COST > TimeBudget.left
    return trimmed < limit and not stopped
  end
  for _, ref in ipairs(up_to(key('kept'), NOW, limit)) do
    local job = has_time() and Audit.checked('kept', ref)
    if job then
      forget(job)
    end
  end
  local round = key('sweep')
  call('HDEL', round, 'trimmed')
  for number, queue in ipairs(SweepSteps.queues()) do
    if not has_time() then
      -- The next sweep continues with this queue.
      local before = number > 1 and queues[number - 1].number or call('HGET', round, 'queues') or ''
      call('HSET', round, 'trimmed', before)
      break
    end
    for _, state in ipairs(TERMINAL_STATES) do
      local over = key('over', pair(queue.name, state))
      local ids = surplus_jobs(over, Deletion.retention(queue.name, state), limit - trimmed)
      local may_count = max(1, floor((TimeBudget.left - spent - trimmed * Deletion.COST) / Deletion.KEY_COST))
      local gone, left, counted, cut_short = delete_unloaded(queue.name, state, ids, may_count)
      trimmed = trimmed + gone
      for _, id in ipairs(left) do
        local job = has_time() and Audit.checked_over(queue.name, state, id)
        if job then
          forget(job)
        end
      end
      -- The cost above the price that is paid for each anyway.
      spent = spent + max(0, counted * Deletion.KEY_COST - gone * Deletion.COST)
      stopped = stopped or cut_short
    end
  end
  return trimmed, false, spent + 6 * #SweepSteps.queues(), stopped
end

-- Forget the tags of fair keys that the virtual time has passed, and the fair state of queues without unfinished jobs;
-- at most `limit` tags.
function SweepSteps.trim_fair_queues(limit)
  for _, queue in ipairs(SweepSteps.queues()) do
    local name = queue.name
    local fair = key('fair', name)
    local lanes = call('HKEYS', fair)
    local function has(state)
      return call('EXISTS', key('in', pair(name, state))) == 1
    end
    if #lanes > 0 and not (has('delayed') or has('waiting') or has('again') or has('active')) then
      FairQueue.reset(name)
      lanes = {}
    end
    for _, lane in ipairs(lanes) do
      if limit > 0 and starts_with(lane, 'b') then
        local boost = string.sub(lane, 2)
        local tags = key('tags', pair(name, boost))
        local passed = min(call('ZCOUNT', tags, '-inf', whole(FairQueue.start_time(name, boost))), limit)
        if passed > 0 then
          call('ZREMRANGEBYRANK', tags, 0, passed - 1)
          limit = limit - passed
        end
      end
    end
  end
  return 0, false, #SweepSteps.queues()
end

-- Remove queues without jobs, settings and a count of discarded jobs.
function SweepSteps.remove_queues()
  for _, queue in ipairs(SweepSteps.queues()) do
    local name = queue.name
    local function jobs(state)
      return key('in', pair(name, state))
    end
    local there = call(
      'EXISTS',
      key('ready', name),
      key('delayed', name),
      jobs('delayed'),
      jobs('waiting'),
      jobs('again'),
      jobs('active'),
      jobs('completed'),
      jobs('failed'),
      jobs('cancelled'),
      jobs('expired')
    )
    if
      there == 0
      and call('HEXISTS', key('settings'), pair('queue', name)) == 0
      and call('HEXISTS', key('discarded'), name) == 0
    then
      call('ZREM', key('queues'), name)
      call('ZREM', key('dues'), name)
      FairQueue.reset(name)
    end
  end
  remember_queues()
  return 0, false, 4 * #SweepSteps.queues()
end

-- Remove members with scores up to `until_when` from a sorted set and from its hash, at most `limit`; return their
-- number and names.
local function delete_first(index, hash, limit, until_when)
  local over = up_to(key(index), until_when, limit)
  for from = 1, #over, 1000 do
    call('HDEL', key(hash), unpack(over, from, min(from + 999, #over)))
  end
  if #over > 0 then
    call('ZREMRANGEBYRANK', key(index), 0, #over - 1)
  end
  return #over, over
end

-- Remove workers that have disappeared without leaving, after they have been silent for long.
function SweepSteps.remove_workers(limit)
  local deleted, owners = delete_first('seen', 'workers', limit, NOW - WORKER_KEPT)
  for _, owner in ipairs(owners) do
    Settings.delete_worker(owner)
  end
  return deleted
end

-- Remove keys that were held for a time which is over.
function SweepSteps.remove_windows(limit)
  return (delete_first('windows', 'window', limit, NOW))
end

-- Remove rates whose taken time has passed, and limits that are over.
function SweepSteps.remove_rates(limit)
  local rates = delete_first('taken', 'reach', limit, NOW)
  return rates + delete_first('limited', 'limited_for', limit - rates, NOW)
end

local function number_of(entry)
  return tonumber(string.sub(entry[1], 3))
end

local function is_aged(entry)
  local fields = entry[2]
  for at = 1, #fields, 2 do
    if fields[at] == 't' then
      return tonumber(fields[at + 1]) <= NOW - EVENTS_KEPT.age
    end
  end
  return false
end

-- Return how many of the oldest events are too old, up to a limit; and the number of the oldest event.
local function aged_events(events, limit)
  local aged, oldest, from, read = 0, nil, '-', 1
  while aged < limit do
    local entries = call('XRANGE', events, from, '+', 'COUNT', min(read, limit - aged))
    for _, entry in ipairs(entries) do
      oldest = oldest or number_of(entry)
      if not is_aged(entry) then
        return aged, oldest
      end
      aged = aged + 1
    end
    if #entries == 0 then
      break
    end
    from, read = '(' .. entries[#entries][1], 100
  end
  return aged, oldest
end

-- Delete the oldest events.
function SweepSteps.trim_events(limit)
  local events = key('events')
  local surplus = max(0, call('XLEN', events) - EVENTS_KEPT.count)
  local aged, oldest = aged_events(events, limit)
  local gone = min(max(surplus, aged), limit)
  if gone > 0 then
    call('XTRIM', events, 'MINID', '=', '0-' .. whole(oldest + gone))
  end
  return gone
end
