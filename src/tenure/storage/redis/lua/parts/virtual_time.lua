-- requires: prelude
-- The virtual time that fair queues have reached (parts/fair_queue.lua); a script reads it once for each queue.
local VirtualTime = {}

local fronts = {}

-- The virtual time that a queue has reached; false if the queue has no fair keys.
function VirtualTime.of(queue)
  if fronts[queue] == nil then
    fronts[queue] = tonumber(call('HGET', key('fair', queue), 'front') or '') or false
  end
  return fronts[queue]
end

-- Note the virtual time that a queue has reached now.
function VirtualTime.note(queue, front)
  fronts[queue] = front
end
