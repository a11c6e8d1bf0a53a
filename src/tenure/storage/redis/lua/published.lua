#!lua flags=no-writes
-- requires: prelude
-- published: return tasks that workers have published.
--
-- Request: {names}; without `names`: all tasks. Answer: of each known task its digest and body in one text, the instant
-- of its publication, and if it was named the schemas or false.
-- constants: PUBLISHED_KEPT, PUBLISHED_MOST
local known, bodies, schemas = key('published'), key('tasks'), key('schemas')
local found = {}

if REQUEST.names then
  for _, name in ipairs(REQUEST.names) do
    local at, body = tonumber(call('ZSCORE', known, name) or ''), call('HGET', bodies, name)
    if at and body and at > NOW - PUBLISHED_KEPT then
      found[#found + 1] = { body, at, call('HGET', schemas, name) }
    end
  end
  return found
end

local since = beyond(NOW - PUBLISHED_KEPT)
local some = call('ZREVRANGEBYSCORE', known, '+inf', since, 'WITHSCORES', 'LIMIT', 0, PUBLISHED_MOST)
for at = 1, #some, 2 do
  local body = call('HGET', bodies, some[at])
  if body then
    found[#found + 1] = { body, tonumber(some[at + 1]), false }
  end
end
return found
