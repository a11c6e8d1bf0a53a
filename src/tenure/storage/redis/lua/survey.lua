#!lua flags=no-writes
-- requires: record, limits, figures
-- survey: count the jobs of queues, some queues at a time, by the sizes of indexes; `whole`: return other data, too.
--
-- Request: {queues, after, span, whole, faults}. Without `queues`, it counts `span` of the partition's queues, those
-- after the number `after`, but not internal ones. `faults`: how many faults of these queues to return.
-- Answer: {rows, next, now, faults[, settings, discarded, workers, seen, schedules, leader, limits]}. A row is {queue,
-- number of ready jobs, since when the longest-waiting job waits or false, unknown tasks, number of jobs in each state
-- ...}. `next`: the number after which there are more queues, or false. A fault is {queue, fault, number of its jobs, when
-- the first and the last of them ended, the newest by id and end, and the task, reason and error of the last}. The fields
-- after `faults` are the raw contents of these keys.
-- A request {figures = {kind, task, ranges}} is answered with the cells of figures alone, as in parts/figures.lua.
-- constants: FAULT_NEWEST, INTERNAL
local STATES = { 'delayed', 'waiting', 'again', 'active', 'completed', 'failed', 'cancelled', 'expired' }

-- Since when the longest-waiting job of a queue has been waiting.
local function oldest(queue)
  local since = head_of(key('ages', queue))
  local first = first_of(key('in', pair(queue, 'waiting')), 1)[1]
  local job = first and Record.get_in(queue, first)
  if job then
    since = since and min(since, job.run_at) or job.run_at
  end
  return since or false
end

-- The unknown tasks of a queue: the names under which jobs are parked, and since when the longest-waiting of the first
-- jobs waits.
local function unknown(queue)
  local found = {}
  for _, name in ipairs(first_of(key('unknown', queue), LOOK_LIMIT)) do
    local since
    for _, id in ipairs(first_of(key('parked', pair(queue, name)), UNKNOWN_LOOKS)) do
      local job = Record.get_in(queue, id)
      since = job and min(job.run_at, since or job.run_at) or since
    end
    if since then
      found[#found + 1], found[#found + 2] = name, since
    end
  end
  return found
end

local function row_of(queue)
  local row = { queue, 0, false, {} }
  for number, state in ipairs(STATES) do
    row[4 + number] = call('ZCARD', key('in', pair(queue, state)))
  end
  -- A queue without waiting jobs needs no more.
  if row[6] + row[7] > 0 then
    row[2], row[3], row[4] = call('ZCARD', key('ready', queue)), oldest(queue), unknown(queue)
  end
  return row
end

-- How many faults of a queue are compared.
local COMPARED = 1000

local function entry(queue, place)
  local index = key('failed', place)
  local count = call('ZCARD', index)
  if count == 0 then
    return nil
  end
  local first = call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
  local last = call('ZRANGE', index, -1, -1, 'WITHSCORES')[2]
  return { queue = queue, place = place, count = count, first = tonumber(first), last = tonumber(last) }
end

local function by_frequency(one, other)
  if one.count ~= other.count then
    return one.count > other.count
  elseif one.last ~= other.last then
    return one.last > other.last
  end
  return one.place < other.place
end

-- Return the faults of these queues with the most jobs, at most `limit`: for each its queue and name, the number of its
-- jobs, when the first and the last of them ended, the ids of the newest, and the task, reason and error of the last.
local function faults_of(queues, limit)
  local found = {}
  for _, queue in ipairs(queues) do
    local from, to = '[' .. pair(queue, ''), '(' .. queue .. '\1'
    for _, place in ipairs(call('ZRANGEBYLEX', key('faults'), from, to, 'LIMIT', 0, COMPARED)) do
      found[#found + 1] = entry(queue, place)
    end
  end
  table.sort(found, by_frequency)
  local rows = {}
  for number = 1, min(limit, #found) do
    local fault = found[number]
    local queue, name = parts_of(fault.place)
    local newest = call('ZRANGE', key('failed', fault.place), 0, FAULT_NEWEST - 1, 'REV', 'WITHSCORES')
    local job = Record.get_in(queue, newest[1]) or {}
    rows[number] = { queue, name, fault.count, fault.first, fault.last, newest }
    rows[number][7], rows[number][8], rows[number][9] = job.task or '', job.reason or false, job.error or false
  end
  return rows
end

if REQUEST.figures then
  return Figures.read(REQUEST.figures.kind, REQUEST.figures.task, REQUEST.figures.ranges)
end
local rows, more = {}, false
if REQUEST.queues then
  for number, queue in ipairs(REQUEST.queues) do
    rows[number] = row_of(queue)
  end
else
  local from = REQUEST.after and '(' .. REQUEST.after or '-inf'
  local some = call('ZRANGEBYSCORE', key('queues'), from, '+inf', 'WITHSCORES', 'LIMIT', 0, REQUEST.span + 1)
  local count = min(#some, 2 * REQUEST.span)
  for at = 1, count, 2 do
    rows[#rows + 1] = string.sub(some[at], 1, #INTERNAL) ~= INTERNAL and row_of(some[at]) or nil
  end
  more = count < #some and tonumber(some[count])
end
local names = {}
for number, row in ipairs(rows) do
  names[number] = row[1]
end
local faults = REQUEST.faults and faults_of(names, REQUEST.faults) or {}
if not REQUEST.whole then
  return { rows, more, NOW, faults }
end
return {
  rows,
  more,
  NOW,
  faults,
  call('HGETALL', key('settings')),
  call('HGETALL', key('discarded')),
  call('HGETALL', key('workers')),
  call('ZRANGE', key('seen'), 0, -1, 'WITHSCORES'),
  call('HVALS', key('schedules')),
  call('HGETALL', key('leader')),
  Limits.all(LOOK_LIMIT),
}
