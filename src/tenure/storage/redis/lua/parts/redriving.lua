-- requires: prelude, record_codec, notifications, event_log, fair_queue, job_indexes, enqueue
-- Redrives finished jobs, by an operator's request or by the job's rule. core/transition.py has the same rules.
local Redriving = {}

-- The unfinished job that holds a job's unique key, or nil.
function Redriving.holder(job)
  -- A unique key with a window is held for a time, not by a job.
  if job.merge and job.merge.type == 'unique' and not job.merge.window then
    return Enqueue.merge_target(job.queue, job.merge)
  end
  return nil
end

-- Put a finished job back into its queue, with new budgets and a new time to live; its fence and starts keep rising.
function Redriving.redrive(job, delay, by, by_rule)
  local was, run_at = job.state, NOW + delay
  JobIndexes.move(job, {
    state = delay > 0 and 'delayed' or 'waiting',
    run_at = run_at,
    score = delay > 0 and FairQueue.score_at(run_at, job.boost, job.lifo) or FairQueue.score(job, run_at),
    expires_at = job.ttl and run_at + job.ttl or NONE,
    failures = NONE,
    stalls = NONE,
    releases = NONE,
    -- An operator's redrive resets the rule's count; otherwise the rule might not apply to the job any more.
    redrives = by_rule and job.redrives + 1 or NONE,
    redrive_at = NONE,
    cancel_at = NONE,
    cancel_reason = NONE,
    cancel_by = NONE,
    finished = NONE,
    kept_until = NONE,
    -- Keep an "unreadable" error; without it the job would run with neutral values, for example without its keys.
    error = RecordCodec.is_unreadable(job) and job.error or NONE,
    reason = NONE,
    fault = NONE,
    progress = NONE,
    progress_note = NONE,
  })
  EventLog.record_job_event(job, 'redriven', { by = by, was = was })
  Notifications.notify_queue(job.queue)
  Notifications.notify_job(job)
end
