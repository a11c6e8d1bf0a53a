#!lua
-- requires: prelude
-- publish: store what workers know of their tasks, or renew it; forget tasks that no worker has published for long.
--
-- published  ZSET  each task by the instant of its last publication
-- tasks      HASH  of each task the digest, which has 32 characters, and then all but the schemas as JSON text
-- schemas    HASH  of each task that has any, the schemas as JSON text
--
-- Request: {tasks, renewal}. A task is {name, digest, body[, schemas]}. Answer: nothing.
-- constants: PUBLISHED_KEPT, PUBLISHED_MOST, RENEWED_WITHIN
local known, bodies, schemas = key('published'), key('tasks'), key('schemas')

-- A renewal does not replace what a worker that started later has published (core/published.py).
local function replaces(name, same)
  local at = REQUEST.renewal and not same and tonumber(call('ZSCORE', known, name) or '')
  return not at or at <= NOW - RENEWED_WITHIN or at > NOW
end

local function forget(names)
  for _, name in ipairs(names) do
    call('HDEL', bodies, name)
    call('HDEL', schemas, name)
    call('ZREM', known, name)
  end
end

for _, task in ipairs(REQUEST.tasks) do
  local name, digest, body, schema = unpack(task)
  local same = string.sub(call('HGET', bodies, name) or '', 1, #digest) == digest
  if replaces(name, same) then
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
