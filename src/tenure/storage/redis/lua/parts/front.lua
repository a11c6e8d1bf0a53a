-- requires: cell
-- The virtual time that fair queues have reached (parts/line.lua); a script reads it once for each queue.
local Front = {}

local fronts = {}

-- The virtual time that a queue has reached; false if the queue has no fair keys.
function Front.of(queue)
  if fronts[queue] == nil then
    fronts[queue] = tonumber(call('HGET', key('fair', queue), 'front') or '') or false
  end
  return fronts[queue]
end

-- Note the virtual time that a queue has reached now.
function Front.note(queue, front)
  fronts[queue] = front
end
