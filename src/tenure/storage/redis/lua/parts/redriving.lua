-- requires: cell, folding, hints, journal, line, shelf, intake
-- How a job that was over begins anew, be it by a person's hand or by its rule. core/transition.py says the same.
local Redriving = {}

-- The unfinished job that holds a job's unique key, or nil.
function Redriving.holder(job)
  -- A key that is held for a time is held by no job.
  if job.merge and job.merge.type == 'unique' and not job.merge.window then
    return Intake.living(job.queue, job.merge)
  end
  return nil
end

-- Put a job that was over back in line, with new budgets and a new time to live; fence and starts go on rising.
function Redriving.redrive(job, delay, by, by_rule)
  local was, run_at = job.state, NOW + delay
  Shelf.move(job, {
    state = delay > 0 and 'delayed' or 'waiting',
    run_at = run_at,
    score = delay > 0 and Line.place(run_at, job.boost, job.lifo) or Line.score(job, run_at),
    expires_at = job.ttl and run_at + job.ttl or NONE,
    failures = NONE,
    stalls = NONE,
    releases = NONE,
    -- A person's redrive starts the rule's count over, or a job redriven by hand would have no rule left.
    redrives = by_rule and job.redrives + 1 or NONE,
    redrive_at = NONE,
    cancel_at = NONE,
    cancel_reason = NONE,
    cancel_by = NONE,
    finished = NONE,
    kept_until = NONE,
    -- Or it would run with neutral values, for example without its keys.
    error = Folding.is_unreadable(job) and job.error or NONE,
    reason = NONE,
    progress = NONE,
    progress_note = NONE,
  })
  Journal.record_of(job, 'redriven', { by = by, was = was })
  Hints.knock_queue(job.queue)
  Hints.knock_job(job)
end
