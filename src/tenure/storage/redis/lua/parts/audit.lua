-- requires: prelude, record, index_writes, event_log, job_indexes
-- Compares records and indexes in both directions, and repairs differences: the record is right.
--
-- There should never be a difference. One means that keys were changed manually, or that we have a bug. It is recorded
-- as an event.
--
-- sweep  HASH  how far each round of the sweeps has got
local Audit = {}

-- How many entries one sweep compares with their records: half of them in indexes where a mistake has effects soon.
Audit.LIMIT = 50

-- Maximum number of indexes that a round visits at a time, empty ones included.
local STEPS = 20

-- The indexes whose members are refs, those of active jobs first.
local LIVE = { 'leases', 'suspects', 'redrives' }
local REST = { 'aging', 'kept' }

-- The indexes of a queue, by what follows their kind.
local OF_QUEUE = { 'ready', 'delayed', 'ages' }
local STATES = { 'active', 'waiting', 'again', 'delayed', 'completed', 'failed', 'cancelled', 'expired' }
local ENDS = { 'completed', 'failed', 'cancelled', 'expired' }

local function shown(index)
  return (string.gsub(string.sub(index, #BASE + 2), '%z', ' '))
end

local function record_repair(ref, job, found, repairs)
  local queue, id = parts_of(ref)
  local about = job or { queue = queue, id = id, task = '', starts = 0, ref = ref }
  local event = { found = table.concat(found, '; '), repair = table.concat(repairs, '; ') }
  EventLog.record_job_event(about, 'repaired', event)
end

-- Check the registers by which claims and sweeps find queues, places and keys; add missing entries.
local function check_registers(job, found, repairs)
  local queue = job.queue
  local function has(register, member, number, is_right, option)
    local there = tonumber(call('ZSCORE', key(register), member) or '')
    if not there or (is_right and not is_right(there)) then
      call('ZADD', key(register), option or 'NX', number, member)
      found[#found + 1] = 'missing in ' .. register
      repairs[#repairs + 1] = 'put there'
    end
  end
  has('queues', queue, job.made)
  if job.state == 'delayed' then
    has('dues', queue, job.run_at, function(there)
      return there <= job.run_at
    end, 'LT')
  elseif job.parked_under then
    has('places', pair(queue, job.parked_under), 0)
    if starts_with(job.parked_under, UNKNOWN) then
      has('unknown:' .. queue, job.parked_under, 0)
    end
  end
  if job.fault then
    has('faults', pair(queue, job.fault), 0)
  end
  if not TERMINAL[job.state] then
    for _, held in ipairs(job.keys) do
      if call('HSETNX', key('limits', queue), held[1], held[2]) == 1 then
        call('HINCRBY', key('named', queue), held[1], 1)
        found[#found + 1] = 'key without a limit'
        repairs[#repairs + 1] = 'given its own'
      end
    end
  end
end

-- Note that an entry was taken out of an index: it may have been the last unfinished job of its queue.
local function record_if_drained(index, queue)
  for _, state in ipairs({ 'delayed', 'waiting', 'again', 'active' }) do
    if index == key('in', pair(queue, state)) then
      EventLog.record_if_drained(queue)
    end
  end
end

-- Compare an index entry with its record, and the record with all indexes. Return the job if the entry is right.
function Audit.check(index, ref, member)
  IndexWrites.flush()
  local job = Record.get(ref)
  if not job then
    call('ZREM', index, member)
    -- Otherwise the next beat would add it to the leases again.
    call('HDEL', key('beats'), ref)
    Record.delete_trace(ref)
    record_repair(ref, nil, { 'in ' .. shown(index) .. ' without a record' }, { 'taken out' })
    record_if_drained(index, (parts_of(ref)))
    return nil
  end
  local found, repairs, belongs = {}, {}, false
  for _, place in ipairs(JobIndexes.entries(job)) do
    belongs = belongs or place[1] == index
    local number = tonumber(call('ZSCORE', place[1], place[3]) or '')
    if number ~= place[2] then
      call('ZADD', place[1], place[2], place[3])
      found[#found + 1] = (number and 'misplaced in ' or 'missing in ') .. shown(place[1])
      repairs[#repairs + 1] = 'put there'
    end
  end
  if not belongs then
    call('ZREM', index, member)
    found[#found + 1] = 'in ' .. shown(index)
    repairs[#repairs + 1] = 'taken out'
  end
  check_registers(job, found, repairs)
  if #found > 0 then
    Record.mark_changed(job)
    record_repair(ref, job, found, repairs)
  end
  if not belongs then
    record_if_drained(index, job.queue)
  end
  return belongs and job or nil
end

local function has_merge_name(job, name)
  return not TERMINAL[job.state] and job.merge and JobIndexes.merge_name(job.merge) == name
end

-- For each index, a function that returns true if a job belongs there.
local BELONGS = {
  leases = function(job)
    return job.state == 'active' and not job.suspect_until
  end,
  suspects = function(job)
    return job.state == 'active' and job.suspect_until ~= nil
  end,
  aging = function(job)
    return (job.state == 'waiting' or job.state == 'delayed') and job.expires_at ~= nil
  end,
  kept = function(job)
    return job.state == 'completed' and job.kept_until ~= nil
  end,
  redrives = function(job)
    return job.state == 'failed' and job.redrive_at ~= nil
  end,
  ready = function(job)
    return job.state == 'waiting' and not job.parked_under
  end,
  parked = function(job, under)
    return job.state == 'waiting' and job.parked_under == under
  end,
  delayed = function(job)
    return job.state == 'delayed'
  end,
  merge = function(job, name)
    return has_merge_name(job, name) and JobIndexes.is_open(job)
  end,
  busy = function(job, name)
    return has_merge_name(job, name) and not JobIndexes.is_open(job)
  end,
  queued = function(job, schedule)
    return job.schedule == schedule and (job.state == 'waiting' or job.state == 'delayed')
  end,
  running = function(job, schedule)
    return job.schedule == schedule and job.state == 'active'
  end,
}

-- Return the job of an entry in an index of refs, if its state belongs there; a wrong entry must not block a chore.
function Audit.checked(kind, ref)
  local job = Record.get(ref)
  if job and BELONGS[kind](job) then
    return job
  end
  return Audit.check(key(kind), ref, ref)
end

-- The same for an index of a queue, or of a name in it, whose members are ids.
function Audit.checked_in(kind, queue, id, name)
  local job = Record.get_in(queue, id)
  if job and BELONGS[kind](job, name) then
    return job
  end
  return Audit.check(key(kind, name and pair(queue, name) or queue), pair(queue, id), id)
end

-- The same for the finished jobs of a queue.
function Audit.checked_over(queue, state, id)
  local job = Record.get_in(queue, id)
  if job and job.state == state then
    return job
  end
  return Audit.check(key('over', pair(queue, state)), pair(queue, id), id)
end

-- The same for the jobs of a schedule: return true if there are any.
function Audit.has_any(kind, schedule)
  local index = key(kind, schedule)
  for _, ref in ipairs(first_of(index, Audit.LIMIT)) do
    local job = Record.get(ref)
    if job and BELONGS[kind](job, schedule) or Audit.check(index, ref, ref) then
      return true
    end
  end
  return false
end

-- Check the next entries of an index; return how many, and true if the index ends there.
local function page(index, from, limit, ref_of)
  local members = call('ZRANGE', index, from, from + limit - 1)
  for _, member in ipairs(members) do
    Audit.check(index, ref_of(member), member)
  end
  return #members, #members < limit
end

local function itself(ref)
  return ref
end

local function in_queue(queue)
  return function(id)
    return pair(queue, id)
  end
end

-- Continue a round over a list of indexes. `nth(n)` returns an index and a function from its members to refs; nil after
-- the last index; false to skip one.
local function go_on(round, limit, nth)
  local place = key('sweep')
  local got = call('HMGET', place, round, round .. '_from')
  local number, from, steps, looked_at = tonumber(got[1] or '') or 1, tonumber(got[2] or '') or 0, 0, 0
  while limit > 0 and steps < STEPS do
    local index, ref_of = nth(number)
    if index == nil then
      number, from = 1, 0
      break
    end
    local looked, ends = 0, true
    if index then
      looked, ends = page(index, from, limit, ref_of)
    end
    limit, steps, looked_at = limit - looked, steps + 1, looked_at + looked
    number, from = ends and number + 1 or number, ends and 0 or from + looked
  end
  call('HSET', place, round, number, round .. '_from', from)
  return looked_at
end

-- The urgent round: active jobs, jobs to be redriven, parked jobs, and the holders of the keys for which those wait.
local function live(number)
  if number <= #LIVE then
    return key(LIVE[number]), itself
  end
  local at = number - #LIVE - 1
  local place = call('ZRANGE', key('places'), floor(at / 2), floor(at / 2))[1]
  if not place then
    return nil
  end
  return key(at % 2 == 0 and 'slots' or 'parked', place), in_queue((parts_of(place)))
end

-- The other round: all other indexes, queue by queue, then fault by fault.
local function rest(number)
  if number <= #REST then
    return key(REST[number]), itself
  end
  local each = #OF_QUEUE + #STATES + #ENDS
  local at = number - #REST - 1
  local queue = call('ZRANGE', key('queues'), floor(at / each), floor(at / each))[1]
  if not queue then
    local fault = at - each * call('ZCARD', key('queues'))
    local place = call('ZRANGE', key('faults'), fault, fault)[1]
    if not place then
      return nil
    end
    return key('failed', place), in_queue((parts_of(place)))
  end
  local nth = at % each + 1
  local kind = OF_QUEUE[nth]
  if kind then
    return key(kind, queue), in_queue(queue)
  end
  local state = STATES[nth - #OF_QUEUE]
  if state then
    return key('in', pair(queue, state)), in_queue(queue)
  end
  return key('over', pair(queue, ENDS[nth - #OF_QUEUE - #STATES])), in_queue(queue)
end

-- Check the next entries of both rounds, `limit` in all. Their cost is returned as the cost of looks, not as items
-- done.
function Audit.step(limit)
  local looked_at = go_on('live', math.ceil(limit / 2), live) + go_on('rest', floor(limit / 2), rest)
  return 0, false, 30 * looked_at
end
