-- requires: prelude
-- The encoded records, read and written many by one command. Record decodes a record and is from then on the only one
-- to use it. The fast path (parts/fast_path.lua) works on the bytes themselves.
local RecordBytes = {}

-- `known`: the current bytes of each record read or moved here, false without a record. `taken`: the refs that
-- Record has taken over.
local known, taken = {}, {}

-- The key of each record, because joining it takes longer than looking it up.
local names = {}

-- Deferred writes, as words of an MSET.
local words = {}

local function name_of(ref)
  local name = names[ref]
  if not name then
    name = key('job', ref)
    names[ref] = name
  end
  return name
end

-- Read records that will be needed soon, with one command.
function RecordBytes.fetch(refs)
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

-- The bytes of a record, or false without a record; nil if Record has taken it over.
function RecordBytes.get(ref)
  if taken[ref] then
    return nil
  end
  local body = known[ref]
  if body == nil then
    body = call('GET', name_of(ref))
  end
  return body
end

-- Return the bytes of a record to Record, which takes it over.
function RecordBytes.take(ref)
  local body = RecordBytes.get(ref)
  taken[ref] = true
  return body
end

-- Let Record take over a record without reading its bytes.
function RecordBytes.release(ref)
  taken[ref] = true
end

-- Write a record at the end of the script.
function RecordBytes.write(ref, body)
  local at = #words
  words[at + 1], words[at + 2] = name_of(ref), body
end

-- Write another key of a job, together with the records.
function RecordBytes.write_key(name, body)
  local at = #words
  words[at + 1], words[at + 2] = name, body
end

-- Replace a record that Record has not loaded.
function RecordBytes.replace(ref, body)
  known[ref] = body
  RecordBytes.write(ref, body)
end

-- Carry out the deferred writes, many by one command.
function RecordBytes.flush()
  for from = 1, #words, 500 do
    call('MSET', unpack(words, from, min(from + 499, #words)))
  end
  if #words > 0 then
    words = {}
  end
end
