#!lua flags=no-writes
-- requires: prelude
-- acts: return acts from the audit log, newest first, as far as one call gets.
--
-- Request: {limit, before, actor, action, target}. `before`: only acts with lower numbers.
-- Answer: {found, looked_to}. `found`: {number, record} for each act that matches. `looked_to`: the lowest number that
-- was examined, false if there are no further acts.
local EXAMINED, BYTES = 500, 1048576

local filtered = REQUEST.actor or REQUEST.action or REQUEST.target

local function matches(body)
  if not filtered then
    return true
  end
  local act = cmsgpack.unpack(body)
  return (not REQUEST.actor or act.actor == REQUEST.actor)
    and (not REQUEST.action or act.action == REQUEST.action)
    and (not REQUEST.target or act.target == REQUEST.target)
end

local top = REQUEST.before and beyond(REQUEST.before) or '+inf'
local some = filtered and EXAMINED or min(REQUEST.limit, EXAMINED)
local entries = call('ZREVRANGEBYSCORE', key('acts'), top, '-inf', 'WITHSCORES', 'LIMIT', 0, some)
local ids = {}
for at = 1, #entries, 2 do
  ids[#ids + 1] = entries[at]
end
local bodies = #ids > 0 and call('HMGET', key('act'), unpack(ids)) or {}
local found, bytes, looked_to = {}, 0, false
for place, body in ipairs(bodies) do
  looked_to = tonumber(entries[2 * place])
  if body and matches(body) then
    found[#found + 1] = { looked_to, body }
    bytes = bytes + #body
  end
  if #found == REQUEST.limit or bytes > BYTES then
    return { found, looked_to }
  end
end
return { found, #ids == some and looked_to }
