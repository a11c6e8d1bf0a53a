-- requires: cell, hints, journal, shelf
-- How a job that has not started comes to an end: too old, or forgotten with the calls it answers for.
--
-- answers:<queue>      HASH  of each call that a job has taken in, the id of that job
-- calls:<queue>.<id>   LIST  the calls that a job has taken in
local Ends = {}

-- How many calls a job answers for, its own among them: all are forgotten with it.
function Ends.answers_for(job)
  return 1 + call('LLEN', key('calls', job.ref))
end

-- Forget a job, and the calls that it answers for.
function Ends.forget(job)
  local calls = key('calls', job.ref)
  local taken_in = call('LRANGE', calls, 0, -1)
  for from = 1, #taken_in, 1000 do
    call('HDEL', key('answers', job.queue), unpack(taken_in, from, min(from + 999, #taken_in)))
  end
  if #taken_in > 0 then
    call('UNLINK', calls)
  end
  Shelf.drop(job)
end

-- Expire a job that has waited for too long.
function Ends.expire(job)
  local ttl = job.ttl or 0
  local told = {
    ttl = ttl / 1000000,
    -- Counted from where its time to live began: at its enqueue, or when its last redrive was due.
    age = (NOW - (job.expires_at or NOW) + ttl) / 1000000,
    on_expire = job.on_expire,
  }
  if job.on_expire == 'discard' then
    call('HINCRBY', key('discarded'), job.queue, 1)
    Ends.forget(job)
  else
    Shelf.move(job, {
      state = 'expired',
      parked_under = NONE,
      quarantined = NONE,
      put_back_used = NONE,
      finished = NOW,
      -- What it says follows from the job's time to live; whoever reads the record writes it.
      error = NONE,
      reason = NONE,
      redrive_at = NONE,
    })
  end
  Journal.record_of(job, 'expired', told)
  Journal.tell_if_drained(job.queue)
  Hints.knock_job(job)
end
