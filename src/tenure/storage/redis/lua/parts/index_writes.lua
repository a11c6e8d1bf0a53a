-- requires: prelude
-- Deferred changes of sorted sets: written when a script ends, with one command for each index, because calling a
-- command costs more than the change itself. Entries that the script may read again are written at once, or `flush` is
-- called before the read.
local IndexWrites = {}

local unwritten = {}

-- The same for jobs that are moved once and not read again: the words of the commands, to which callers append
-- directly.
local words_added, words_removed = {}, {}

-- The list to which a caller appends the entries to put into an index: score, then member.
function IndexWrites.additions(index)
  local words = words_added[index]
  if not words then
    words = {}
    words_added[index] = words
  end
  return words
end

-- The list to which a caller appends the members to take out of an index.
function IndexWrites.removals(index)
  local words = words_removed[index]
  if not words then
    words = {}
    words_removed[index] = words
  end
  return words
end

local function entries_of(index)
  local entries = unwritten[index]
  if not entries then
    entries = {}
    unwritten[index] = entries
  end
  return entries
end

function IndexWrites.put(index, number, member)
  entries_of(index)[member] = number
end

function IndexWrites.remove(index, member)
  entries_of(index)[member] = false
end

local function write(command, index, words)
  for from = 1, #words, 1000 do
    call(command, index, unpack(words, from, min(from + 999, #words)))
  end
end

-- Write the deferred changes. Every script that moves jobs ends with it.
function IndexWrites.flush()
  for index, words in pairs(words_removed) do
    words_removed[index] = nil
    write('ZREM', index, words)
  end
  for index, words in pairs(words_added) do
    words_added[index] = nil
    write('ZADD', index, words)
  end
  for index, entries in pairs(unwritten) do
    unwritten[index] = nil
    local put, taken_out = {}, {}
    for member, number in pairs(entries) do
      if number then
        put[#put + 1], put[#put + 2] = number, member
      else
        taken_out[#taken_out + 1] = member
      end
    end
    write('ZREM', index, taken_out)
    write('ZADD', index, put)
  end
end
