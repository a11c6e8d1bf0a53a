-- requires: cell, rest
-- What all ways of moving jobs need of queues: that they are known, and where their jobs are counted.
local Queues = {}

-- The index of who stands in a state.
local standing_in = {}

function Queues.standing(queue, state)
  local known = standing_in[queue]
  if not known then
    known = {}
    standing_in[queue] = known
  end
  local index = known[state]
  if not index then
    index = key('in', pair(queue, state))
    known[state] = index
  end
  return index
end

local noted = {}

-- Note that there is a queue; `made`: the number of its first job.
function Queues.note(queue, made)
  if not noted[queue] then
    noted[queue] = true
    if call('ZADD', key('queues'), 'NX', made, queue) == 1 then
      Rest.wake()
    end
  end
end
