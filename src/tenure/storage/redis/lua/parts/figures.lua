-- requires: prelude
-- Figures: how many runs ended in each minute and hour, with histograms (core/figures.py).
--
-- minutes:<queue>\0<start of the hour>  HASH  the cells of the minutes of an hour. Such a key expires
-- hours:<queue>\0<start of the day>     HASH  the cells of the hours of a day. Such a key expires
--
-- A cell is a field "<place>\0<task>", its counts as a msgpack list. `place`: the number of the minute or hour in the
-- key. An empty task: all tasks of the queue. A field "<place>": how many tasks have cells of their own there.
local Figures = {}

-- For each level: the length of a cell, the time that one key covers, and how long a cell is kept.
-- constants: FIGURES, TASKS_KEPT, OTHERS, FIGURE_COUNTS, FIGURE_ENDS

local function counts_in(body)
  local readable, counts = pcall(cmsgpack.unpack, body)
  return readable and type(counts) == 'table' and #counts == FIGURE_COUNTS and counts
end

-- Add counts to a cell.
local function add_to(hash, field, counts)
  local before = call('HGET', hash, field)
  before = before and counts_in(before)
  local sums = {}
  for number, count in ipairs(counts) do
    sums[number] = count + (before and before[number] or 0)
  end
  call('HSET', hash, field, cmsgpack.pack(sums))
end

-- Add what was counted of a queue's task to the cells of one level.
local function add_at(kind, level, queue, task, counts)
  local begins = NOW - NOW % level.span
  local hash, place = key(kind, pair(queue, whole(begins))), whole(floor((NOW - begins) / level.length))
  local is_first = call('HEXISTS', hash, pair(place, '')) == 0
  task = task == '' and OTHERS or task
  if task ~= OTHERS and call('HEXISTS', hash, pair(place, task)) == 0 then
    if tonumber(call('HGET', hash, place) or 0) >= TASKS_KEPT then
      task = OTHERS
    else
      call('HINCRBY', hash, place, 1)
    end
  end
  add_to(hash, pair(place, task), counts)
  add_to(hash, pair(place, ''), counts)
  if is_first then
    call('PEXPIRE', hash, whole(floor((begins + level.span + level.kept - NOW) / 1000)))
  end
end

-- Add a delta: what a process has counted, as {queue, task, counts} each.
function Figures.add(delta)
  for _, counted in ipairs(delta) do
    for kind, level in pairs(FIGURES) do
      add_at(kind, level, counted[1], counted[2], counted[3])
    end
  end
end

local ended = {}

-- Count the end of a job that has not started.
function Figures.count_end(job, outcome)
  local name = pair(job.queue, job.task)
  if not ended[name] then
    local counts = {}
    for number = 1, FIGURE_COUNTS do
      counts[number] = 0
    end
    ended[name] = { job.queue, job.task, counts }
    ended[#ended + 1] = ended[name]
  end
  local counts = ended[name][3]
  counts[FIGURE_ENDS[outcome]] = counts[FIGURE_ENDS[outcome]] + 1
end

function Figures.flush()
  local counted = ended
  ended = {}
  Figures.add(counted)
end

-- Return the counts of a task's cells, as they are stored. A range is {queue, start of its key, first and last place}.
function Figures.read(kind, task, ranges)
  local found = {}
  for number, range in ipairs(ranges) do
    local fields = {}
    for place = range[3], range[4] do
      fields[#fields + 1] = pair(whole(place), task)
    end
    found[number] = call('HMGET', key(kind, pair(range[1], whole(range[2]))), unpack(fields))
  end
  return found
end
