-- requires: cell, journal
-- Rests: who leads many cells may leave one alone for a while in which nothing waits for a sweep.
--
-- leader  HASH  rests: until when; stirred: something has changed since; term: how long a term is without a rest; shortest:
--               the shortest lease, or progress clock, that any job here has had so far
local Rest = {}

local stirred, shortest = false, nil

local function least(index, so_far)
  local head = head_of(key(index))
  return head and min(so_far, head - NOW) or so_far
end

-- How long a cell may be left alone, so long at most: 0 where a sweep has, or will soon have, something to do.
--
-- core/leadership.py says why it depends on the leases that may begin meanwhile.
function Rest.longest(most, every, term)
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
function Rest.begin(length, term)
  local leader = key('leader')
  call('HSET', leader, 'rests', NOW + length)
  if term then
    call('HSET', leader, 'term', term, 'length', length + term, 'until', NOW + length + term)
  end
end

-- End a rest, as who sweeps does; return until when it was to be.
function Rest.over()
  local rests = tonumber(call('HGET', key('leader'), 'rests') or '')
  if rests then
    call('HDEL', key('leader'), 'rests', 'stirred', 'term')
  end
  return rests
end

-- Note that something changes: hint at it, and let the term be as long as if there was no rest.
function Rest.stir()
  if stirred then
    return
  end
  stirred = true
  local leader = key('leader')
  local got = call('HMGET', leader, 'rests', 'stirred', 'term', 'until')
  if not got[1] or got[2] then
    return
  end
  call('HSET', leader, 'stirred', 1)
  local term, ends = tonumber(got[3] or ''), tonumber(got[4] or '')
  if term and ends and ends > NOW + term then
    call('HSET', leader, 'until', NOW + term)
  end
  Journal.knock('stirred')
end

-- Note that there is something where there may have been nothing: then nobody has been looking.
function Rest.wake()
  Journal.knock('stirred')
end

-- Note how long a job's lease is, or its progress clock: no rest goes on for much of it.
function Rest.heed(lease)
  if shortest == nil then
    shortest = tonumber(call('HGET', key('leader'), 'shortest') or '') or false
  end
  if not shortest or lease < shortest then
    shortest = lease
    call('HSET', key('leader'), 'shortest', lease)
  end
end
