-- requires: cell, step, bytes, index, record, shelf, parking, forgetting
-- The work of a script that may move jobs of all kinds.
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
  if is_made(Forgetting) then
    Forgetting.at_once()
  end
end

function Work.carry_out(work)
  return Step.carry_out(work, Work.write_down)
end

-- Let others in line where a key was left, if any was: only Shelf moves those that hold keys.
function Work.let_in()
  if is_made(Shelf) then
    Parking.let_in()
  end
end
