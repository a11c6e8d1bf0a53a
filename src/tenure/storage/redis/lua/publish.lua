#!lua
-- requires: prelude
-- publish: store what workers know of their tasks, or renew it; forget tasks that no worker has published for long.
--
-- published  ZSET  each task by the instant of its last publication
-- tasks      HASH  of each task the digest, which has 32 characters, and then all but the schemas as JSON text
-- schemas    HASH  of each task that has any, the schemas as JSON text
--
-- Request: {tasks, renewal}. A task is {name, version, digest, body[, schemas]}. Answer: nothing.
-- constants: PUBLISHED_KEPT, PUBLISHED_MOST, RENEWED_WITHIN
local known, bodies, schemas = key('published'), key('tasks'), key('schemas')

-- While a live worker renews it, the higher version wins; else the later publication (core/published.py).
local function replaces(name, version, stored)
  local at = tonumber(call('ZSCORE', known, name) or '')
  if not at or at <= NOW - RENEWED_WITHIN or at > NOW then
    return true
  end
  local readable, task = pcall(cjson.decode, stored)
  local before = readable and task.version or readable and 1 or 0
  if version == before then
    return not REQUEST.renewal
  end
  return version > before
end

local function forget(names)
  for _, name in ipairs(names) do
    call('HDEL', bodies, name)
    call('HDEL', schemas, name)
    call('ZREM', known, name)
  end
end

for _, task in ipairs(REQUEST.tasks) do
  local name, version, digest, body, schema = unpack(task)
  local stored = call('HGET', bodies, name) or ''
  local same = string.sub(stored, 1, #digest) == digest
  if same or replaces(name, tonumber(version), string.sub(stored, #digest + 1)) then
    if not same then
      call('HSET', bodies, name, digest .. body)
      if schema then
        call('HSET', schemas, name, schema)
      else
        call('HDEL', schemas, name)
      end
    end
    call('ZADD', known, whole(NOW), name)
  end
end

-- How many tasks one call forgets; the next calls forget the others.
local AT_ONCE = 100
forget(up_to(known, whole(NOW - PUBLISHED_KEPT), AT_ONCE))
forget(first_of(known, min(call('ZCARD', known) - PUBLISHED_MOST, AT_ONCE)))
