-- requires: cell, record, hints, journal, making, line, shelf, audit, parking, ends
-- Enqueues a call: as a new job, or merged into an existing one. storage/memory/enqueue.py has the same rules, with
-- reasons.
--
-- windows  ZSET  for each key that is held for a time (queue, name), until when
-- window   HASH  for each such key, how many jobs were made under it, and the id of the latest: {jobs, id}
--
-- A `wish` is a new job as a map of NewJob's fields; its payload is a place among the script's arguments.
local Intake = {}

local GATHERED_LIMIT = 8 * 1024 * 1024

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
function Intake.free_window(job)
  if job.merge and job.merge.type == 'unique' and job.merge.window then
    local place = pair(job.queue, Shelf.merge_name(job.merge))
    local held = call('HGET', key('window'), place)
    if held and cmsgpack.unpack(held)[2] == job.id then
      call('ZREM', key('windows'), place)
      call('HDEL', key('window'), place)
    end
  end
end

local function is_full(merge, calls, size)
  return calls >= merge.max_size or size >= GATHERED_LIMIT
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
local function come_to(queue, merge)
  local name = Shelf.merge_name(merge)
  local index = key('merge', pair(queue, name))
  local ids = first_of(index, EDGE)
  if #ids == EDGE then
    local youngest = call('ZRANGE', index, -EDGE, -1)
    for _, id in ipairs(youngest) do
      ids[#ids + 1] = id
    end
  end
  local eldest
  for _, id in ipairs(ids) do
    local job = Audit.known_in('merge', queue, id, name)
    if job and (merge.type ~= 'collect' or not is_full(merge, job.gathered, job.gathered_bytes)) then
      eldest = job
      break
    end
  end
  if merge.type == 'unique' and merge.scope ~= 'queued' then
    for _, id in ipairs(first_of(key('busy', pair(queue, name)), EDGE)) do
      local other = Audit.known_in('busy', queue, id, name)
      if other then
        return eldest and eldest.made < other.made and eldest or other
      end
    end
  end
  return eldest
end

-- The job into which a call with this key may be merged, or nil; jobs that are too old to start are expired first.
function Intake.living(queue, merge)
  local there = come_to(queue, merge)
  while there and there.state ~= 'active' and Record.lapsed(there) do
    Ends.expire(there)
    there = come_to(queue, merge)
  end
  return there
end

-- The id of the job that answers for a call.
local function answers_for(queue, id)
  return Making.anybody_answers_in(queue) and call('HGET', key('answers', queue), id) or id
end

local function answer_for(wish, job)
  Making.note_answers_in(job.queue)
  call('HSET', key('answers', job.queue), wish.id, job.id)
  if call('RPUSH', key('calls', job.ref), wish.id) > CALLS_KEPT then
    call('HDEL', key('answers', job.queue), call('LPOP', key('calls', job.ref)))
  end
end

-- Return the record of a new job before it enters its queue. `offset`: its position in the request.
local function wished(wish, id, run_at, offset)
  local collects = wish.merge and wish.merge.type == 'collect'
  local size = collects and #ARGV[wish.payload] or nil
  return Record.new(pair(wish.queue, id), {
    made = Making.next_made(),
    task = wish.task,
    state = run_at > NOW and 'delayed' or 'waiting',
    headers = wish.headers,
    policy = wish.policy,
    parent = wish.parent,
    tags = wish.tags,
    -- The jobs of one request are a microsecond apart, so that they keep their order.
    score = Line.place(max(run_at, NOW) + offset, wish.boost or 0, wish.lifo),
    priority = wish.priority,
    boost = wish.boost,
    lifo = wish.lifo,
    fair_key = wish.fair_key,
    weight = wish.weight,
    run_at = run_at,
    ttl = wish.ttl,
    expires_at = wish.ttl and NOW + wish.ttl,
    timeout = wish.timeout,
    deadline = wish.deadline,
    heartbeat_timeout = wish.heartbeat_timeout,
    keys = wish.keys,
    rates = wish.rates,
    merge = wish.merge,
    gathered = collects and 1 or nil,
    gathered_bytes = size,
    lease = wish.lease,
    max_stalls = wish.max_stalls,
    start_grace = wish.start_grace,
    renewed = wish.renewed,
    pinned = wish.pinned,
    on_expire = wish.on_expire,
    created = NOW,
    back = Making.is_back(),
    schedule = wish.schedule,
    tick = wish.tick,
  })
end

local function put(job, payload, offset)
  if job.state == 'waiting' then
    job.score = Line.score(job, max(job.run_at, NOW) + offset)
  end
  -- A collected payload will grow, so it gets a key of its own.
  Record.put_payload(job, payload, job.gathered > 0)
  Shelf.add(job)
  Parking.limit(job)
  Hints.knock_queue(job.queue)
end

-- Replace the call of a waiting job by a later call (debounce); the job keeps its id.
local function take_the_place(wish, old, offset)
  answer_for(wish, old)
  local job = wished(wish, old.id, due_at(wish.merge, old.created, 1, 0), offset)
  job.created = min(old.created, NOW)
  job.back = job.back or job.created < NOW or nil
  job.fence = old.fence > 0 and old.fence or nil
  job.settled_fence = old.settled_fence > 0 and old.settled_fence or nil
  -- This keeps the merged calls, so that the job still answers for them.
  Shelf.drop(old)
  put(job, ARGV[wish.payload], offset)
end

-- Add a call to those that a job has collected; return how many they are.
local function gather(wish, into, offset)
  answer_for(wish, into)
  local was_delayed = into.state == 'delayed'
  local calls, size = into.gathered + 1, into.gathered_bytes + #ARGV[wish.payload]
  local run_at = due_at(wish.merge, into.created, calls, size)
  call('APPEND', key('load', into.ref), ARGV[wish.payload])
  local changes = {
    gathered = calls,
    gathered_bytes = size,
    load = into.load + #ARGV[wish.payload],
    merge = wish.merge,
    ttl = wish.ttl or NONE,
    expires_at = wish.ttl and NOW + wish.ttl or NONE,
    created = min(into.created, NOW),
    back = into.back or into.created > NOW or nil,
  }
  if was_delayed or run_at > NOW then
    changes.state = run_at > NOW and 'delayed' or 'waiting'
    changes.parked_under = NONE
    changes.run_at = run_at
    changes.score = Line.place(run_at + offset, into.boost, into.lifo)
    if was_delayed and changes.state == 'waiting' then
      changes.score = Line.score(into, NOW + offset)
    end
  end
  Shelf.move(into, changes)
  if was_delayed or into.state == 'delayed' then
    Hints.knock_queue(into.queue)
    Hints.knock_job(into)
  end
  return calls
end

-- Merge a call into an existing job; return the result.
local function merge(wish, into, offset)
  local about, named = { queue = wish.queue, id = into.id, task = wish.task, ref = into.ref, starts = 0 }, wish.merge.key
  if wish.merge.type == 'debounce' then
    take_the_place(wish, into, offset)
    Journal.tell(about, 'debounced', function()
      return { key = named, replaced_by = wish.id }
    end)
    return { 'replaced', into.id }
  elseif wish.merge.type == 'collect' then
    local count = gather(wish, into, offset)
    Journal.tell(about, 'collected', function()
      return { key = named, count = count }
    end)
    return { 'gathered', into.id }
  end
  about.id, about.ref = wish.id, pair(wish.queue, wish.id)
  Journal.tell(about, 'deduplicated', function()
    return { key = named, existing_id = into.id }
  end)
  return { 'duplicate', into.id }
end

-- Count a job in the window of its throttle key; return nil, or the result for the call if the window is full.
local function throttled(wish)
  local asked = wish.throttle
  if not asked then
    return nil
  end
  local name = 'throttle:' .. asked.key
  local window = window_of(wish.queue, name, asked.window)
  if not window then
    put_window(wish.queue, name, { ends = NOW + asked.window, jobs = 1, id = wish.id })
    return nil
  end
  if window.jobs < asked.most then
    put_window(wish.queue, name, { ends = window.ends, jobs = window.jobs + 1, id = wish.id })
    return nil
  end
  local wait = window.ends - NOW
  local about = { queue = wish.queue, id = wish.id, task = wish.task, ref = pair(wish.queue, wish.id), starts = 0 }
  Journal.tell(about, 'throttled', function()
    return { key = asked.key, retry_in = wait / 1000000 }
  end)
  return { 'throttled', window.id, wait }
end

local function create(wish, fence, settled_fence, offset)
  local held_for = wish.merge and wish.merge.type == 'unique' and wish.merge.window
  local run_at = wish.run_at or NOW + (wish.delay or 0)
  if wish.merge and wish.merge.type ~= 'unique' then
    run_at = due_at(wish.merge, NOW, 1, 0)
  end
  local job = wished(wish, wish.id, run_at, offset)
  -- If the id had an earlier job, continue from its fence: an external resource may have seen that fence.
  job.fence, job.settled_fence = fence, settled_fence
  put(job, ARGV[wish.payload], offset)
  Journal.tell(job, 'enqueued', function()
    return { due_at = job.run_at, priority = job.priority }
  end)
  if held_for then
    put_window(wish.queue, Shelf.merge_name(wish.merge), { ends = NOW + held_for, jobs = 1, id = wish.id })
  end
end

-- The job into which a call is merged by its key, or nil. A key that is held for a time may name a job that is gone.
local function come_to_by(wish)
  if not wish.merge then
    return nil
  end
  if wish.merge.type == 'unique' and wish.merge.window then
    local window = window_of(wish.queue, Shelf.merge_name(wish.merge), wish.merge.window)
    return window and { queue = wish.queue, id = window.id, ref = pair(wish.queue, window.id) }
  end
  return Intake.living(wish.queue, wish.merge)
end

-- Enqueue a call once; return the result: {made, id, retry_in}.
function Intake.remember(wish, offset)
  local known = Record.of(wish.queue, answers_for(wish.queue, wish.id))
  local fence, settled_fence
  if known then
    if not Record.past(known) then
      return { 'duplicate', known.id }
    end
    if known.id == wish.id then
      fence = known.fence > 0 and known.fence or nil
      settled_fence = known.settled_fence > 0 and known.settled_fence or nil
    end
    Ends.forget(known)
  end
  local there = come_to_by(wish)
  if there then
    return merge(wish, there, offset)
  end
  local refused = throttled(wish)
  if refused then
    return refused
  end
  create(wish, fence, settled_fence, offset)
  return { 'created', wish.id }
end
