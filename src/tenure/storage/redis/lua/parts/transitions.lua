-- requires: prelude, record_codec, record, settings, event_log, fair_queue, lease, rates, job_indexes, audit, expiry
-- Promotes delayed jobs and starts waiting ones. storage/memory/model.py has the same rules.
local Transitions = {}

-- Make a delayed job waiting, or expire it if it is too old by now.
function Transitions.promote(job)
  if Record.is_expired(job) then
    Expiry.expire(job)
  else
    JobIndexes.move(job, { state = 'waiting', score = FairQueue.score(job, FairQueue.enqueue_time(job)) })
  end
end

-- Promote the due delayed jobs of a queue; return how many were examined.
function Transitions.promote_due(queue, limit)
  local delayed = key('delayed', queue)
  local due = up_to(delayed, NOW, limit)
  for _, id in ipairs(due) do
    local job = Audit.checked_in('delayed', queue, id)
    if job then
      Transitions.promote(job)
    end
  end
  return #due
end

-- The stall terms from the settings of a job's queue, without those that the job's call has pinned.
local function stall_terms(job)
  local settings = Settings.get('queue', job.queue).stall
  if not settings then
    return {}
  end
  local pinned = {}
  for _, field in ipairs(job.pinned) do
    pinned[field] = true
  end
  local terms = {}
  for field, value in pairs(settings) do
    if not pinned[field] then
      terms[field] = value
    end
  end
  return terms
end

-- Append a job's last run to its list of earlier runs, because the record will hold the next run.
--
-- runs:<ref>  LIST  the earlier runs of a job, without the last
local function store_last_run(job)
  local runs = key('runs', job.ref)
  if call('RPUSH', runs, RecordCodec.encode_run(job)) >= RUNS_KEPT then
    call('LTRIM', runs, 1 - RUNS_KEPT, -1)
  end
end

-- Begin a job's next run for an owner; return the lease's ref, record and payload.
function Transitions.start(job, owner)
  if job.starts > 0 then
    store_last_run(job)
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
  JobIndexes.move(job, changes)
  Lease.note()
  Rates.take(job.queue, Rates.all_of(job))
  FairQueue.note_started(job)
  EventLog.record_if_wanted(job, 'started', function()
    return {
      attempt = job.failures + 1,
      owner = owner.id,
      host = owner.host,
      pid = owner.pid,
      fence = job.fence,
      redelivered = job.starts > 1,
    }
  end)
  return { job.ref, Record.encoded_with_data(job), Record.read_separate_payload(job) }
end

-- Record that a write was refused because its owner does not hold the job.
function Transitions.record_refusal(job, owner, fence, write)
  local event = { fence = fence, current_fence = job.fence, owner = owner, write = write }
  EventLog.record_job_event(job, 'run_fenced', event)
end
