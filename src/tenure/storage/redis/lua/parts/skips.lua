-- requires: prelude, notifications
-- Skips: the leader of many partitions skips one in which nothing waits for a sweep (sweep.lua begins a skip).
--
-- leader  HASH  skipped_until: the end of a skip; absent if a change has ended it. term: the length of a term without a
--               skip
local Skips = {}

local ended = false

-- Note that something changes: end the skip, cut the leader's term to its usual length, and publish a hint.
function Skips.finish()
  if ended then
    return
  end
  ended = true
  local leader = key('leader')
  local skipped, term, ends = unpack(call('HMGET', leader, 'skipped_until', 'term', 'until'))
  if not skipped then
    return
  end
  call('HDEL', leader, 'skipped_until')
  -- The next sweep is expected soon. If it is late, the gap counts from this change on.
  call('HSET', leader, 'busy_at', NOW)
  term, ends = tonumber(term or ''), tonumber(ends or '')
  if term and ends and ends > NOW + term then
    call('HSET', leader, 'until', NOW + term)
  end
  Notifications.notify('partition:' .. BASE)
end
