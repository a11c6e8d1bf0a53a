-- requires: cell, hints
-- Rests: who leads many cells may leave one alone for a while in which nothing waits for a sweep.
--
-- leader  HASH  rests: until when; stirred: something has changed since; term: how long a term is without a rest; shortest:
--               the shortest lease, or progress clock, that any job here has had so far
local Rest = {}

local LEADER = key('leader')

local stirred, shortest = false, nil
local got

-- What is known of the rest there is, read once.
local function known()
  got = got or call('HMGET', LEADER, 'rests', 'stirred', 'term', 'until', 'shortest')
  return got
end

-- Note that something changes: hint at it, and let the term be as long as if there was no rest.
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

-- Note that there is something where there may have been nothing: then nobody has been looking.
function Rest.wake()
  Hints.knock('stirred')
end

-- Note how long a job's lease is, or its progress clock: no rest goes on for much of it.
function Rest.heed(lease)
  if shortest == nil then
    shortest = tonumber(known()[5] or '') or false
  end
  if not shortest or lease < shortest then
    shortest = lease
    call('HSET', LEADER, 'shortest', lease)
  end
end
