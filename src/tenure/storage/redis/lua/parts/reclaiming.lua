-- requires: prelude, record, lease, job_indexes
-- Transfers an active job to the process that found its owner dead or silent.
local Reclaiming = {}

-- Which of its two limits an active job without renewals has exceeded; core/transition.py gives the reasons.
local function stall_reason(job)
  local bounded = job.progress_until and (not job.lease_until or job.lease_until <= job.progress_until)
  return bounded and job.progress_until <= NOW and 'no_progress' or 'lease_expired'
end

-- Take over an active job until its end is decided: the same run, with a new fence.
function Reclaiming.take(job, owner, reason)
  local why, was, silent_for = reason or stall_reason(job), job.owner, max(0, NOW - (job.heard_at or NOW))
  JobIndexes.move(job, {
    fence = Lease.next_fence(job.fence),
    owner = owner,
    heard_at = NOW,
    lease_until = NOW + Lease.REAPER,
    suspect_until = NONE,
    run_until = NONE,
    progress_until = NONE,
  })
  Lease.note()
  return { job.ref, Record.encoded_with_data(job), Record.read_separate_payload(job), why, was, silent_for }
end
