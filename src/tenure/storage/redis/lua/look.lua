#!lua flags=no-writes,allow-cross-slot-keys
-- requires: cell
-- look: what there is in cells of one server of a Cluster, before anybody is sent to sweep them. It decides nothing: who
-- sweeps does, in one cell alone.
--
-- Request: {bases}. Answer: for each cell 0 if nothing is there; 1 if there are but leftovers, which have time; 2 if it
-- rests; 3 if it does not; -1 if it is not here.
local function look()
  if call('EXISTS', key('queues'), key('schedules')) == 0 then
    return call('EXISTS', key('seen'), key('windows'), key('taken'), key('events')) > 0 and 1 or 0
  end
  local got = call('HMGET', key('leader'), 'rests', 'stirred')
  return got[1] and not got[2] and 2 or 3
end

local sights = {}
for number, base in ipairs(ASKED.bases) do
  BASE = base
  local here, sight = pcall(look)
  sights[number] = here and sight or -1
end
return sights
