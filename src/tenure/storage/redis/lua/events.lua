#!lua flags=allow-oom
-- requires: prelude
-- events: return the events after a cursor, in order and without gaps, as far as one call gets.
--
-- Request: {after, limit, ref, reader = {name, caller, begin}, age}.
--   after   a number; absent: after the newest event. For a named reader: how far its last batch was handled
--   begin   where a new reader begins; absent: after the newest event
--   age     instead of `after`: the events recorded in the last `age` microseconds
--   ref     only the events of this job
-- Answer: {entries, next, oldest, last}. `entries`: of the stream. `next`: the number of the last event examined.
-- `oldest`: the number before the oldest kept event if the requested place is not in the log, else false. `last`: the
-- number of the newest event.
-- constants: EVENT_LOAN
local AT_ONCE, EXAMINED, BYTES = 50, 400, 1048576

local function number_of(id)
  return tonumber(string.sub(id, 3))
end

-- Return the number before the oldest kept event, and the number of the newest event there ever was.
local function bounds()
  if call('EXISTS', key('events')) == 0 then
    return 0, 0
  end
  local info = call('XINFO', 'STREAM', key('events'))
  local first, last
  for at = 1, #info, 2 do
    if info[at] == 'first-entry' then
      first = info[at + 1]
    elseif info[at] == 'last-generated-id' then
      last = number_of(info[at + 1])
    end
  end
  return first and number_of(first[1]) - 1 or last, last
end

local function at_of(entry)
  local fields = entry[2]
  for at = 1, #fields, 2 do
    if fields[at] == 't' then
      return tonumber(fields[at + 1])
    end
  end
  return 0
end

local trimmed, last = bounds()

-- Return true if an entry belongs to a job; and its size in bytes.
local function examine(entry, ref)
  local fields, is_of, size = entry[2], false, 0
  for at = 1, #fields, 2 do
    size = size + #fields[at + 1]
    is_of = is_of or fields[at] == 'j' and fields[at + 1] == ref
  end
  return is_of, size
end

local function read(after, limit, ref)
  local oldest = false
  -- A place after the end was given out before the storage was restored to an earlier state.
  if after < trimmed or after > last then
    after, oldest = trimmed, trimmed
  end
  local found, examined, bytes = {}, 0, 0
  while #found < limit and examined < EXAMINED and bytes < BYTES and after < last do
    local count = ref and AT_ONCE or min(limit - #found, AT_ONCE)
    local entries = call('XRANGE', key('events'), '(0-' .. whole(after), '+', 'COUNT', count)
    if #entries == 0 then
      -- The events were deleted manually.
      after = last
    end
    for _, entry in ipairs(entries) do
      local is_of, size = examine(entry, ref)
      after, examined, bytes = number_of(entry[1]), examined + 1, bytes + size
      if is_of or not ref then
        found[#found + 1] = entry
        if #found == limit then
          break
        end
      end
    end
  end
  return { found, after, oldest, last }
end

-- Lend a named reader's next batch to this caller alone.
local function lend(reader)
  local readers = key('readers')
  local body = call('HGET', readers, reader.name)
  local kept = body and cmsgpack.unpack(body)
  if kept then
    -- Handled events count, even if another caller got the loan meanwhile.
    local handled = REQUEST.after or 0
    -- A cursor beyond what this log has lent belongs to an earlier log, so ignore it. (An entry of an earlier version
    -- does not say what it has lent.)
    kept.lent_upto = kept.lent_upto or last
    kept.cursor = max(kept.cursor, handled <= kept.lent_upto and handled or 0)
  elseif REQUEST.after then
    -- The reader has a cursor but is unknown here: its entry was lost with an earlier log.
    kept = { cursor = trimmed }
  else
    kept = { cursor = min(reader.begin or last, last) }
  end
  kept.lent_upto = kept.lent_upto or kept.cursor
  -- If a loan ends later than its whole length from now, the clock was set back since: it counts as over.
  local elsewhere = kept.lent_to
    and kept.lent_to ~= reader.caller
    and kept['until'] - EVENT_LOAN <= NOW
    and NOW < kept['until']
  local page
  if elsewhere then
    page = { {}, kept.cursor, false, last }
  else
    page = read(kept.cursor, REQUEST.limit)
    local lends = #page[1] > 0 or page[3]
    kept.lent_upto = max(kept.lent_upto, page[2])
    kept.lent_to = lends and reader.caller or nil
    kept['until'] = lends and NOW + EVENT_LOAN or nil
  end
  local after = cmsgpack.pack(kept)
  if after ~= body then
    call('HSET', readers, reader.name, after)
  end
  return page
end

-- Return the number of the last event recorded before an instant; a binary search, because the log may be long.
local function before(instant)
  local low, high = trimmed, last
  while low < high do
    local middle = floor((low + high) / 2)
    local entry = call('XRANGE', key('events'), '(0-' .. whole(middle), '+', 'COUNT', 1)[1]
    if entry and at_of(entry) < instant then
      low = number_of(entry[1])
    else
      high = middle
    end
  end
  return low
end

if REQUEST.reader then
  return lend(REQUEST.reader)
end
if REQUEST.age then
  return read(before(NOW - REQUEST.age), REQUEST.limit, REQUEST.ref)
end
return read(REQUEST.after or last, REQUEST.limit, REQUEST.ref)
