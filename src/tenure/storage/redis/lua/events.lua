#!lua flags=allow-oom
-- requires: cell
-- events: what happened after a cursor, in order and without a gap, as far as one step goes.
--
-- Request: {after, limit, ref, reader = {name, caller, begin}, age}. `after`: a number, absent for behind the newest; for
-- a named reader how far its last batch was handled. `begin`: where a reader begins that is not known yet, absent for
-- behind the newest. `age`: instead of `after`, what was recorded in the last so many microseconds. `ref`: only what
-- happened to that job.
-- Answer: {entries, next, oldest, last}. An entry is one of the stream's; `next`: the number of the last that was
-- looked at; `oldest`: the number before the oldest that is kept, where the place asked for is not there, else false.
local EVENT_LOAN = 5000000
local AT_ONCE, LOOKS, BYTES = 50, 400, 1048576

local function number_of(id)
  return tonumber(string.sub(id, 3))
end

-- The number before the oldest entry that is kept, and that of the newest there ever was.
local function bounds()
  if call('EXISTS', key('events')) == 0 then
    return 0, 0
  end
  local told = call('XINFO', 'STREAM', key('events'))
  local first, last
  for at = 1, #told, 2 do
    if told[at] == 'first-entry' then
      first = told[at + 1]
    elseif told[at] == 'last-generated-id' then
      last = number_of(told[at + 1])
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

-- Whether an entry is of a job, and how long it is.
local function look_at(entry, ref)
  local fields, is_of, size = entry[2], false, 0
  for at = 1, #fields, 2 do
    size = size + #fields[at + 1]
    is_of = is_of or fields[at] == 'j' and fields[at + 1] == ref
  end
  return is_of, size
end

local function read(after, limit, ref)
  local oldest = false
  -- A place behind the end was given before the storage was put back to an earlier state.
  if after < trimmed or after > last then
    after, oldest = trimmed, trimmed
  end
  local found, looks, bytes = {}, 0, 0
  while #found < limit and looks < LOOKS and bytes < BYTES and after < last do
    local count = ref and AT_ONCE or min(limit - #found, AT_ONCE)
    local entries = call('XRANGE', key('events'), '(0-' .. whole(after), '+', 'COUNT', count)
    if #entries == 0 then
      -- Somebody has deleted them by hand.
      after = last
    end
    for _, entry in ipairs(entries) do
      local is_of, size = look_at(entry, ref)
      after, looks, bytes = number_of(entry[1]), looks + 1, bytes + size
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
    -- What was handled was handled, even if the loan has passed on since.
    local handled = ASKED.after or 0
    -- A cursor beyond the end is of an earlier log, and says nothing of this one.
    kept.cursor = max(kept.cursor, handled <= last and handled or 0)
  elseif ASKED.after then
    -- A reader with a cursor that is unknown here was lost with an earlier log.
    kept = { cursor = trimmed }
  else
    kept = { cursor = min(reader.begin or last, last) }
  end
  -- A loan that ends further ahead than it is long was made before the clock was set back.
  local elsewhere = kept.lent_to
    and kept.lent_to ~= reader.caller
    and kept['until'] - EVENT_LOAN <= NOW
    and NOW < kept['until']
  local page
  if elsewhere then
    page = { {}, kept.cursor, false, last }
  else
    page = read(kept.cursor, ASKED.limit)
    local lends = #page[1] > 0 or page[3]
    kept.lent_to = lends and reader.caller or nil
    kept['until'] = lends and NOW + EVENT_LOAN or nil
  end
  local after = cmsgpack.pack(kept)
  if after ~= body then
    call('HSET', readers, reader.name, after)
  end
  return page
end

-- The number of the last entry that was recorded before an instant: found by halving, for the log may be long.
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

if ASKED.reader then
  return lend(ASKED.reader)
end
if ASKED.age then
  return read(before(NOW - ASKED.age), ASKED.limit, ASKED.ref)
end
return read(ASKED.after or last, ASKED.limit, ASKED.ref)
