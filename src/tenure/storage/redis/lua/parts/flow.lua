-- requires: cell, folding, record, settings, journal, line, lease, rates, shelf, audit, ends
-- From waiting to active and back: what is claimed, promoted, settled. storage/memory/model.py says the same.
local Flow = {}

-- Let a delayed job come into line; one that is too old by now expires.
function Flow.promote(job)
  if Record.lapsed(job) then
    Ends.expire(job)
  else
    Shelf.move(job, { state = 'waiting', score = Line.score(job, Line.came_at(job)) })
  end
end

-- Let those delayed jobs of a queue come into line that are due; return how many were looked at.
function Flow.promote_due(queue, limit)
  local delayed = key('delayed', queue)
  local due = up_to(delayed, NOW, limit)
  for _, id in ipairs(due) do
    local job = Audit.known_in('delayed', queue, id)
    if job then
      Flow.promote(job)
    end
  end
  return #due
end

-- The stall terms of a job, with its queue's setting laid over all that its call did not pin.
local function stall_terms(job)
  local told = Settings.of('queue', job.queue).stall
  if not told then
    return {}
  end
  local pinned = {}
  for _, field in ipairs(job.pinned) do
    pinned[field] = true
  end
  local terms = {}
  for field, value in pairs(told) do
    if not pinned[field] then
      terms[field] = value
    end
  end
  return terms
end

-- Put the last run of a job, which is over, with those before it: its record is that of the next one.
--
-- runs:<ref>  LIST  the runs of a job before its last
local function put_last_run_aside(job)
  local runs = key('runs', job.ref)
  if call('RPUSH', runs, Folding.fold_run(job)) >= RUNS_KEPT then
    call('LTRIM', runs, 1 - RUNS_KEPT, -1)
  end
end

-- Begin a job's next run under an owner; return what its holder is given.
function Flow.start(job, owner)
  if job.starts > 0 then
    put_last_run_aside(job)
  end
  local changes = stall_terms(job)
  local lease, start_grace = changes.lease or job.lease, changes.start_grace or job.start_grace
  local run_until = Lease.run_limit(NOW, lease, job.timeout, job.deadline)
  local progress_until = job.heartbeat_timeout and NOW + job.heartbeat_timeout
  changes.state = 'active'
  changes.fence = Lease.next_fence(job.fence)
  changes.owner = owner.id
  changes.heard_at = NOW
  changes.lease_until = Lease.ends(lease, run_until, progress_until, NOW + start_grace)
  changes.run_until = run_until or NONE
  changes.progress_until = progress_until or NONE
  changes.starts = job.starts + 1
  changes.started = NOW
  changes.holder = Lease.holder(owner)
  changes.run_fence = changes.fence
  changes.run_end, changes.ended = NONE, NONE
  Shelf.move(job, changes)
  Lease.note()
  Rates.take(job.queue, Rates.all_of(job))
  Line.given_out(job)
  Journal.tell(job, 'started', function()
    return {
      attempt = job.failures + 1,
      owner = owner.id,
      host = owner.host,
      pid = owner.pid,
      fence = job.fence,
      redelivered = job.starts > 1,
    }
  end)
  return { job.ref, Record.packed(job), Record.payload_apart(job) }
end

-- Record that a write of an owner that is not the holder was refused.
function Flow.refused(job, owner, fence, write)
  Journal.record_of(job, 'run_fenced', { fence = fence, current_fence = job.fence, owner = owner, write = write })
end
