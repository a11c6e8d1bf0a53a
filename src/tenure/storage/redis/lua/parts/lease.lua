-- requires: prelude
-- Leases: how long they last, and their limits. core/lease.py has the same rules, with reasons.
--
-- clock  ZSET  `leased`: the latest instant at which a lease was given; in the future if the clock was set back since
local Lease = {}

-- constants: REAPER_LEASE
Lease.REAPER = REAPER_LEASE
-- A lower bound of `Lease.longest` for all jobs.
Lease.SHORTEST = Lease.REAPER

local noted = false

-- Note that a lease is given or extended now; once for each script.
function Lease.note()
  if not noted then
    noted = true
    call('ZADD', key('clock'), 'GT', NOW, 'leased')
  end
end

-- Return true if a lease was given later than now.
function Lease.given_later()
  local latest = tonumber(call('ZSCORE', key('clock'), 'leased') or '')
  return latest ~= nil and latest > NOW
end

-- Note that no existing lease was given later than now.
function Lease.note_none_given_later()
  call('ZADD', key('clock'), NOW, 'leased')
end

function Lease.next_fence(fence)
  return max(fence + 1, NOW)
end

-- When a lease that is given or renewed now ends.
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

-- The maximum length of a job's lease, unless the clock was set back.
function Lease.longest(job)
  return max(job.lease, job.start_grace, Lease.REAPER)
end

-- The time limit of a run, by which it is surely over; nil if it has none.
function Lease.run_limit(started, lease, timeout, deadline)
  local limit = timeout and started + timeout
  if deadline and (not limit or deadline < limit) then
    limit = deadline
  end
  return limit and limit + floor(lease / 4) or nil
end

-- Until when a job with an expired lease is only suspected.
function Lease.grace_ends(job, grace, resumed_at)
  local beats = floor(job.lease / 2)
  if job.lease_until > NOW + Lease.longest(job) then
    return NOW + beats
  end
  if resumed_at and resumed_at <= NOW then
    return max(NOW + grace, resumed_at + beats)
  end
  return NOW + grace
end

-- The encoded owners, as records contain them.
local holders = {}

function Lease.holder(owner)
  local holder = holders[owner]
  if not holder then
    holder = cmsgpack.pack({ owner.id, owner.name, owner.host, owner.pid })
    holders[owner] = holder
  end
  return holder
end
