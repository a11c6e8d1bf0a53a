-- requires: cell
-- Entries of sorted sets that are put and taken out when a script ends, all of an index by one command: a command takes
-- longer to call than to do. What a script itself may come to look at again is written at once; or `flush` goes before.
local Index = {}

local unwritten = {}

-- The same of whatever is moved once and looked at by nobody: plain words of commands, put down where they are made.
local words_put, words_gone = {}, {}

-- The words to which whoever puts entries into an index adds them, number and member.
function Index.puts(index)
  local words = words_put[index]
  if not words then
    words = {}
    words_put[index] = words
  end
  return words
end

-- The words to which whoever takes members out of an index adds them.
function Index.gone(index)
  local words = words_gone[index]
  if not words then
    words = {}
    words_gone[index] = words
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

function Index.put(index, number, member)
  entries_of(index)[member] = number
end

function Index.take_out(index, member)
  entries_of(index)[member] = false
end

local function write(command, index, words)
  for from = 1, #words, 1000 do
    call(command, index, unpack(words, from, min(from + 999, #words)))
  end
end

-- Write down what was put and taken out until now. Every script that moves anything ends with it.
function Index.flush()
  for index, words in pairs(words_gone) do
    words_gone[index] = nil
    write('ZREM', index, words)
  end
  for index, words in pairs(words_put) do
    words_put[index] = nil
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
