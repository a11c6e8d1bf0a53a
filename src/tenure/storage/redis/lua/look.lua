#!lua flags=no-writes,allow-cross-slot-keys
-- requires: cell
-- look: tell which partitions of one server of a Cluster need a sweep. It changes nothing: only a sweep, which concerns
-- one partition, decides anything.
--
-- Request: {bases}. Answer: for each partition 0 if it is empty; 1 if it holds only leftovers, which can wait; 2 if it
-- rests; 3 if it does not rest; -1 if it is not on this server.
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
