-- requires: prelude, event_log, lease, job_indexes, audit
-- Suspects active jobs: those whose lease has expired, and those whose lease ends later than its whole length from now.
--
-- The latter only happens if the clock was set back after the lease was given. So they are searched only if some lease
-- was given later than now. Then all leases are checked, some in each sweep.
local Suspects = {}

-- Per call: how many suspicions are shortened, and how many leases are checked that may end too far ahead.
local SHORTENED_LIMIT, EXAMINED_LIMIT = 20, 150

-- Return leases that end later than their whole length from now, at most `limit`; true if there may be more; and how
-- many were examined.
local function ahead(limit)
  local place = key('sweep')
  if not Lease.given_later() then
    return {}, false, 0
  end
  local from = call('HGET', place, 'leases')
  local found, last = {}, nil
  local entries = call(
    'ZRANGEBYSCORE',
    key('leases'),
    from or beyond(NOW + Lease.SHORTEST),
    '+inf',
    'WITHSCORES',
    'LIMIT',
    0,
    EXAMINED_LIMIT
  )
  for at = 1, #entries, 2 do
    local ref, ends = entries[at], tonumber(entries[at + 1])
    local job = Audit.checked('leases', ref)
    last = ends
    if job and ends > NOW + Lease.longest(job) then
      if #found == limit then
        break
      end
      found[#found + 1] = ref
    end
  end
  if #entries < 2 * EXAMINED_LIMIT and #found < limit then
    call('HDEL', place, 'leases')
    Lease.note_none_given_later()
    return found, false, #entries / 2
  end
  -- If all of these end at the same instant and are valid, skip that instant; else the search would never pass them.
  local stuck = #found == 0 and tonumber(entries[2]) == last
  call('HSET', place, 'leases', stuck and beyond(last) or whole(last))
  return found, true, #entries / 2
end

-- Shorten suspicions that end later than one that begins now, because the clock may have been set back after a
-- suspicion, too. Examine at most `limit`; each sweep continues where the last one ended. Return how many were
-- examined, and true if the next call is to continue at once.
function Suspects.shorten(grace, limit)
  local place = key('sweep')
  local from = max(NOW + grace, tonumber(call('HGET', place, 'suspects') or '') or 0)
  local entries = call('ZRANGEBYSCORE', key('suspects'), beyond(from), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  local shortened = 0
  for at = 1, #entries, 2 do
    local job = Audit.checked('suspects', entries[at])
    local beats = job and floor(job.lease / 2)
    if job and job.suspect_until > NOW + max(beats, grace) then
      JobIndexes.move(job, { suspect_until = NOW + beats })
      shortened = shortened + 1
      if shortened == SHORTENED_LIMIT then
        -- The shortened ones have lower scores now, so the next call finds the rest from the same place.
        return (at + 1) / 2, true
      end
    end
  end
  if #entries == 2 * limit then
    call('HSET', place, 'suspects', entries[#entries])
  else
    call('HDEL', place, 'suspects')
  end
  return #entries / 2, false
end

-- Suspect jobs; return how many, true if there may be more, and how many leases were examined for that.
function Suspects.suspect(grace, resumed_at, limit)
  local found = up_to(key('leases'), NOW, limit)
  local out = #found
  local others, more, examined = ahead(limit)
  for _, ref in ipairs(others) do
    found[#found + 1] = ref
  end
  for _, ref in ipairs(found) do
    local job = Audit.checked('leases', ref)
    if job then
      JobIndexes.move(job, { suspect_until = Lease.grace_ends(job, grace, resumed_at) })
      EventLog.record_if_wanted(job, 'suspected', function()
        return { owner = job.owner, silent_for = max(0, NOW - (job.heard_at or NOW)) / 1000000 }
      end)
    end
  end
  return out + #others, more, examined
end
