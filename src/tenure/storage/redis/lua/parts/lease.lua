-- requires: cell
-- Leases: how long one lasts and what it never passes. core/lease.py says the same, and why.
--
-- clock  ZSET  `leased`: the latest instant at which a lease was given; it lies ahead if the clock was set back since
local Lease = {}

Lease.REAPER = 5000000
-- What no job's longest lease is shorter than.
Lease.SHORTEST = Lease.REAPER

local noted = false

-- Note that a lease is given now, or made longer; once for all that a script gives.
function Lease.note()
  if not noted then
    noted = true
    call('ZADD', key('clock'), 'GT', NOW, 'leased')
  end
end

-- Whether a lease was given later than now.
function Lease.given_later()
  local latest = tonumber(call('ZSCORE', key('clock'), 'leased') or '')
  return latest ~= nil and latest > NOW
end

-- Note that none of the leases there are was given later than now.
function Lease.note_all_sound()
  call('ZADD', key('clock'), NOW, 'leased')
end

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

-- Those who run jobs, as records name them.
local holders = {}

function Lease.holder(owner)
  local holder = holders[owner]
  if not holder then
    holder = cmsgpack.pack({ owner.id, owner.name, owner.host, owner.pid })
    holders[owner] = holder
  end
  return holder
end
