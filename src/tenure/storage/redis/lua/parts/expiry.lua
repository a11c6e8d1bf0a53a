-- requires: prelude, notifications, event_log, job_indexes, figures
-- Ends jobs that have not started: expires them, or deletes them with the calls that were merged into them.
--
-- answers:<queue>      HASH  for each call that was merged into a job, the id of that job
-- calls:<queue>.<id>   LIST  the calls that were merged into a job
local Expiry = {}

-- How many calls a job answers for, its own included; all of them are deleted with it.
function Expiry.count_calls(job)
  return 1 + call('LLEN', key('calls', job.ref))
end

-- Delete a job, and the calls that it answers for.
function Expiry.delete(job)
  local calls = key('calls', job.ref)
  local taken_in = call('LRANGE', calls, 0, -1)
  for from = 1, #taken_in, 1000 do
    call('HDEL', key('answers', job.queue), unpack(taken_in, from, min(from + 999, #taken_in)))
  end
  if #taken_in > 0 then
    call('UNLINK', calls)
  end
  JobIndexes.drop(job)
end

-- Expire a job that has waited for too long.
function Expiry.expire(job)
  local ttl = job.ttl or 0
  local event = {
    ttl = ttl / 1000000,
    -- Counted from the start of its time to live: its enqueue, or the time when its last redrive was due.
    age = (NOW - (job.expires_at or NOW) + ttl) / 1000000,
    on_expire = job.on_expire,
  }
  if job.on_expire == 'discard' then
    call('HINCRBY', key('discarded'), job.queue, 1)
    Expiry.delete(job)
  else
    JobIndexes.move(job, {
      state = 'expired',
      parked_under = NONE,
      quarantined = NONE,
      put_back_used = NONE,
      finished = NOW,
      -- The error text follows from the job's time to live; the Python code that reads the record makes it.
      error = NONE,
      reason = NONE,
      redrive_at = NONE,
    })
  end
  EventLog.record_job_event(job, 'expired', event)
  Figures.count_end(job, 'expired')
  EventLog.record_if_drained(job.queue)
  Notifications.notify_job(job)
end
