-- requires: prelude
-- Which queues are in the same partition. `Partitions.of` of partitions.py has the same rule: the hash of a queue's name
-- chooses its partition.
local Partitioning = {}

local partitions

-- The number of partitions, as the layout says; 0 if it is unknown.
local function count()
  if not partitions then
    local layout = call('GET', key('schema')) or ''
    partitions = tonumber(string.match(layout, ' in (%d+) partition') or '') or 0
  end
  return partitions
end

-- The CRC-32 of a text, as zlib computes it.
local function crc32(text)
  local crc = -1
  for at = 1, #text do
    crc = bit.bxor(crc, string.byte(text, at))
    for _ = 1, 8 do
      crc = bit.bxor(bit.rshift(crc, 1), bit.band(-bit.band(crc, 1), 0xEDB88320))
    end
  end
  return bit.bxor(crc, -1) % 4294967296
end

-- Return true if two queues are in the same partition. If that is unknown, a token goes by the outbox, which is safe.
function Partitioning.are_together(queue, other)
  if queue == other or count() == 1 then
    return true
  end
  return count() > 1 and crc32(queue) % count() == crc32(other) % count()
end
