-- requires: cell, front
-- The order of a queue: the scores of jobs, and the virtual time that a fair queue has reached. core/order.py has the
-- reasons.
--
-- fair:<queue>          HASH  front; and for each priority (`b<boost>`) the virtual time reached, or empty
-- tags:<queue>.<boost>  ZSET  for each fair key, the virtual time of its last job in the queue
-- tenants:<queue>       HASH  how many jobs of each priority and fair key wait
local Line = {}

local SHARE = 1000000

function Line.place(at, boost, lifo)
  return (lifo and -at or at) - boost
end

function Line.came_at(job)
  local came = job.score + job.boost
  return job.lifo and -came or came
end

-- The places where jobs of a queue are parked, at most `limit`.
function Line.parked_places(queue, limit)
  return call('ZRANGEBYLEX', key('places'), '[' .. pair(queue, ''), '(' .. queue .. '\1', 'LIMIT', 0, limit)
end

function Line.is_empty(queue)
  return call('EXISTS', key('ready', queue)) == 0 and #Line.parked_places(queue, 1) == 0
end

-- Forget the virtual time of a queue: no job waits any more.
function Line.forget(queue)
  local fair = key('fair', queue)
  for _, field in ipairs(call('HKEYS', fair)) do
    if starts_with(field, 'b') then
      call('UNLINK', key('tags', pair(queue, string.sub(field, 2))))
    end
  end
  call('UNLINK', fair)
  Front.note(queue, false)
end

-- The virtual time that a fair queue has reached for jobs of a priority; nil if the queue is not fair.
function Line.start(queue, boost)
  local front = Front.of(queue)
  return front and max(front, tonumber(call('HGET', key('fair', queue), 'b' .. boost) or '') or front) or nil
end

-- The score of a job that enters its queue, as if at an instant.
function Line.score(job, at)
  local queue = job.queue
  if Front.of(queue) and Line.is_empty(queue) then
    Line.forget(queue)
  end
  if job.lifo then
    return Line.place(at, job.boost, true)
  end
  if job.fair_key and not Front.of(queue) then
    -- A job with an earlier instant must not start the virtual time in the past.
    Front.note(queue, max(at, NOW))
    call('HSET', key('fair', queue), 'front', Front.of(queue))
  end
  local start = Line.start(queue, job.boost)
  if start then
    local tenant = job.fair_key or ''
    local tags = key('tags', pair(queue, job.boost))
    local waits = not job.fair_key or call('HEXISTS', key('tenants', queue), pair(job.boost, tenant)) == 1
    local last = waits and tonumber(call('ZSCORE', tags, tenant) or '') or start
    at = max(start, last) + floor(SHARE / job.weight)
    call('ZADD', tags, at, tenant)
    call('HSETNX', key('fair', queue), 'b' .. job.boost, '')
  end
  return Line.place(at, job.boost)
end

-- The score of a job that is put back without a delay: its old one, or an earlier one if the queue has not got that
-- far.
function Line.score_again(job)
  local reached = Line.start(job.queue, job.boost) or NOW
  return job.lifo and job.score or min(job.score, Line.place(reached, job.boost))
end

-- Advance the virtual time of a fair queue to a job that was started.
function Line.given_out(job)
  local front = Front.of(job.queue)
  if front and not job.lifo then
    local fair, virtual = key('fair', job.queue), job.score + job.boost
    local reached = max(tonumber(call('HGET', fair, 'b' .. job.boost) or '') or virtual, virtual)
    Front.note(job.queue, max(front, job.score + min(job.boost, 0)))
    call('HSET', fair, 'front', Front.of(job.queue), 'b' .. job.boost, reached)
  end
end

-- Change the count of waiting jobs of a fair key.
function Line.count(job, more)
  local tenants, tenant = key('tenants', job.queue), pair(job.boost, job.fair_key)
  if call('HINCRBY', tenants, tenant, more) == 0 then
    call('HDEL', tenants, tenant)
  end
end
