-- requires: cell
-- How long a cell may be left alone (parts/rest.lua), as who sweeps asks.
local Resting = {}

local function least(index, so_far)
  local head = head_of(key(index))
  return head and min(so_far, head - NOW) or so_far
end

-- How long a cell may be left alone, so long at most: 0 where a sweep has, or will soon have, something to do.
--
-- core/leadership.py says why it depends on the leases that may begin meanwhile.
function Resting.longest(most, every, term)
  if call('EXISTS', key('queues'), key('schedules')) == 0 then
    -- It is empty: nobody comes again for long, and nobody is to think that this is late.
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

-- Begin a rest. The term lasts for it, and then for as long as any: nobody else is to look here meanwhile.
function Resting.begin(length, term)
  local leader = key('leader')
  call('HSET', leader, 'rests', NOW + length)
  if term then
    call('HSET', leader, 'term', term, 'length', length + term, 'until', NOW + length + term)
  end
end

-- End a rest, as who sweeps does; return until when it was to be.
function Resting.over()
  local rests = tonumber(call('HGET', key('leader'), 'rests') or '')
  if rests then
    call('HDEL', key('leader'), 'rests', 'stirred', 'term')
  end
  return rests
end
