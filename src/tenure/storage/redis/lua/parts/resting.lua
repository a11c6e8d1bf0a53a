-- requires: cell
-- Decides after a sweep how long the partition may rest (parts/rest.lua).
local Resting = {}

local function least(index, so_far)
  local head = head_of(key(index))
  return head and min(so_far, head - NOW) or so_far
end

-- How long the partition may rest, at most `most`; 0 if a sweep has something to do, now or soon.
--
-- core/leadership.py explains why that depends on the leases that may begin meanwhile.
function Resting.longest(most, every, term)
  if call('EXISTS', key('queues'), key('schedules')) == 0 then
    -- It is empty: the next sweep comes much later, and must not look overdue.
    call('HDEL', key('leader'), 'swept_at')
    if call('EXISTS', key('settings')) == 0 then
      call('HDEL', key('leader'), 'shortest')
    end
    return most
  end
  if call('EXISTS', key('leases'), key('suspects'), key('places')) > 0 then
    return 0
  end
  local lease = tonumber(call('HGET', key('leader'), 'shortest') or '')
  if lease then
    most = min(most, floor(lease / 2), lease - max(3 * every, (term or 0) + every))
  end
  for _, index in ipairs({ 'dues', 'aging', 'redrives', 'ticks' }) do
    most = least(index, most)
  end
  return most > every and floor(most) or 0
end

-- Begin a rest. The term lasts for the rest plus its usual length, so that no other process sweeps here meanwhile.
function Resting.begin(length, term)
  local leader = key('leader')
  call('HSET', leader, 'rests', NOW + length)
  if term then
    call('HSET', leader, 'term', term, 'length', length + term, 'until', NOW + length + term)
  end
end

-- End a rest when a sweep begins; return when it was to end.
function Resting.over()
  local rests = tonumber(call('HGET', key('leader'), 'rests') or '')
  if rests then
    call('HDEL', key('leader'), 'rests', 'stirred', 'term')
  end
  return rests
end
