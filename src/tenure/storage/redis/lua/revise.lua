#!lua flags=allow-oom
-- requires: redriving, changes, figures
-- revise: carry out each revision if the job's state allows it.
--
-- Request: a list of {kind, ref, ...}, with the fields of the revision by their names.
-- Answer: {verdict[, state[, holder]]} for each. `state`: the job's state before. `holder`: the id of the job that
-- holds the key of a job that is therefore not redriven.
local revise = {}

function revise.cancel(job, revision)
  if job.state == 'active' then
    if not job.cancel_at then
      local reason, by = revision.reason or NONE, revision.by or NONE
      JobIndexes.update(job, { cancel_at = NOW, cancel_reason = reason, cancel_by = by })
      Notifications.notify('owner:' .. job.owner)
    end
    return 'asked'
  elseif TERMINAL[job.state] then
    return 'refused'
  end
  local was = job.state
  JobIndexes.move(job, {
    state = 'cancelled',
    parked_under = NONE,
    quarantined = NONE,
    put_back_used = NONE,
    cancel_at = NOW,
    cancel_reason = revision.reason or NONE,
    cancel_by = revision.by or NONE,
    finished = NOW,
    reason = revision.reason or NONE,
  })
  EventLog.record_job_event(job, 'cancelled', { reason = revision.reason, by = revision.by, was = was })
  Figures.count_end(job, 'cancelled')
  EventLog.record_if_drained(job.queue)
  return 'done'
end

function revise.redrive(job, revision)
  if not TERMINAL[job.state] or job.state == 'completed' then
    return 'refused'
  end
  local holder = Redriving.holder(job)
  if holder then
    return 'refused', holder.id
  end
  Redriving.redrive(job, revision.delay, revision.by, false)
  return 'done'
end

function revise.delete(job, revision)
  local moved = Settings.get('queue', job.queue).moved
  if job.state == 'active' or revision.move and not (moved and moved.id == revision.move) then
    return 'refused'
  end
  Expiry.delete(job)
  Enqueue.free_window(job)
  EventLog.record_job_event(job, 'deleted', { by = revision.by, was = job.state })
  if not TERMINAL[job.state] then
    EventLog.record_if_drained(job.queue)
  end
  return 'done'
end

-- Change the time or the priority of a job that has not started.
function revise.reschedule(job, revision)
  if job.state ~= 'delayed' and job.state ~= 'waiting' then
    return 'refused'
  end
  local boost, delay = revision.boost or job.boost, revision.delay
  local run_at, came, later = job.run_at, FairQueue.enqueue_time(job), job.state == 'delayed'
  -- Without a delay, a waiting job must stay waiting: if the clock was set back, its old time might lie in the future.
  if delay then
    run_at = NOW + delay
    came, later = max(run_at, NOW), run_at > NOW
  end
  local score = FairQueue.score_at(came, boost, job.lifo)
  if delay and not later then
    -- It enters the queue again, with a score that follows from its new priority.
    score = FairQueue.score(setmetatable({ boost = boost }, { __index = job }), NOW)
  end
  JobIndexes.move(job, {
    state = later and 'delayed' or 'waiting',
    parked_under = not later and job.parked_under or NONE,
    run_at = run_at,
    priority = revision.priority or job.priority,
    boost = boost,
    score = score,
  })
  EventLog.record_if_wanted(job, 'rescheduled', function()
    return { due_at = job.run_at, priority = job.priority, by = revision.by }
  end)
  Notifications.notify_queue(job.queue)
  return 'done'
end

function revise.retain(job, revision)
  if job.state ~= 'completed' then
    return 'refused'
  end
  JobIndexes.move(job, { kept_until = NOW + revision.ttl })
  return 'done'
end

return Changes.run(function()
  local answers = {}
  for number, revision in ipairs(REQUEST) do
    local job = Record.get(revision.ref)
    if not job or Record.is_over(job) then
      answers[number] = { 'gone' }
    else
      local state = job.state
      local verdict, holder = 'changed', nil
      -- `ended`: the end that the caller saw in a listing (0: none).
      if not revision.ended or revision.ended == (job.finished or 0) then
        verdict, holder = revise[revision.kind](job, revision)
      end
      if verdict == 'done' then
        Notifications.notify_job(job)
      end
      answers[number] = { verdict, state, holder }
    end
  end
  Changes.unpark()
  return answers
end)
