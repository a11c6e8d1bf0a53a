-- What every script begins with: the cell's base key, its clock, what was asked, and a few words for all of it.
--
-- KEYS[1]  the cell's base: a hash tag, with which all of its keys begin. No key ever has this very name: by its absence
--          a Cluster that moves the slot refuses a call before it starts, not half-way (docs/why/connections.md)
-- ARGV[1]  now in microseconds, or empty: the server's own clock
-- ARGV[2]  the request, as msgpack
-- ARGV[3]  and on: bytes, which the request names by their place
local BASE = KEYS[1]
local NOW = tonumber(ARGV[1])
if not NOW then
  local time = redis.call('TIME')
  NOW = time[1] * 1000000 + time[2]
end
local ASKED = cmsgpack.unpack(ARGV[2])

-- A part is made when a script first asks it for something: most scripts need few of them, and to make all of them would
-- take longer than what a script is called for (docs/why/short-scripts.md).
local UNMADE = {
  __index = function(part, name)
    local make = part[1]
    part[1] = nil
    setmetatable(part, nil)
    make(part)
    return part[name]
  end,
}

local function lazily(part, make)
  part[1] = make
  return setmetatable(part, UNMADE)
end

local function is_made(part)
  return getmetatable(part) == nil
end

local call = redis.call
local min, max, floor = math.min, math.max, math.floor

-- The key of one thing in the cell.
local function key(kind, name)
  if name then
    return BASE .. ':' .. kind .. ':' .. name
  end
  return BASE .. ':' .. kind
end

-- Names hold no NUL, so two of them joined by it are a name again, and sort as a pair does.
local function pair(first, second)
  return first .. '\0' .. second
end

local function parts_of(joined)
  local at = string.find(joined, '\0', 1, true)
  return string.sub(joined, 1, at - 1), string.sub(joined, at + 1)
end

-- A number as a command's text has it: Lua's own would round what is as large as an instant; and what lies beyond one.
local function whole(number)
  return string.format('%.0f', number)
end

local function beyond(number)
  return '(' .. whole(number)
end

local function starts_with(text, beginning)
  return string.sub(text, 1, #beginning) == beginning
end

-- The members of a sorted set up to a number, the lowest first.
local function up_to(index, number, limit)
  if limit <= 0 then
    return {}
  end
  return call('ZRANGEBYSCORE', index, '-inf', number, 'LIMIT', 0, limit)
end

-- The lowest number in a sorted set, or nil; and whose it is.
local function head_of(index)
  local head = call('ZRANGE', index, 0, 0, 'WITHSCORES')
  return tonumber(head[2]), head[1]
end

local function first_of(index, limit)
  if limit <= 0 then
    return {}
  end
  return call('ZRANGE', index, 0, limit - 1)
end

-- What a storage promises of its limits (storage/protocol.py says why).
local CLAIM_LIMIT, SWEEP_LIMIT = 128, 200
local PROMOTE_LIMIT, EXPIRE_LIMIT, TRIM_LIMIT, SCAN_LIMIT = 100, 200, 500, 500
local WINDOW_LIMIT, PASSED_LIMIT, LOOK_LIMIT, DUE_LIMIT = 5000, 5000, 500, 100
local RUNS_KEPT, LOG_LINES_KEPT, CALLS_KEPT = 100, 1000, 10000
local UNKNOWN_LOOKS, PLACE_LIMIT = 100, 250
local PAUSED, RATE, UNKNOWN = 'paused:', 'rate:', 'unknown:'

-- How many events are kept (core/retention.py): of more, each that is recorded forgets some of the oldest, as many nodes of
-- the stream as are superfluous. That costs nothing to speak of; sweeps keep to the number itself.
local EVENTS_KEPT, EVENTS_FORGOTTEN = 100000, 200

-- Stands for a field of a record that is taken away.
local NONE = {}

-- The states that are ends.
local TERMINAL = { completed = true, failed = true, cancelled = true, expired = true }
