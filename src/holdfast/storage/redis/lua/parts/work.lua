-- requires: cell, record, index, journal
-- The work of a script that changes something. A script is one step, but one that fails is not undone: what it has done
-- until then is written down as whole as it is, and the rest is the audit's.
local Work = {}

function Work.carry_out(work)
  local went_well, answer = pcall(work)
  Record.flush()
  Index.flush()
  Journal.flush()
  if not went_well then
    error(answer, 0)
  end
  return answer
end
