-- requires: prelude, skips, dependents
-- The outbox: entries that say which jobs are yet to be notified of an end. A worker, or a sweep's caller, carries them
-- out by deliveries, and strikes them off only then.
--
-- outbox                      HASH  the entries by number, as msgpack: {ref, 1 if the job completed, cursor, total, the
--                                   first dependents, 1 if the entry has a key of its own}
-- outbox_due                  ZSET  the numbers of the entries, by when a sweep hands them out
-- outbox_dependents:<number>  ZSET  the other dependents, if the job was deleted; else they are those of the job
--                                   (parts/dependents.lua)
-- counters                    HASH  entries: how many numbers were given to entries
local Outbox = {}

-- constants: ENTRY_PAGE, OUTBOX_LIMIT, OUTBOX_DELAY

local written = {}

local function read(number)
  local body = call('HGET', key('outbox'), number)
  return body and cmsgpack.unpack(body)
end

local function keep(number, entry)
  call('HSET', key('outbox'), number, cmsgpack.pack(entry))
end

local function next_number()
  return whole(call('HINCRBY', key('counters'), 'entries', 1))
end

-- Write an entry for an end: {ref, completed, dependents, more, number}. `more`: how many dependents are in the key of the
-- job. `number`: from `Outbox.take_over`, if the job was deleted. Return the number of the entry.
function Outbox.write(ended)
  local number, first, more = ended.number or next_number(), ended.dependents, ended.more or 0
  local completed, apart = ended.completed and 1 or 0, ended.number and more > 0 and 1 or 0
  keep(number, { ended.ref, completed, 0, #first / 3 + more, first, apart })
  call('ZADD', key('outbox_due'), whole(NOW + OUTBOX_DELAY), number)
  Skips.finish()
  written[#written + 1] = number
  return number
end

local function delete(number, entry)
  call('HDEL', key('outbox'), number)
  call('ZREM', key('outbox_due'), number)
  if entry[6] == 1 then
    call('UNLINK', key('outbox_dependents', number))
  end
end

-- Delete the entry of an earlier failure of a job: the entry that replaces it notifies all of its dependents.
function Outbox.replace(number, ref)
  local entry = read(number)
  if entry and entry[1] == ref and entry[2] == 0 then
    delete(number, entry)
  end
end

-- Take the dependents that lie in the key of a job which is deleted now: for its entry; or, if its end is yet to be
-- handed over, for the entry of the number that is returned.
function Outbox.take_over(job)
  local dependents, number = key('dependents', job.ref), job.entry and whole(job.entry)
  if not TERMINAL[job.state] then
    number = next_number()
    call('RENAME', dependents, key('outbox_dependents', number))
    return number
  end
  local entry = number and read(number)
  if entry and entry[1] == job.ref and entry[4] > #entry[5] / 3 then
    call('RENAME', dependents, key('outbox_dependents', number))
    entry[6] = 1
    keep(number, entry)
  else
    call('UNLINK', dependents)
  end
  return nil
end

-- Record how far an entry was carried out; return 'done', or 'gone' if it is not the entry that the caller means. The
-- next page is handed out at once; without progress, the entry is handed out again after `put_off`.
function Outbox.advance(ref, number, cursor, put_off)
  number = whole(number)
  local entry = read(number)
  if not entry or entry[1] ~= ref or cursor < entry[3] then
    return 'gone'
  elseif cursor >= entry[4] then
    delete(number, entry)
    return 'done'
  end
  local at = cursor > entry[3] and NOW or NOW + put_off
  entry[3] = cursor
  keep(number, entry)
  call('ZADD', key('outbox_due'), whole(at), number)
  return 'done'
end

-- The next dependents that an entry notifies, {ref, box, key, ref, box, key, ...}.
local function page(number, entry)
  local cursor, total, first = entry[3], entry[4], entry[5]
  local known = #first / 3
  local some = { unpack(first, 3 * cursor + 1, 3 * min(known, cursor + ENTRY_PAGE)) }
  local to = min(total, cursor + ENTRY_PAGE)
  if to > known then
    local others = entry[6] == 1 and key('outbox_dependents', number) or key('dependents', entry[1])
    Dependents.append(some, call('ZRANGE', others, max(cursor, known) - known, to - known - 1))
  end
  return some
end

-- Return entries as answers have them: {number, ref, 1 if the job completed, cursor, the page at the cursor} of each.
local function shown(numbers)
  local entries = {}
  for _, number in ipairs(numbers) do
    local entry = #entries < OUTBOX_LIMIT and read(number)
    if entry then
      entries[#entries + 1] = { tonumber(number), entry[1], entry[2], entry[3], page(number, entry) }
    end
  end
  return entries
end

-- Return the entries that this script has written.
function Outbox.written()
  return shown(written)
end

-- Return the entries that a sweep hands out, those first that have waited longest.
function Outbox.due()
  return shown(up_to(key('outbox_due'), NOW, OUTBOX_LIMIT))
end
