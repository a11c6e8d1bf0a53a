#!lua flags=no-writes
-- requires: record, record_bytes
-- find: return one page of a listing, newest first or by due instant, as far as one call gets.
--
-- Request: {queues, after, span, states, tasks, reasons, tags, owner, key, schedule, fault, created_after,
-- created_before, ended_after, ended_before, id, merge, before, above, looks, limit}. Without `queues`, it looks in
-- `span` of the partition's queues, those after the number `after`, but not in internal ones. `before`, `above`: only
-- jobs with sequence numbers between these. `looks`: at how many jobs to look at most. `due`: list delayed jobs by due
-- instant, then queue and id, those after this {instant, queue, id}; then `made` and `looked_to` are such places, of
-- the last job that was looked at.
-- Answer: {found, looked_to, next, looks}. An entry of `found` is {made, ref, record, payload, result}. `looked_to`:
-- there may be more jobs with numbers below this, or false. `next`: the number after which there are more queues, or
-- false. `looks`: at how many jobs it has looked.
-- constants: INTERNAL
local LOOKS, BYTES, MOST_AT_ONCE, SORTED = 150, 2097152, 64, 5000
-- What it costs to search the bytes of a record, if to decode one costs 1.
local UNDECODED = 0.25
local STATES = { 'delayed', 'waiting', 'active', 'completed', 'failed', 'cancelled', 'expired' }

local function set_of(names)
  if not names then
    return nil
  end
  local set = {}
  for _, name in ipairs(names) do
    set[name] = true
  end
  return set
end

local BEFORE = REQUEST.before and string.format('(%.17g', REQUEST.before) or '+inf'
local ABOVE = string.format('(%.17g', REQUEST.above or 0)
local states, tasks, reasons = set_of(REQUEST.states), set_of(REQUEST.tasks), set_of(REQUEST.reasons)

local function has_tags(job)
  local tags = set_of(job.tags)
  for _, tag in ipairs(REQUEST.tags or {}) do
    if not tags[tag] then
      return false
    end
  end
  return true
end

local function names_key(job)
  for _, held in ipairs(job.keys) do
    if held[1] == REQUEST.key then
      return true
    end
  end
  return false
end

local function created_between(job)
  return (REQUEST.created_after or -math.huge) <= job.created and job.created < (REQUEST.created_before or math.huge)
end

local function ended_between(job)
  if REQUEST.ended_after and not (job.finished and job.finished >= REQUEST.ended_after) then
    return false
  end
  return not (REQUEST.ended_before and not (job.finished and job.finished < REQUEST.ended_before))
end

local function holds_key(job)
  return job.merge and not TERMINAL[job.state] and job.merge.type .. ':' .. job.merge.key == REQUEST.merge
end

local function asked_for(job)
  return not Record.is_over(job)
    and (not states or states[job.state])
    and (not tasks or tasks[job.task])
    and (not reasons or reasons[job.reason or false])
    and (not REQUEST.tags or has_tags(job))
    and (not REQUEST.owner or job.owner == REQUEST.owner)
    and (not REQUEST.key or names_key(job))
    and (not REQUEST.schedule or job.schedule == REQUEST.schedule)
    and (not REQUEST.fault or job.fault == REQUEST.fault)
    and created_between(job)
    and ended_between(job)
    and (not REQUEST.id or job.id == REQUEST.id)
    and (not REQUEST.merge or holds_key(job))
end

-- Lists of names. The encoded record of a matching job contains one name of each list.
local required = {}
local function contain(names, name)
  for _, other in ipairs(names) do
    if other == name then
      return true
    end
  end
  return false
end

for _, names in ipairs({ REQUEST.tasks or {}, REQUEST.reasons or {} }) do
  -- A damaged record has this reason, although its bytes do not contain it.
  required[#required + 1] = #names > 0 and not contain(names, 'undecodable') and names or nil
end
for _, tag in ipairs(REQUEST.tags or {}) do
  required[#required + 1] = { tag }
end
for _, name in ipairs({ REQUEST.key or false, REQUEST.schedule or false }) do
  required[#required + 1] = name and { name } or nil
end

local function contains_one(body, names)
  for _, name in ipairs(names) do
    if string.find(body, name, 1, true) then
      return true
    end
  end
  return false
end

-- Return what it costs to look at a job, and the job if it is asked for, or nil. To look for a name in a record is
-- faster than to decode it.
local function job_asked_for(ref)
  local body = #required > 0 and RecordBytes.get(ref)
  for _, names in ipairs(body and required or {}) do
    if not contains_one(body, names) then
      return UNDECODED, nil
    end
  end
  local job = Record.get(ref)
  return 1, job and asked_for(job) and job or nil
end

local function is_internal(queue)
  return string.sub(queue, 1, #INTERNAL) == INTERNAL
end

-- The queues to look in, and the number after which there are more.
local function queues_asked_for()
  if REQUEST.queues then
    return REQUEST.queues, false
  end
  local from = REQUEST.after and '(' .. REQUEST.after or '-inf'
  local some = call('ZRANGEBYSCORE', key('queues'), from, '+inf', 'WITHSCORES', 'LIMIT', 0, REQUEST.span + 1)
  local names, count = {}, min(#some, 2 * REQUEST.span)
  for at = 1, count, 2 do
    names[#names + 1] = not is_internal(some[at]) and some[at] or nil
  end
  return names, count < #some and tonumber(some[count])
end

-- The indexes of a queue that contain all matching jobs.
local function indexes_of(queue)
  if REQUEST.merge then
    local name = pair(queue, REQUEST.merge)
    return { key('merge', name), key('busy', name) }
  end
  local indexes = {}
  for _, state in ipairs(REQUEST.states or STATES) do
    indexes[#indexes + 1] = key('in', pair(queue, state))
    if state == 'waiting' then
      indexes[#indexes + 1] = key('in', pair(queue, 'again'))
    end
  end
  return indexes
end

-- A source iterates over one index, newest job first; `made` is the number of its current job, nil at the end.
local function look_on(source, before)
  local some = call('ZREVRANGEBYSCORE', source.index, before, ABOVE, 'WITHSCORES', 'LIMIT', 0, source.at_once)
  source.some, source.at, source.id, source.made = some, 1, some[1], tonumber(some[2])
  source.at_once = min(2 * source.at_once, MOST_AT_ONCE)
end

local function go_on(source)
  source.at = source.at + 2
  if source.at > #source.some then
    look_on(source, '(' .. source.made)
  else
    source.id, source.made = source.some[source.at], tonumber(source.some[source.at + 1])
  end
end

-- The sources form a heap: the first one has the newest current job.
local function sift(heap, at)
  local source, size = heap[at], #heap
  while 2 * at <= size do
    local child = 2 * at
    if child < size and heap[child + 1].made > heap[child].made then
      child = child + 1
    end
    if heap[child].made <= source.made then
      break
    end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = source
end

local function sources_of(queues)
  local indexes = {}
  for _, queue in ipairs(queues) do
    for _, index in ipairs(indexes_of(queue)) do
      indexes[#indexes + 1] = { queue = queue, index = index }
    end
  end
  local heap = {}
  for _, source in ipairs(indexes) do
    source.at_once = max(1, min(floor(LOOKS / #indexes), REQUEST.limit))
    look_on(source, BEFORE)
    if source.made then
      heap[#heap + 1] = source
    end
  end
  for at = floor(#heap / 2), 1, -1 do
    sift(heap, at)
  end
  return heap
end

local bytes = 0

local function shown(job)
  local payload, result = Record.read_separate_payload(job), Record.read_separate_result(job)
  bytes = bytes + #payload + #(job.payload or '') + (result and #result or 0)
  return { job.made, job.ref, Record.encoded_with_data(job), payload, result }
end

local function look_through(queues)
  local heap, found, looks, cost = sources_of(queues), {}, 0, 0
  local most = REQUEST.looks or math.huge
  while #heap > 0 and #found < REQUEST.limit do
    if cost >= LOOKS or looks >= most or bytes > BYTES then
      return found, heap[1].made + 1, looks
    end
    local source = heap[1]
    local its_cost, job = job_asked_for(pair(source.queue, source.id))
    looks, cost = looks + 1, cost + its_cost
    if job then
      found[#found + 1] = shown(job)
    end
    go_on(source)
    if not source.made then
      source = table.remove(heap)
    end
    if #heap > 0 then
      heap[1] = source
      sift(heap, 1)
    end
  end
  return found, false, looks
end

-- The indexes of finished jobs that are not in `over`: those with a lifetime of their own, and those to be redriven.
local ASIDE = { completed = key('kept'), failed = key('redrives') }

-- The refs of the jobs that ended between the requested instants; nil if there are too many, or if the query includes
-- unfinished jobs.
local function ended(queues)
  if not states or not (REQUEST.ended_after or REQUEST.ended_before) then
    return nil
  end
  local from = REQUEST.ended_after and string.format('%.17g', REQUEST.ended_after) or '-inf'
  local to = REQUEST.ended_before and string.format('(%.17g', REQUEST.ended_before) or '+inf'
  local many, asked, refs = 0, set_of(queues), {}
  for state in pairs(states) do
    local aside = ASIDE[state]
    many = many + (TERMINAL[state] and (aside and call('ZCARD', aside) or 0) or LOOKS + 1)
    for _, queue in ipairs(many <= LOOKS and queues or {}) do
      local over = key('over', pair(queue, state))
      many = many + call('ZCOUNT', over, from, to)
      for _, id in ipairs(many <= LOOKS and call('ZRANGEBYSCORE', over, from, to) or {}) do
        refs[pair(queue, id)] = true
      end
    end
    if many > LOOKS then
      return nil
    end
    for _, ref in ipairs(aside and first_of(aside, LOOKS) or {}) do
      refs[ref] = asked[parts_of(ref)]
    end
  end
  return refs
end

-- The failed jobs with the requested fault, newest first: their sequence numbers, and their refs by these. nil if there
-- are too many to sort.
local function of_fault(queues)
  local many = 0
  for _, queue in ipairs(queues) do
    many = many + call('ZCARD', key('failed', pair(queue, REQUEST.fault)))
  end
  if many > SORTED then
    return nil
  end
  local numbers, refs = {}, {}
  for _, queue in ipairs(queues) do
    local ids = call('ZRANGE', key('failed', pair(queue, REQUEST.fault)), 0, -1)
    for at, made in ipairs(#ids > 0 and call('ZMSCORE', key('in', pair(queue, 'failed')), unpack(ids)) or {}) do
      made = tonumber(made or '')
      if made and made < (REQUEST.before or math.huge) and made > (REQUEST.above or 0) then
        numbers[#numbers + 1], refs[made] = made, pair(queue, ids[at])
      end
    end
  end
  table.sort(numbers, function(one, other)
    return one > other
  end)
  return numbers, refs
end

-- Look at jobs in this order, as far as one call gets. Return the matching ones.
local function look_in_order(numbers, refs)
  local found = {}
  for at, made in ipairs(numbers) do
    if #found >= REQUEST.limit then
      break
    elseif at > LOOKS or bytes > BYTES then
      return found, made + 1
    end
    local job = Record.get(refs[made])
    if job and asked_for(job) then
      found[#found + 1] = shown(job)
    end
  end
  return found, false
end

-- The refs that the requested id may have: one in each queue.
local function named(queues)
  local refs = {}
  for _, queue in ipairs(queues) do
    refs[pair(queue, REQUEST.id)] = true
  end
  return refs
end

-- Return the matching ones of these jobs, newest first.
local function look_at(refs)
  local jobs, found = {}, {}
  for ref in pairs(refs) do
    local job = Record.get(ref)
    if job and job.made < (REQUEST.before or math.huge) and job.made > (REQUEST.above or 0) and asked_for(job) then
      jobs[#jobs + 1] = job
    end
  end
  table.sort(jobs, function(one, other)
    return one.made > other.made
  end)
  for number = 1, min(#jobs, REQUEST.limit) do
    if bytes > BYTES then
      return found, jobs[number].made + 1
    end
    found[number] = shown(jobs[number])
  end
  return found, false
end

-- Return true if a text comes before another by their bytes, as members of a sorted set do. Lua would ask the locale.
local function is_before(one, other)
  for at = 1, min(#one, #other) do
    local first, second = string.byte(one, at), string.byte(other, at)
    if first ~= second then
      return first < second
    end
  end
  return #one < #other
end

local function is_due_before(one, other)
  if one.at ~= other.at then
    return one.at < other.at
  elseif one.queue ~= other.queue then
    return is_before(one.queue, other.queue)
  end
  return is_before(one.id, other.id)
end

-- The rank of the first delayed job of a queue after a place.
local function first_rank(queue, place)
  local index = key('delayed', queue)
  local low = call('ZCOUNT', index, '-inf', '(' .. whole(place.at))
  local high = low + call('ZCOUNT', index, whole(place.at), whole(place.at))
  while low < high do
    local middle = floor((low + high) / 2)
    local id = call('ZRANGE', index, middle, middle)[1]
    if is_due_before(place, { at = place.at, queue = queue, id = id }) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function next_due(source)
  source.some, source.rank = source.some or {}, source.rank + 1
  if source.rank > source.last then
    source.some = call('ZRANGE', key('delayed', source.queue), source.rank, source.rank + 15, 'WITHSCORES')
    source.first, source.last = source.rank, source.rank + 15
  end
  local at = 2 * (source.rank - source.first) + 1
  source.id, source.at = source.some[at], tonumber(source.some[at + 1] or '')
  return source.id
end

-- Look at the delayed jobs of these queues by due instant. Return the matching ones.
local function look_by_due(queues, place)
  local sources, found, looked_to = {}, {}, false
  for _, queue in ipairs(queues) do
    local source = { queue = queue, rank = first_rank(queue, place) - 1, last = -1 }
    if next_due(source) then
      sources[#sources + 1] = source
    end
  end
  for looks = 0, math.huge do
    local best
    for number, source in ipairs(sources) do
      if not best or is_due_before(source, sources[best]) then
        best = number
      end
    end
    if not best then
      return found, false
    elseif #found >= REQUEST.limit or looks >= LOOKS or bytes > BYTES then
      return found, looked_to
    end
    local source = sources[best]
    looked_to = { source.at, source.queue, source.id }
    local job = Record.get_in(source.queue, source.id)
    if job and asked_for(job) then
      local entry = shown(job)
      entry[1] = looked_to
      found[#found + 1] = entry
    end
    if not next_due(source) then
      table.remove(sources, best)
    end
  end
end

local queues, more = queues_asked_for()
if REQUEST.due then
  local at, queue, id = unpack(REQUEST.due)
  local found, looked_to = look_by_due(queues, { at = at, queue = queue, id = id })
  return { found, looked_to, more, LOOKS }
end
local refs, numbers
if REQUEST.id then
  refs = named(queues)
elseif REQUEST.fault then
  numbers, refs = of_fault(queues)
elseif not REQUEST.merge then
  refs = ended(queues)
end
local found, looked_to, looks
if numbers then
  found, looked_to = look_in_order(numbers, refs)
elseif refs then
  found, looked_to = look_at(refs)
else
  found, looked_to, looks = look_through(queues)
end
return { found, looked_to, more, looks or LOOKS }
