-- requires: cell
-- The bytes of records, read and written many by one command. Who wants to know what they say loads them, by Record, and has
-- them to himself from then on; who moves a plain job (parts/passage.lua) goes from bytes to bytes.
local Bytes = {}

-- Of each record that was read, or moved since, what it is by now, or false where there is none; and which Record has.
local known, taken = {}, {}

-- The key of each, as to join it takes longer than to look it up.
local names = {}

-- What is not written yet, as words of an MSET.
local words = {}

local function name_of(ref)
  local name = names[ref]
  if not name then
    name = key('job', ref)
    names[ref] = name
  end
  return name
end

-- Read records that are asked for soon, by one command.
function Bytes.fetch(refs)
  local keys, wanted = {}, {}
  for _, ref in ipairs(refs) do
    if known[ref] == nil and not taken[ref] then
      local at = #keys + 1
      wanted[at], keys[at] = ref, name_of(ref)
    end
  end
  for from = 1, #keys, 500 do
    for at, body in ipairs(call('MGET', unpack(keys, from, min(from + 499, #keys)))) do
      known[wanted[from + at - 1]] = body
    end
  end
end

-- The bytes of a record, or false; nil where Record has it.
function Bytes.of(ref)
  if taken[ref] then
    return nil
  end
  local body = known[ref]
  if body == nil then
    body = call('GET', name_of(ref))
  end
  return body
end

-- The bytes of a record for Record, which has it from now on.
function Bytes.take(ref)
  local body = Bytes.of(ref)
  taken[ref] = true
  return body
end

-- Leave a record to Record, whatever its bytes are.
function Bytes.let_go(ref)
  taken[ref] = true
end

-- Write a record, when this script ends.
function Bytes.write(ref, body)
  local at = #words
  words[at + 1], words[at + 2] = name_of(ref), body
end

-- Write what is kept beside a record with it.
function Bytes.write_beside(name, body)
  local at = #words
  words[at + 1], words[at + 2] = name, body
end

-- Move a record that nobody has loaded.
function Bytes.rewrite(ref, body)
  known[ref] = body
  Bytes.write(ref, body)
end

-- Write what waits for it, many by one command.
function Bytes.flush()
  for from = 1, #words, 500 do
    call('MSET', unpack(words, from, min(from + 499, #words)))
  end
  if #words > 0 then
    words = {}
  end
end
