-- requires: cell, folding, record, settings, journal, line, lease, rates, shelf, audit, ends
-- Promotes delayed jobs and starts waiting ones. storage/memory/model.py has the same rules.
local Flow = {}

-- Make a delayed job waiting, or expire it if it is too old by now.
function Flow.promote(job)
  if Record.lapsed(job) then
    Ends.expire(job)
  else
    Shelf.move(job, { state = 'waiting', score = Line.score(job, Line.came_at(job)) })
  end
end

-- Promote the due delayed jobs of a queue; return how many were examined.
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

-- The stall terms from the settings of a job's queue, without those that the job's call has pinned.
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

-- Append a job's last run to its list of earlier runs, because the record will hold the next run.
--
-- runs:<ref>  LIST  the earlier runs of a job, without the last
local function put_last_run_aside(job)
  local runs = key('runs', job.ref)
  if call('RPUSH', runs, Folding.fold_run(job)) >= RUNS_KEPT then
    call('LTRIM', runs, 1 - RUNS_KEPT, -1)
  end
end

-- Begin a job's next run for an owner; return the lease's ref, record and payload.
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

-- Record that a write was refused because its owner does not hold the job.
function Flow.refused(job, owner, fence, write)
  Journal.record_of(job, 'run_fenced', { fence = fence, current_fence = job.fence, owner = owner, write = write })
end
