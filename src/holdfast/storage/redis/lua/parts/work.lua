-- requires: cell, bytes, record, index, hints, shelf, parking
-- The work of a script that changes something. A script is one step, but one that fails is not undone: what it has done
-- until then is written down as whole as it is, and the rest is the audit's.
local Work = {}

-- Who was not made has nothing to write.
local function flush(part)
  if is_made(part) then
    part.flush()
  end
end

-- Write down what was put off until all is done.
function Work.write_down()
  flush(Record)
  flush(Bytes)
  flush(Index)
end

function Work.carry_out(work)
  local went_well, answer = pcall(work)
  Work.write_down()
  flush(Hints)
  if not went_well then
    error(answer, 0)
  end
  return answer
end

-- Let others in line where a key was left, if any was: only Shelf moves those that hold keys.
function Work.let_in()
  if is_made(Shelf) then
    Parking.let_in()
  end
end
