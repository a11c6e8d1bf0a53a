-- requires: cell
-- How far the lines of queues have got that are fair (parts/line.lua), each read once by a script.
local Front = {}

local fronts = {}

-- The front of a queue's line; false where that is not fair.
function Front.of(queue)
  if fronts[queue] == nil then
    fronts[queue] = tonumber(call('HGET', key('fair', queue), 'front') or '') or false
  end
  return fronts[queue]
end

-- Note where it is by now.
function Front.note(queue, front)
  fronts[queue] = front
end
