-- requires: cell
-- Leases: how long one lasts and what it never passes. core/lease.py says the same, and why.
local Lease = {}

Lease.REAPER = 5000000

function Lease.next_fence(fence)
  return max(fence + 1, NOW)
end

-- When a lease given or renewed now runs out.
function Lease.ends(length, run_until, progress_until, not_before)
  local ends = max(NOW + length, not_before or 0)
  if run_until and run_until < ends then
    ends = run_until
  end
  if progress_until and progress_until < ends then
    ends = progress_until
  end
  return ends
end

-- The length that no sound lease of a job exceeds.
function Lease.longest(job)
  return max(job.lease, job.start_grace, Lease.REAPER)
end

-- When a run that started then is surely over, or nil.
function Lease.run_limit(started, lease, timeout, deadline)
  local limit = timeout and started + timeout
  if deadline and (not limit or deadline < limit) then
    limit = deadline
  end
  return limit and limit + floor(lease / 4) or nil
end

-- Until when a lease that has run out stays a mere suspect.
function Lease.grace_ends(job, grace, resumed_at)
  local beats = floor(job.lease / 2)
  local resumed = resumed_at and resumed_at <= NOW and NOW < resumed_at + beats
  local set_back = job.lease_until > NOW + Lease.longest(job)
  return NOW + ((resumed or set_back) and beats or grace)
end
