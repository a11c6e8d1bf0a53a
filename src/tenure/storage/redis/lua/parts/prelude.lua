-- The beginning of every script: the partition's base key, the time, the request, and functions that all parts use.
--
-- KEYS[1]  the partition's base key: the hash tag with which all of its keys begin. No key has exactly this name.
--          Because it is absent, a Cluster that migrates the slot refuses a call before it starts
--          (docs/decisions/024-redis-connections.md)
-- ARGV[1]  now in microseconds; empty: use the server's clock
-- ARGV[2]  the request, as msgpack
-- ARGV[3]  and on: bytes, to which the request refers by their place
local BASE = KEYS[1]
local NOW = tonumber(ARGV[1])
if not NOW then
  local time = redis.call('TIME')
  NOW = time[1] * 1000000 + time[2]
end
local REQUEST = cmsgpack.unpack(ARGV[2])

-- A part is defined when a script first uses one of its members. Most calls need few parts, and defining all of them
-- would take longer than the actual work (docs/decisions/026-short-redis-scripts.md).
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

-- The name of a key in the partition.
local function key(kind, name)
  if name then
    return BASE .. ':' .. kind .. ':' .. name
  end
  return BASE .. ':' .. kind
end

-- Names contain no NUL. So two names joined by NUL are unique, and sort like a pair.
local function pair(first, second)
  return first .. '\0' .. second
end

local function parts_of(joined)
  local at = string.find(joined, '\0', 1, true)
  return string.sub(joined, 1, at - 1), string.sub(joined, at + 1)
end

-- A number as text for a command. Lua's own conversion would round numbers as large as an instant. `beyond`: an
-- exclusive lower bound.
local function whole(number)
  return string.format('%.0f', number)
end

local function beyond(number)
  return '(' .. whole(number)
end

local function starts_with(text, beginning)
  return string.sub(text, 1, #beginning) == beginning
end

-- The members of a sorted set with scores up to a number, lowest first.
local function up_to(index, number, limit)
  if limit <= 0 then
    return {}
  end
  return call('ZRANGEBYSCORE', index, '-inf', number, 'LIMIT', 0, limit)
end

-- The lowest score in a sorted set and its member, or nil.
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

-- The limits of the storage protocol (storage/protocol.py gives the reasons). script_constants.py defines the names in
-- such lines, with the values that Python uses.
-- constants: CLAIM_LIMIT, SWEEP_LIMIT, PROMOTE_LIMIT, EXPIRE_LIMIT, TRIM_LIMIT, SCAN_LIMIT, WINDOW_LIMIT, PASSED_LIMIT
-- constants: LOOK_LIMIT, DUE_LIMIT, RUNS_KEPT, LOG_LINES_KEPT, CALLS_KEPT, UNKNOWN_LOOKS, PLACE_LIMIT
-- constants: PAUSED, RATE, QUEUE_RATE, UNKNOWN, CONCURRENCY, MOVED

-- How long events are kept (core/retention.py). Above `count`, each XADD trims whole nodes of the oldest events, at most
-- TRIM_BATCH events, at almost no cost. Sweeps trim to the exact number.
-- constants: EVENTS_KEPT, TRIM_BATCH

-- Marks a field of a record that is to be removed.
local NONE = {}

-- The terminal states.
local TERMINAL = { completed = true, failed = true, cancelled = true, expired = true }
