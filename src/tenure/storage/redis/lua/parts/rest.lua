-- requires: cell, hints
-- Rests: the leader of many partitions may leave one alone for a while, as long as nothing in it waits for a sweep.
--
-- leader  HASH  rests: the end of the rest; stirred: something has changed since it began; term: the length of a term
--               without a rest; shortest: the shortest lease, or progress limit, that any job here has had so far
local Rest = {}

local LEADER = key('leader')

local stirred, shortest = false, nil
local got

-- The fields of the current rest, read once.
local function known()
  got = got or call('HMGET', LEADER, 'rests', 'stirred', 'term', 'until', 'shortest')
  return got
end

-- Note that something changes: publish a hint, and cut the term to its length without a rest.
function Rest.stir()
  if stirred then
    return
  end
  stirred = true
  local rests, has_stirred, term, ends = unpack(known(), 1, 4)
  if not rests or has_stirred then
    return
  end
  call('HSET', LEADER, 'stirred', 1)
  term, ends = tonumber(term or ''), tonumber(ends or '')
  if term and ends and ends > NOW + term then
    call('HSET', LEADER, 'until', NOW + term)
  end
  Hints.knock('stirred')
end

-- Publish a hint that a partition is not empty any more: no reaper looks at an empty one for a while.
function Rest.wake()
  Hints.knock('stirred')
end

-- Note the length of a job's lease, or of its progress limit: a rest must be much shorter.
function Rest.heed(lease)
  if shortest == nil then
    shortest = tonumber(known()[5] or '') or false
  end
  if not shortest or lease < shortest then
    shortest = lease
    call('HSET', LEADER, 'shortest', lease)
  end
end
