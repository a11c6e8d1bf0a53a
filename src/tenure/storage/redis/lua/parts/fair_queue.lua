-- requires: prelude, virtual_time
-- The order of a queue: the scores of jobs, and the virtual time that a fair queue has reached. core/order.py has the
-- reasons.
--
-- fair:<queue>          HASH  front; and for each priority (`b<boost>`) the virtual time reached, or empty
-- tags:<queue>.<boost>  ZSET  for each fair key, the virtual time of its last job in the queue
-- tenants:<queue>       HASH  how many jobs of each priority and fair key wait
local FairQueue = {}

local SHARE = 1000000

function FairQueue.score_at(at, boost, lifo)
  return (lifo and -at or at) - boost
end

function FairQueue.enqueue_time(job)
  local came = job.score + job.boost
  return job.lifo and -came or came
end

-- The places where jobs of a queue are parked, at most `limit`.
function FairQueue.parked_places(queue, limit)
  return call('ZRANGEBYLEX', key('places'), '[' .. pair(queue, ''), '(' .. queue .. '\1', 'LIMIT', 0, limit)
end

function FairQueue.is_empty(queue)
  return call('EXISTS', key('ready', queue)) == 0 and #FairQueue.parked_places(queue, 1) == 0
end

-- Forget the virtual time of a queue: no job waits any more.
function FairQueue.reset(queue)
  local fair = key('fair', queue)
  for _, field in ipairs(call('HKEYS', fair)) do
    if starts_with(field, 'b') then
      call('UNLINK', key('tags', pair(queue, string.sub(field, 2))))
    end
  end
  call('UNLINK', fair)
  VirtualTime.note(queue, false)
end

-- The virtual time that a fair queue has reached for jobs of a priority; nil if the queue is not fair.
function FairQueue.start_time(queue, boost)
  local front = VirtualTime.of(queue)
  return front and max(front, tonumber(call('HGET', key('fair', queue), 'b' .. boost) or '') or front) or nil
end

-- The score of a job that enters its queue, as if at an instant.
function FairQueue.score(job, at)
  local queue = job.queue
  if VirtualTime.of(queue) and FairQueue.is_empty(queue) then
    FairQueue.reset(queue)
  end
  if job.lifo then
    return FairQueue.score_at(at, job.boost, true)
  end
  if job.fair_key and not VirtualTime.of(queue) then
    -- A job with an earlier instant must not start the virtual time in the past.
    VirtualTime.note(queue, max(at, NOW))
    call('HSET', key('fair', queue), 'front', VirtualTime.of(queue))
  end
  local start = FairQueue.start_time(queue, job.boost)
  if start then
    local tenant = job.fair_key or ''
    local tags = key('tags', pair(queue, job.boost))
    local waits = not job.fair_key or call('HEXISTS', key('tenants', queue), pair(job.boost, tenant)) == 1
    local last = waits and tonumber(call('ZSCORE', tags, tenant) or '') or start
    at = max(start, last) + floor(SHARE / job.weight)
    call('ZADD', tags, at, tenant)
    call('HSETNX', key('fair', queue), 'b' .. job.boost, '')
  end
  return FairQueue.score_at(at, job.boost)
end

-- The score of a job that is put back without a delay: its old one, or an earlier one if the queue has not got that
-- far.
function FairQueue.score_of_put_back(job)
  local reached = FairQueue.start_time(job.queue, job.boost) or NOW
  return job.lifo and job.score or min(job.score, FairQueue.score_at(reached, job.boost))
end

-- Advance the virtual time of a fair queue to a job that was started.
function FairQueue.note_started(job)
  local front = VirtualTime.of(job.queue)
  if front and not job.lifo then
    local fair, virtual = key('fair', job.queue), job.score + job.boost
    local reached = max(tonumber(call('HGET', fair, 'b' .. job.boost) or '') or virtual, virtual)
    VirtualTime.note(job.queue, max(front, job.score + min(job.boost, 0)))
    call('HSET', fair, 'front', VirtualTime.of(job.queue), 'b' .. job.boost, reached)
  end
end

-- Change the count of waiting jobs of a fair key.
function FairQueue.count_waiting(job, more)
  local tenants, tenant = key('tenants', job.queue), pair(job.boost, job.fair_key)
  if call('HINCRBY', tenants, tenant, more) == 0 then
    call('HDEL', tenants, tenant)
  end
end
