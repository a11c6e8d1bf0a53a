-- requires: cell, record, hints, journal, making, line, shelf, audit, parking, ends
-- How a call is taken in: as a job of its own, or by one that is there. storage/memory/enqueue.py says the same, and why.
--
-- windows  ZSET  of each key that is held for a time (queue, name) until when
-- window   HASH  of each how many jobs were made under it, and the id of the latest: {jobs, id}
--
-- A wish is a map of NewJob's fields; its payload is a place among the script's arguments.
local Intake = {}

local GATHERED_LIMIT = 8 * 1024 * 1024

local function window_of(queue, name, length)
  local place = pair(queue, name)
  local ends = tonumber(call('ZSCORE', key('windows'), place) or '')
  if not ends or ends <= NOW then
    return nil
  end
  -- One that ends further ahead than it is long began before the clock was set back.
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

-- Give back the key that a job held for a time, if it still is that job's.
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

-- When a job is due that was called for now, the so-manieth time; `first`: when it first was, by its record.
local function due_at(merge, first, calls, size)
  if merge.type == 'collect' and is_full(merge, calls, size) then
    return NOW
  end
  local latest = NOW + merge.delay
  return merge.max_wait and max(min(latest, min(first, NOW) + merge.max_wait), NOW) or latest
end

-- How many jobs of a key are looked at from either end, the eldest and the youngest.
local EDGE = 20

-- The eldest job that a call with this key may come to, or nil.
--
-- Of those that gather, all but the youngest are full, unless calls of one key do not agree how many that are. So a
-- backlog of full ones is not walked.
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

-- The job that may be come to by a key; what has waited for too long is expired first.
function Intake.living(queue, merge)
  local there = come_to(queue, merge)
  while there and there.state ~= 'active' and Record.lapsed(there) do
    Ends.expire(there)
    there = come_to(queue, merge)
  end
  return there
end

-- The job that answers for a call, by its id.
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

-- The record of a new job, the `offset`-th of its call, as it stands before it comes into line.
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
    -- The jobs of one call are a microsecond apart, so that they stay in the order they were given.
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
  -- What is gathered goes on growing.
  Record.put_payload(job, payload, job.gathered > 0)
  Shelf.add(job)
  Parking.limit(job)
  Hints.knock_queue(job.queue)
end

-- Put a later call in the place of the one that a job was waiting with; the job stays the one it was.
local function take_the_place(wish, old, offset)
  answer_for(wish, old)
  local job = wished(wish, old.id, due_at(wish.merge, old.created, 1, 0), offset)
  job.created = min(old.created, NOW)
  job.back = job.back or job.created < NOW or nil
  job.fence = old.fence > 0 and old.fence or nil
  job.settled_fence = old.settled_fence > 0 and old.settled_fence or nil
  -- Without its calls, so that they go on being answered for.
  Shelf.drop(old)
  put(job, ARGV[wish.payload], offset)
end

-- Add a call to those that a job has gathered; return how many they are.
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

-- Let a call come to a job that is there.
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

-- Count a job against the window of its key, or return what a call is told that finds it full.
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
  -- The id's next job goes on from the fence of the one before it: an outside resource may have seen that.
  job.fence, job.settled_fence = fence, settled_fence
  put(job, ARGV[wish.payload], offset)
  Journal.tell(job, 'enqueued', function()
    return { due_at = job.run_at, priority = job.priority }
  end)
  if held_for then
    put_window(wish.queue, Shelf.merge_name(wish.merge), { ends = NOW + held_for, jobs = 1, id = wish.id })
  end
end

-- The job that a call comes to by its merge key, or nil; one that is held for a time may name a job that is gone.
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

-- Remember a call once; return what was made of it: {made, id, retry_in}.
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
