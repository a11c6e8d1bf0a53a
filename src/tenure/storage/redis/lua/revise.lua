#!lua flags=allow-oom
-- requires: redriving, work
-- revise: carry out each revision if the job's state allows it.
--
-- Request: a list of {kind, ref, ...}, with the fields of the revision by their names.
-- Answer: {verdict[, state[, holder]]} for each. `state`: the job's state before. `holder`: the id of the job that
-- holds the key of a job that is therefore not redriven.
local revise = {}

function revise.cancel(job, asked)
  if job.state == 'active' then
    if not job.cancel_at then
      Shelf.touch(job, { cancel_at = NOW, cancel_reason = asked.reason or NONE, cancel_by = asked.by or NONE })
      Hints.knock('owner:' .. job.owner)
    end
    return 'asked'
  elseif TERMINAL[job.state] then
    return 'refused'
  end
  local was = job.state
  Shelf.move(job, {
    state = 'cancelled',
    parked_under = NONE,
    quarantined = NONE,
    put_back_used = NONE,
    cancel_at = NOW,
    cancel_reason = asked.reason or NONE,
    cancel_by = asked.by or NONE,
    finished = NOW,
    reason = asked.reason or NONE,
  })
  Journal.record_of(job, 'cancelled', { reason = asked.reason, by = asked.by, was = was })
  Journal.tell_if_drained(job.queue)
  return 'done'
end

function revise.redrive(job, asked)
  if not TERMINAL[job.state] or job.state == 'completed' then
    return 'refused'
  end
  local holder = Redriving.holder(job)
  if holder then
    return 'refused', holder.id
  end
  Redriving.redrive(job, asked.delay, asked.by, false)
  return 'done'
end

function revise.delete(job, asked)
  if job.state == 'active' then
    return 'refused'
  end
  Ends.forget(job)
  Intake.free_window(job)
  Journal.record_of(job, 'deleted', { by = asked.by, was = job.state })
  if not TERMINAL[job.state] then
    Journal.tell_if_drained(job.queue)
  end
  return 'done'
end

-- Change the time or the priority of a job that has not started.
function revise.reschedule(job, asked)
  if job.state ~= 'delayed' and job.state ~= 'waiting' then
    return 'refused'
  end
  local boost, delay = asked.boost or job.boost, asked.delay
  local run_at, came, later = job.run_at, Line.came_at(job), job.state == 'delayed'
  -- Without a delay, a waiting job must stay waiting: if the clock was set back, its old time might lie in the future.
  if delay then
    run_at = NOW + delay
    came, later = max(run_at, NOW), run_at > NOW
  end
  local score = Line.place(came, boost, job.lifo)
  if delay and not later then
    -- It enters the queue again, with a score that follows from its new priority.
    score = Line.score(setmetatable({ boost = boost }, { __index = job }), NOW)
  end
  Shelf.move(job, {
    state = later and 'delayed' or 'waiting',
    parked_under = not later and job.parked_under or NONE,
    run_at = run_at,
    priority = asked.priority or job.priority,
    boost = boost,
    score = score,
  })
  Journal.tell(job, 'rescheduled', function()
    return { due_at = job.run_at, priority = job.priority, by = asked.by }
  end)
  Hints.knock_queue(job.queue)
  return 'done'
end

function revise.retain(job, asked)
  if job.state ~= 'completed' then
    return 'refused'
  end
  Shelf.move(job, { kept_until = NOW + asked.ttl })
  return 'done'
end

return Work.carry_out(function()
  local answers = {}
  for number, asked in ipairs(ASKED) do
    local job = Record.at(asked.ref)
    if not job or Record.past(job) then
      answers[number] = { 'gone' }
    else
      local state = job.state
      local verdict, holder = 'refused', nil
      -- `ended` names the end that the caller saw in a listing; if the job has ended again since, refuse.
      if not asked.ended or asked.ended == job.finished then
        verdict, holder = revise[asked.kind](job, asked)
      end
      if verdict == 'done' then
        Hints.knock_job(job)
      end
      answers[number] = { verdict, state, holder }
    end
  end
  Work.let_in()
  return answers
end)
