-- requires: cell, hints
-- The work of a script that changes something. A script is one step, but one that fails is not undone: what it has done
-- until then is written down as whole as it is, and the rest is the audit's.
local Step = {}

-- Do some work, have written down what it has put off, and hint at what has come of it; return both that the work does.
function Step.carry_out(work, write_down)
  local went_well, answer, rest = pcall(work)
  if write_down then
    write_down()
  end
  if is_made(Hints) then
    Hints.flush()
  end
  if not went_well then
    error(answer, 0)
  end
  return answer, rest
end

-- Note that somebody has asked for what is done already. There is nothing to write then, but he may wait for a replica: a
-- server asks for what was written by his own connection (Valkey, Redis from 7.2 on), and what he asks for again may have
-- been written by another, and be nowhere else yet.
--
-- counters  HASH  repeated: how often that was
function Step.note_repeated()
  call('HINCRBY', key('counters'), 'repeated', 1)
end
