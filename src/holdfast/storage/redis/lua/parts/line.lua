-- requires: cell, record
-- Where in line a job stands: its score, and how far a fair line has got in virtual time. core/order.py says why.
--
-- fair:<queue>          HASH  front, and of each priority (`b<boost>`) the virtual instant reached, empty before the first
-- tags:<queue>.<boost>  ZSET  of each tenant the virtual instant of its last job in line
-- tenants:<queue>       HASH  how many jobs of each priority and tenant wait
local Line = {}

local SHARE = 1000000

function Line.place(at, boost, lifo)
  return (lifo and -at or at) - boost
end

function Line.came_at(job)
  local came = job.score + job.boost
  return job.lifo and -came or came
end

-- Whether anybody of a queue is parked; and under what, from a name on.
function Line.parked_places(queue, limit)
  return call('ZRANGEBYLEX', key('places'), '[' .. pair(queue, ''), '(' .. queue .. '\1', 'LIMIT', 0, limit)
end

function Line.is_empty(queue)
  return call('EXISTS', key('ready', queue)) == 0 and #Line.parked_places(queue, 1) == 0
end

-- Forget how far a line has got: nobody waits any more.
function Line.forget(queue)
  local fair = key('fair', queue)
  local fields = call('HKEYS', fair)
  if #fields > 0 then
    for _, field in ipairs(fields) do
      if starts_with(field, 'b') then
        call('UNLINK', key('tags', pair(queue, string.sub(field, 2))))
      end
    end
    call('UNLINK', fair)
  end
end

-- The virtual instant that a fair line has got to for jobs of a priority; nil where it is not fair.
function Line.start(queue, boost)
  local got = call('HMGET', key('fair', queue), 'front', 'b' .. boost)
  local front = tonumber(got[1])
  return front and max(front, tonumber(got[2] or '') or front)
end

-- The score of a job that comes into its queue's line, as if at an instant.
function Line.score(job, at)
  local queue = job.queue
  if Line.is_empty(queue) then
    Line.forget(queue)
  end
  if job.lifo then
    return Line.place(at, job.boost, true)
  end
  if job.fair_key then
    -- Who comes in late makes nobody begin in the past.
    call('HSETNX', key('fair', queue), 'front', max(at, NOW))
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

-- The score of a job that comes back at once: where it stood, or where the line has got to before that.
function Line.score_again(job)
  local reached = Line.start(job.queue, job.boost) or NOW
  return job.lifo and job.score or min(job.score, Line.place(reached, job.boost))
end

-- Note how far a line has got, where it counts in virtual time.
function Line.given_out(job)
  if job.lifo then
    return
  end
  local fair = key('fair', job.queue)
  local got = call('HMGET', fair, 'front', 'b' .. job.boost)
  local front = tonumber(got[1])
  if front then
    local virtual = job.score + job.boost
    local reached = max(tonumber(got[2] or '') or virtual, virtual)
    call('HSET', fair, 'front', max(front, job.score + min(job.boost, 0)), 'b' .. job.boost, reached)
  end
end

-- Count one of the waiting more or less.
function Line.count(job, more)
  local tenants, tenant = key('tenants', job.queue), pair(job.boost, job.fair_key)
  if call('HINCRBY', tenants, tenant, more) == 0 then
    call('HDEL', tenants, tenant)
  end
end
