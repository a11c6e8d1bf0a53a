-- requires: prelude, record, notifications, event_log, sequence, fair_queue, job_indexes, audit, parking, expiry
-- Enqueues a call: as a new job, or merged into an existing one. storage/memory/enqueue.py has the same rules, with
-- reasons.
--
-- windows  ZSET  for each key that is held for a time (queue, name), until when
-- window   HASH  for each such key, how many jobs were made under it, and the id of the latest: {jobs, id}
--
-- A `new_job` is a map of NewJob's fields; its payload is a place among the script's arguments.
local Enqueue = {}

-- constants: COLLECTED_LIMIT

local function window_of(queue, name, length)
  local place = pair(queue, name)
  local ends = tonumber(call('ZSCORE', key('windows'), place) or '')
  if not ends or ends <= NOW then
    return nil
  end
  -- If a window ends later than its whole length from now, the clock was set back since: shorten it.
  if ends > NOW + length then
    ends = NOW + length
    call('ZADD', key('windows'), ends, place)
  end
  local body = call('HGET', key('window'), place)
  if not body then
    return nil
  end
  local held = cmsgpack.unpack(body)
  return { ends = ends, jobs = held[1], id = held[2] }
end

local function put_window(queue, name, window)
  local place = pair(queue, name)
  call('ZADD', key('windows'), window.ends, place)
  call('HSET', key('window'), place, cmsgpack.pack({ window.jobs, window.id }))
end

-- Free the key that a job holds for a time, if no later job holds it.
function Enqueue.free_window(job)
  if job.merge and job.merge.type == 'unique' and job.merge.window then
    local place = pair(job.queue, JobIndexes.merge_name(job.merge))
    local held = call('HGET', key('window'), place)
    if held and cmsgpack.unpack(held)[2] == job.id then
      call('ZREM', key('windows'), place)
      call('HDEL', key('window'), place)
    end
  end
end

local function is_full(merge, calls, size)
  return calls >= merge.max_size or size >= COLLECTED_LIMIT
end

-- When a job is due into which a call is merged now. `first`: the time of its first call; `calls`: how many calls it
-- has with this one.
local function due_at(merge, first, calls, size)
  if merge.type == 'collect' and is_full(merge, calls, size) then
    return NOW
  end
  local latest = NOW + merge.delay
  return merge.max_wait and max(min(latest, min(first, NOW) + merge.max_wait), NOW) or latest
end

-- How many jobs of a key are examined at either end, the oldest and the newest.
local EDGE = 20

-- The oldest job into which a call with this key may be merged, or nil.
--
-- Of jobs that collect calls, all except the newest are full, unless calls of the same key disagree on the size. So a
-- backlog of full ones is not searched.
local function find_merge_target(queue, merge)
  local name = JobIndexes.merge_name(merge)
  local index = key('merge', pair(queue, name))
  local ids = first_of(index, EDGE)
  if #ids == EDGE then
    local newest = call('ZRANGE', index, -EDGE, -1)
    for _, id in ipairs(newest) do
      ids[#ids + 1] = id
    end
  end
  local oldest
  for _, id in ipairs(ids) do
    local job = Audit.checked_in('merge', queue, id, name)
    if job and (merge.type ~= 'collect' or not is_full(merge, job.collected, job.collected_bytes)) then
      oldest = job
      break
    end
  end
  if merge.type == 'unique' and merge.scope ~= 'queued' then
    for _, id in ipairs(first_of(key('busy', pair(queue, name)), EDGE)) do
      local other = Audit.checked_in('busy', queue, id, name)
      if other then
        return oldest and oldest.made < other.made and oldest or other
      end
    end
  end
  return oldest
end

-- The job into which a call with this key may be merged, or nil; jobs that are too old to start are expired first.
function Enqueue.merge_target(queue, merge)
  local there = find_merge_target(queue, merge)
  while there and there.state ~= 'active' and Record.is_expired(there) do
    Expiry.expire(there)
    there = find_merge_target(queue, merge)
  end
  return there
end

-- The id of the job that answers for a call.
local function answers_for(queue, id)
  return Sequence.has_merged_calls(queue) and call('HGET', key('answers', queue), id) or id
end

local function answer_for(new_job, job)
  Sequence.note_merged_call(job.queue)
  call('HSET', key('answers', job.queue), new_job.id, job.id)
  if call('RPUSH', key('calls', job.ref), new_job.id) > CALLS_KEPT then
    call('HDEL', key('answers', job.queue), call('LPOP', key('calls', job.ref)))
  end
end

-- Return the record of a new job before it enters its queue. `offset`: its position in the request.
local function new_record(new_job, id, run_at, offset)
  local collects = new_job.merge and new_job.merge.type == 'collect'
  local size = collects and #ARGV[new_job.payload] or nil
  return Record.new(pair(new_job.queue, id), {
    made = Sequence.next(),
    task = new_job.task,
    state = run_at > NOW and 'delayed' or 'waiting',
    headers = new_job.headers,
    policy = new_job.policy,
    parent = new_job.parent,
    tags = new_job.tags,
    -- The jobs of one request are a microsecond apart, so that they keep their order.
    score = FairQueue.score_at(max(run_at, NOW) + offset, new_job.boost or 0, new_job.lifo),
    priority = new_job.priority,
    boost = new_job.boost,
    lifo = new_job.lifo,
    fair_key = new_job.fair_key,
    weight = new_job.weight,
    run_at = run_at,
    ttl = new_job.ttl,
    expires_at = new_job.ttl and NOW + new_job.ttl,
    timeout = new_job.timeout,
    deadline = new_job.deadline,
    heartbeat_timeout = new_job.heartbeat_timeout,
    keys = new_job.keys,
    rates = new_job.rates,
    merge = new_job.merge,
    collected = collects and 1 or nil,
    collected_bytes = size,
    lease = new_job.lease,
    max_stalls = new_job.max_stalls,
    start_grace = new_job.start_grace,
    renewed = new_job.renewed,
    pinned = new_job.pinned,
    on_expire = new_job.on_expire,
    created = NOW,
    back = Sequence.clock_is_back(),
    schedule = new_job.schedule,
    tick = new_job.tick,
  })
end

local function put(job, payload, offset)
  if job.state == 'waiting' then
    job.score = FairQueue.score(job, max(job.run_at, NOW) + offset)
  end
  -- A collected payload will grow, so it gets a key of its own.
  Record.set_payload(job, payload, job.collected > 0)
  JobIndexes.add(job)
  Parking.apply_limits(job)
  Notifications.notify_queue(job.queue)
end

-- Replace the call of a waiting job by a later call (debounce); the job keeps its id.
local function replace_call(new_job, old, offset)
  answer_for(new_job, old)
  local job = new_record(new_job, old.id, due_at(new_job.merge, old.created, 1, 0), offset)
  job.created = min(old.created, NOW)
  job.back = job.back or job.created < NOW or nil
  job.fence = old.fence > 0 and old.fence or nil
  job.settled_fence = old.settled_fence > 0 and old.settled_fence or nil
  -- This keeps the merged calls, so that the job still answers for them.
  JobIndexes.drop(old)
  put(job, ARGV[new_job.payload], offset)
end

-- Add a call to those that a job has collected; return how many they are.
local function collect(new_job, into, offset)
  answer_for(new_job, into)
  local was_delayed = into.state == 'delayed'
  local calls, size = into.collected + 1, into.collected_bytes + #ARGV[new_job.payload]
  local run_at = due_at(new_job.merge, into.created, calls, size)
  call('APPEND', key('load', into.ref), ARGV[new_job.payload])
  local changes = {
    collected = calls,
    collected_bytes = size,
    load = into.load + #ARGV[new_job.payload],
    merge = new_job.merge,
    ttl = new_job.ttl or NONE,
    expires_at = new_job.ttl and NOW + new_job.ttl or NONE,
    created = min(into.created, NOW),
    back = into.back or into.created > NOW or nil,
  }
  if was_delayed or run_at > NOW then
    changes.state = run_at > NOW and 'delayed' or 'waiting'
    changes.parked_under = NONE
    changes.run_at = run_at
    changes.score = FairQueue.score_at(run_at + offset, into.boost, into.lifo)
    if was_delayed and changes.state == 'waiting' then
      changes.score = FairQueue.score(into, NOW + offset)
    end
  end
  JobIndexes.move(into, changes)
  if was_delayed or into.state == 'delayed' then
    Notifications.notify_queue(into.queue)
    Notifications.notify_job(into)
  end
  return calls
end

-- Merge a call into an existing job; return the result.
local function merge(new_job, into, offset)
  local named = new_job.merge.key
  local about = { queue = new_job.queue, id = into.id, task = new_job.task, ref = into.ref, starts = 0 }
  if new_job.merge.type == 'debounce' then
    replace_call(new_job, into, offset)
    EventLog.record_if_wanted(about, 'debounced', function()
      return { key = named, replaced_by = new_job.id }
    end)
    return { 'replaced', into.id }
  elseif new_job.merge.type == 'collect' then
    local count = collect(new_job, into, offset)
    EventLog.record_if_wanted(about, 'collected', function()
      return { key = named, count = count }
    end)
    return { 'collected', into.id }
  end
  about.id, about.ref = new_job.id, pair(new_job.queue, new_job.id)
  EventLog.record_if_wanted(about, 'deduplicated', function()
    return { key = named, existing_id = into.id }
  end)
  return { 'duplicate', into.id }
end

-- Count a job in the window of its throttle key; return nil, or the result for the call if the window is full.
local function throttled(new_job)
  local throttle = new_job.throttle
  if not throttle then
    return nil
  end
  local name = 'throttle:' .. throttle.key
  local window = window_of(new_job.queue, name, throttle.window)
  if not window then
    put_window(new_job.queue, name, { ends = NOW + throttle.window, jobs = 1, id = new_job.id })
    return nil
  end
  if window.jobs < throttle.most then
    put_window(new_job.queue, name, { ends = window.ends, jobs = window.jobs + 1, id = new_job.id })
    return nil
  end
  local wait = window.ends - NOW
  local ref = pair(new_job.queue, new_job.id)
  local about = { queue = new_job.queue, id = new_job.id, task = new_job.task, ref = ref, starts = 0 }
  EventLog.record_if_wanted(about, 'throttled', function()
    return { key = throttle.key, retry_in = wait / 1000000 }
  end)
  return { 'throttled', window.id, wait }
end

local function create(new_job, fence, settled_fence, offset)
  local held_for = new_job.merge and new_job.merge.type == 'unique' and new_job.merge.window
  local run_at = new_job.run_at or NOW + (new_job.delay or 0)
  if new_job.merge and new_job.merge.type ~= 'unique' then
    run_at = due_at(new_job.merge, NOW, 1, 0)
  end
  local job = new_record(new_job, new_job.id, run_at, offset)
  -- If the id had an earlier job, continue from its fence: an external resource may have seen that fence.
  job.fence, job.settled_fence = fence, settled_fence
  put(job, ARGV[new_job.payload], offset)
  EventLog.record_if_wanted(job, 'enqueued', function()
    return { due_at = job.run_at, priority = job.priority }
  end)
  if held_for then
    local name = JobIndexes.merge_name(new_job.merge)
    put_window(new_job.queue, name, { ends = NOW + held_for, jobs = 1, id = new_job.id })
  end
end

-- The job into which a call is merged by its key, or nil. A key that is held for a time may name a job that is gone.
local function merge_target_of(new_job)
  if not new_job.merge then
    return nil
  end
  if new_job.merge.type == 'unique' and new_job.merge.window then
    local window = window_of(new_job.queue, JobIndexes.merge_name(new_job.merge), new_job.merge.window)
    return window and { queue = new_job.queue, id = window.id, ref = pair(new_job.queue, window.id) }
  end
  return Enqueue.merge_target(new_job.queue, new_job.merge)
end

-- Enqueue a call once; return the result: {action, id, retry_in}.
function Enqueue.add(new_job, offset)
  local known = Record.get_in(new_job.queue, answers_for(new_job.queue, new_job.id))
  local fence, settled_fence
  if known then
    if not Record.is_over(known) then
      return { 'duplicate', known.id }
    end
    if known.id == new_job.id then
      fence = known.fence > 0 and known.fence or nil
      settled_fence = known.settled_fence > 0 and known.settled_fence or nil
    end
    Expiry.delete(known)
  end
  local there = merge_target_of(new_job)
  if there then
    return merge(new_job, there, offset)
  end
  local refused = throttled(new_job)
  if refused then
    return refused
  end
  create(new_job, fence, settled_fence, offset)
  return { 'created', new_job.id }
end
