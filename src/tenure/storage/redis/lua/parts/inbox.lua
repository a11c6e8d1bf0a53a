-- requires: prelude, job_indexes
-- The tokens that arrived for a job. `Inbox` of core/waiting.py has the same rules, with reasons.
--
-- inbox:<ref>         HASH  for each key of a box, `t<box>\0<key>`: c if it completed, f if it failed. For each box:
--                           `a<box>`, how many keys have a token; `f<box>`, how many of them failed; `n<box>`, how many
--                           there will be, once known; `o<box>\0<n>`, the content of its n-th completed token;
--                           `r<box>`, how many of its signals the job was awakened with
-- inbox_failed:<ref>  ZSET  the failed keys: box and key, the key after its length, all at 0. The first of a box is the
--                           failed key that comes first
--
-- inbox_arrived:<ref>, inbox_completed:<ref>  STRING  bits, by number: the keys of one box that are numbers, as those of
--                                                     a group's members are; a field each would take far more memory
--
-- The numbers make a delivery, and a look at a box, equally fast for any number of keys. A job with an inbox has
-- `boxed`, so it is not plain; `bits`: the box whose keys have bits, the first one that got a token under a number.
local Inbox = {}

-- constants: SIGNALS_LIMIT

-- Keys from this number on have no bits: a single token must not take much memory.
local BITS = 131072

local function failed_entry(token)
  return pair(token.box, string.format('%08d', #token.key) .. token.key)
end

-- Note that a job has an inbox; `bits`: a box whose keys have bits from now on.
local function note(job, bits)
  if not job.boxed or bits and not job.bits then
    JobIndexes.update(job, { boxed = true, bits = bits })
  end
end

-- Return the number of the bits of a token; nil if it has a field.
local function bit_of(job, token)
  local number = (job.bits or token.box) == token.box and tonumber(token.key)
  return number and number < BITS and whole(number) == token.key and number or nil
end

-- Keep a token as bits; return 'c' or 'f' if its key had a token, and true if that changed.
local function set_bits(job, number, completed)
  local known = call('SETBIT', key('inbox_arrived', job.ref), number, 1) == 1 and 'f' or nil
  if not completed then
    return known, not known
  end
  local was_completed = call('SETBIT', key('inbox_completed', job.ref), number, 1) == 1
  return was_completed and 'c' or known, not was_completed
end

-- The same for a token that has a field.
local function set_field(job, token)
  local hash, field = key('inbox', job.ref), 't' .. pair(token.box, token.key)
  local known = call('HGET', hash, field) or nil
  if known == 'c' or known and token.outcome == 'failed' then
    return known, false
  end
  call('HSET', hash, field, token.outcome == 'failed' and 'f' or 'c')
  return known, true
end

-- Keep the maximum of a token and the one under its key; return true if that changed the inbox.
-- A token is {box, key, outcome, body}.
function Inbox.deliver(job, token)
  local hash, box, number = key('inbox', job.ref), token.box, bit_of(job, token)
  note(job, number and box)
  local known, is_new
  if number then
    known, is_new = set_bits(job, number, token.outcome == 'completed')
  else
    known, is_new = set_field(job, token)
  end
  if not is_new then
    return false
  end
  if not known then
    call('HINCRBY', hash, 'a' .. box, 1)
  end
  if token.outcome == 'failed' then
    call('HINCRBY', hash, 'f' .. box, 1)
    call('ZADD', key('inbox_failed', job.ref), 0, failed_entry(token))
    return true
  end
  if known then
    call('HINCRBY', hash, 'f' .. box, -1)
    call('ZREM', key('inbox_failed', job.ref), failed_entry(token))
  end
  if token.body then
    local found = Inbox.read(job, { box })[box]
    call('HSET', hash, 'o' .. pair(box, whole(found.arrived - found.failed)), token.body)
  end
  return true
end

-- Record how many keys a box will have; return true if that changed the inbox. The largest number counts.
function Inbox.seal(job, box, total)
  local hash = key('inbox', job.ref)
  local known = job.boxed and tonumber(call('HGET', hash, 'n' .. box) or '')
  if known and known >= total then
    return false
  end
  note(job)
  call('HSET', hash, 'n' .. box, total)
  return true
end

-- Note that the job was awakened with the first `count` signals of a box.
function Inbox.note_read(job, box, count)
  local hash = key('inbox', job.ref)
  if count > (tonumber(call('HGET', hash, 'r' .. box) or '') or 0) then
    note(job)
    call('HSET', hash, 'r' .. box, count)
  end
end

-- Return true if the job has not read so many signals of this name that it takes no other one. A repeated signal is not
-- another one.
function Inbox.is_full(job, signal)
  local hash, box = key('inbox', job.ref), signal.box
  local numbers = job.boxed and call('HMGET', hash, 'a' .. box, 'r' .. box) or {}
  if (tonumber(numbers[1] or '') or 0) - (tonumber(numbers[2] or '') or 0) < SIGNALS_LIMIT then
    return false
  end
  local number = bit_of(job, signal)
  if number then
    return call('GETBIT', key('inbox_completed', job.ref), number) == 0
  end
  return call('HGET', hash, 't' .. pair(box, signal.key)) ~= 'c'
end

-- Return what is known of each of these boxes, by its name: {arrived, failed, total}; without a total until it is known.
function Inbox.read(job, boxes)
  local found, fields = {}, {}
  for number, box in ipairs(boxes) do
    fields[3 * number - 2], fields[3 * number - 1], fields[3 * number] = 'a' .. box, 'f' .. box, 'n' .. box
  end
  local numbers = job.boxed and call('HMGET', key('inbox', job.ref), unpack(fields)) or {}
  for number, box in ipairs(boxes) do
    found[box] = {
      arrived = tonumber(numbers[3 * number - 2] or '') or 0,
      failed = tonumber(numbers[3 * number - 1] or '') or 0,
      total = tonumber(numbers[3 * number] or ''),
    }
  end
  return found
end

-- Return the failed key of a box that comes first: short keys before long ones, so that numbers are in their order.
function Inbox.first_failed(job, box)
  local from, to = '[' .. pair(box, ''), '(' .. box .. '\1'
  local entry = call('ZRANGEBYLEX', key('inbox_failed', job.ref), from, to, 'LIMIT', 0, 1)[1]
  return entry and string.sub(entry, #box + 10)
end

-- Return the content of a box's n-th completed token; nil if it has none.
function Inbox.body(job, box, number)
  return job.boxed and call('HGET', key('inbox', job.ref), 'o' .. pair(box, whole(number))) or nil
end
