#!lua flags=allow-oom
-- requires: redriving, changes, figures, waiting, outbox, inbox, transaction
-- revise: carry out each revision if the job's state allows it.
--
-- Request: a list of {kind, ref, ...}, with the fields of the revision by their names.
-- Answer: {verdict[, state[, holder]]} for each. `state`: the job's state before. `holder`: the ref of the job that
-- holds the key of a job that is therefore not redriven, or that must be redriven instead.
-- constants: SIGNAL
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
    return 'refused', holder.ref
  end
  if job.wait then
    local missing = Waiting.missing_job(job, revision.gone)
    if missing then
      return 'refused', missing
    end
    Waiting.redrive(job, revision.delay, revision.by, false)
  else
    Redriving.redrive(job, revision.delay, revision.by, false)
  end
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
    JobIndexes.note_ended(job)
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

-- Put a token into the job's inbox. `body`: the place of the content of a signal among the arguments.
function revise.deliver(job, revision)
  local body = revision.body and ARGV[revision.body]
  local token = { box = revision.box, key = revision.key, outcome = revision.outcome, body = body }
  if starts_with(revision.box, SIGNAL) and (TERMINAL[job.state] or Inbox.is_full(job, token)) then
    return 'refused'
  end
  if not Waiting.deliver(job.ref, token) then
    Transaction.note_repeated()
  end
  return 'done'
end

-- Say how many keys a box of the job's inbox will have.
function revise.seal(job, revision)
  if Inbox.seal(job, revision.box, revision.total) then
    Waiting.note_arrival(job)
  end
  return 'done'
end

-- Add dependents to the job; if it has ended, notify them.
function revise.subscribe(job, revision)
  Waiting.add_dependents(job.ref, revision.dependents)
  Waiting.deliver_immediate()
  return 'done'
end

return Changes.run(function()
  local answers = {}
  for number, revision in ipairs(REQUEST) do
    local job = revision.kind ~= 'advance' and Record.get(revision.ref)
    if revision.kind == 'advance' then
      -- The job itself may be deleted.
      answers[number] = { Outbox.advance(revision.ref, revision.number, revision.cursor, revision.delay or 0) }
    elseif not job or Record.is_over(job) then
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
        Changes.hand_over()
      end
      answers[number] = { verdict, state, holder }
    end
  end
  Changes.unpark()
  return answers
end)
