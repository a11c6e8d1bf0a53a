-- requires: prelude, event_log
-- The identity of the partition, by which a worker notices that another partition has replaced the one it knew.
--
-- schema    STRING  the layout
-- identity  STRING  a random text and the instant at which the partition was created: written once, with the layout
--
-- `fresh`: a random text from the caller, for a partition that is created now.
local Identity = {}

local function write(identity, created)
  call('SET', key('identity'), identity .. ' ' .. whole(created))
end

-- Write the layout and the identity of a partition that is created now.
function Identity.write(layout, fresh)
  call('SET', key('schema'), layout)
  write(fresh, NOW)
end

-- Write the identity that is missing. Return 1 if nothing else was missing, else 0.
local function repair(seen, layout, fresh, last)
  if call('EXISTS', key('schema')) == 0 then
    Identity.write(layout, fresh)
    return 0
  end
  if not seen.last_event then
    -- Another worker may have seen the identity, and writes it again with its next beat. This one comes back.
    return 0
  end
  if seen.identity and seen.last_event <= last then
    write(seen.identity, seen.created or NOW)
    return 1
  end
  -- A partition that an earlier version created has no identity. If the log is shorter too, the rest is lost as well.
  write(fresh, NOW)
  return 0
end

-- Return the state of the partition, and compare its log with what a worker saw: {identity and creation, the last
-- event's number, its instant, 1 if the log continues what the worker saw, 1 if only the identity was missing}. The
-- identity is empty if it is missing and the worker saw nothing yet.
-- Request: {identity, created, last_event, last_event_at}, empty if the worker saw nothing yet.
function Identity.state(seen, layout, fresh)
  local identity, repaired = call('GET', key('identity')), 0
  local last, at = EventLog.last()
  if not identity then
    repaired = repair(seen, layout, fresh, last)
    identity = call('GET', key('identity')) or ''
  end
  return { identity, last, at, EventLog.continues(seen, last) and 1 or 0, repaired }
end
