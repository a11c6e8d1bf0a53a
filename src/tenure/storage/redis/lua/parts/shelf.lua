-- requires: cell, folding, record, index, line, rest, rates
-- Where jobs stand: each in exactly the indexes that its state puts it in. There is one door, `move`.
--
-- All of them are sorted sets; `<a>.<b>` stands for two names joined by NUL.
--
-- queues                  the queues there are, by the number of the first job of each
-- in:<queue>.<state>      who stands in a state, by the number it was made under; of the waiting those that have waited
--                         since they were made, each for as long as those behind it; `again`: the other waiting ones
-- ages:<queue>            these others, by since when they wait
-- ready:<queue>           who stands in line, by score
-- parked:<queue>.<name>   who is out of line under a key, a rate or a paused task, by score
-- places                  where anybody is parked: queue and name, all at 0
-- opening:<queue>         when each rate that jobs are parked under lets one start
-- delayed:<queue>         who waits for its time, by that
-- unknown:<queue>         under which unknown tasks jobs are parked (parts/known.lua)
-- dues                    of each queue an instant before which none of its delayed jobs is due
-- leases, suspects        refs of the active: by the lease's end, by the end of the suspicion
-- held:<owner>            refs of what an owner holds, by when it was started
-- aging, kept, redrives   refs, by when a job is too old to start, too old to be kept, put back in line by a rule
-- over:<queue>.<state>    who came to that end, by when
-- slots:<queue>.<name>    the active jobs that hold a key, by when they were started
-- merge:<queue>.<name>    who may be come to by a merge key and has not started, by the number it was made under
-- busy:<queue>.<name>     the other unfinished jobs of that key, likewise
-- queued:<schedule>       refs of a schedule's jobs that have yet to start, `running:<schedule>` of its active ones
--
-- Beside them, as hashes: limits:<queue>, the limit of each key, and named:<queue>, how many unfinished jobs name it;
-- without any it is forgotten.
local Shelf = {}

local freed, freed_order = {}, {}

-- The index of who stands in a state.
local standing_in = {}

local function standing(queue, state)
  local known = standing_in[queue]
  if not known then
    known = {}
    standing_in[queue] = known
  end
  local index = known[state]
  if not index then
    index = key('in', pair(queue, state))
    known[state] = index
  end
  return index
end

local noted = {}

-- Note that there is a queue; `made`: the number of its first job.
local function note_queue(queue, made)
  if not noted[queue] then
    noted[queue] = true
    if call('ZADD', key('queues'), 'NX', made, queue) == 1 then
      Rest.wake()
    end
  end
end

-- The name a merge key goes by in its queue: keys of different kinds never meet.
function Shelf.merge_name(merge)
  return merge.type .. ':' .. merge.key
end

local function unfinished(job)
  return not TERMINAL[job.state]
end

local function in_line(job)
  return job.state == 'waiting' and not job.parked_under
end

-- Whether a later call may still come to an unfinished job by its merge key: it is in `merge` then, else in `busy`.
function Shelf.is_open(job)
  return job.state ~= 'active' and (job.merge.type == 'unique' or job.starts == 0)
end

-- What an unfinished job is in, whatever its state: the groups of its merge key and of its schedule.
local function stand_in_groups(job, stand)
  local queued = job.state ~= 'active'
  if job.merge then
    stand(key(Shelf.is_open(job) and 'merge' or 'busy', pair(job.queue, Shelf.merge_name(job.merge))), job.made, job.id)
  end
  if job.schedule then
    stand(key(queued and 'queued' or 'running', job.schedule), job.made, job.ref)
  end
  if queued and job.expires_at then
    stand(key('aging'), job.expires_at, job.ref)
  end
end

-- Call `stand(index, number, member, later)` for each index that a job's state puts it in. `later`: no script looks there
-- once it has moved anybody, but for those that say so to Index.
local function stand_in_all(job, stand)
  local queue, id, state = job.queue, job.id, job.state
  local stood_in = state
  if state == 'waiting' then
    if job.parked_under then
      stand(key('parked', pair(queue, job.parked_under)), job.score, id)
    else
      stand(key('ready', queue), job.score, id)
    end
    if job.run_at ~= job.created or job.back then
      stood_in = 'again'
      stand(key('ages', queue), job.run_at, id, true)
    end
  elseif state == 'delayed' then
    stand(key('delayed', queue), job.run_at, id)
  elseif state == 'active' then
    stand(key('held', job.owner), job.started, job.ref, true)
    if job.suspect_until then
      stand(key('suspects'), job.suspect_until, job.ref)
    else
      stand(key('leases'), job.lease_until, job.ref, true)
    end
    for _, held in ipairs(job.keys) do
      stand(key('slots', pair(queue, held[1])), job.started, id)
    end
  elseif state == 'completed' and job.kept_until then
    stand(key('kept'), job.kept_until, job.ref, true)
  elseif state == 'failed' and job.redrive_at then
    -- Retention must not take what a rule has yet to put back.
    stand(key('redrives'), job.redrive_at, job.ref)
  else
    stand(key('over', pair(queue, state)), job.finished, id, true)
  end
  stand(standing(queue, stood_in), job.made, id, true)
  if unfinished(job) then
    stand_in_groups(job, stand)
  end
end

-- Where a job stands now, to be held against what the indexes say.
function Shelf.stands(job)
  local places = {}
  stand_in_all(job, function(index, number, member)
    places[#places + 1] = { index, number, member }
  end)
  return places
end

-- Where the job that is moved has stood, and where it will: lists side by side, the same for each job in its turn.
local function places()
  return { count = 0, index = {}, number = {}, member = {}, later = {} }
end

local before, after = places(), places()

local function stand_before(index, number, member, later)
  local at = before.count + 1
  before.count, before.index[at], before.number[at] = at, index, number
  before.member[at], before.later[at] = member, later
end

local function stand_after(index, number, member, later)
  local at = after.count + 1
  after.count, after.index[at], after.number[at] = at, index, number
  after.member[at], after.later[at] = member, later
end

local function note_before(job)
  before.count = 0
  stand_in_all(job, stand_before)
end

local function put(index, number, member, later)
  if later then
    Index.put(index, number, member)
  else
    call('ZADD', index, number, member)
  end
end

local function take_out(index, member, later)
  if later then
    Index.take_out(index, member)
  else
    call('ZREM', index, member)
  end
end

-- The number that the job had in an index, which it is not out of any more then.
local function taken_over(index)
  for at = 1, before.count do
    if before.index[at] == index then
      before.index[at] = false
      return before.number[at]
    end
  end
  return nil
end

-- Leave where the job stood and does not any more.
local function leave()
  for at = 1, before.count do
    if before.index[at] then
      take_out(before.index[at], before.member[at], before.later[at])
    end
  end
end

-- Go from where the job stood to where its state puts it: what stays the same is not written.
local function go(job)
  after.count = 0
  stand_in_all(job, stand_after)
  for at = 1, after.count do
    if taken_over(after.index[at]) ~= after.number[at] then
      put(after.index[at], after.number[at], after.member[at], after.later[at])
    end
  end
  leave()
  if job.state == 'delayed' then
    call('ZADD', key('dues'), 'LT', job.run_at, job.queue)
  elseif job.parked_under then
    call('ZADD', key('places'), 0, pair(job.queue, job.parked_under))
    if starts_with(job.parked_under, UNKNOWN) then
      call('ZADD', key('unknown', job.queue), 0, job.parked_under)
    end
  end
end

-- Forget a place where nobody is parked any more: nobody asks when a rate opens, either.
local function clear(queue, name)
  local place = pair(queue, name)
  if call('EXISTS', key('parked', place)) == 0 then
    call('ZREM', key('places'), place)
    call('ZREM', key('opening', queue), name)
    call('ZREM', key('unknown', queue), name)
  end
end

-- Count the unfinished jobs that name each of a job's keys; a key that nobody names is forgotten.
local function name_keys(job, more)
  for _, held in ipairs(job.keys) do
    call('HSETNX', key('limits', job.queue), held[1], held[2])
    if call('HINCRBY', key('named', job.queue), held[1], more) <= 0 then
      call('HDEL', key('named', job.queue), held[1])
      call('HDEL', key('limits', job.queue), held[1])
    end
  end
end

local function is_tenant(job)
  return job.state == 'waiting' and job.fair_key and not job.lifo
end

local function free(queue, name)
  local place = pair(queue, name)
  if not freed[place] then
    freed[place] = 0
    freed_order[#freed_order + 1] = place
  end
  freed[place] = freed[place] + 1
end

-- Note the keys of a job that has left a slot, or its place in line for one that may be free; so with rates.
local function note_freed(job, left_a_slot, left_the_line)
  if left_a_slot or left_the_line then
    for _, held in ipairs(job.keys) do
      free(job.queue, held[1])
    end
  end
  if left_the_line then
    for _, rate in ipairs(Rates.of(job)) do
      free(job.queue, RATE .. rate[1])
    end
  end
end

-- Take in a new job; Parking sees to the limits of its keys.
function Shelf.add(job)
  note_queue(job.queue, job.made)
  Rest.stir()
  Rest.heed(min(job.lease, job.heartbeat_timeout or job.lease))
  name_keys(job, 1)
  before.count = 0
  go(job)
  if is_tenant(job) then
    Line.count(job, 1)
  end
  Record.keep(job)
end

-- Change what no index goes by. A field that is NONE is taken away.
function Shelf.touch(job, changes)
  for field, value in pairs(changes) do
    if Folding.FIXED[field] then
      job.fixed = nil
    end
    if value == NONE then
      job[field] = nil
    else
      job[field] = value
    end
  end
  Record.keep(job)
end

-- Change a job, and move it in every index with that.
function Shelf.move(job, changes)
  note_before(job)
  local was_active, was_in_line, was_unfinished = job.state == 'active', in_line(job), unfinished(job)
  local was_parked = job.parked_under
  Rest.stir()
  if changes.lease then
    Rest.heed(changes.lease)
  end
  if is_tenant(job) then
    Line.count(job, -1)
  end
  Shelf.touch(job, changes)
  go(job)
  if is_tenant(job) then
    Line.count(job, 1)
  end
  if was_unfinished ~= unfinished(job) then
    name_keys(job, was_unfinished and -1 or 1)
  end
  if was_parked then
    clear(job.queue, was_parked)
  end
  local active = job.state == 'active'
  note_freed(job, was_active and not active, was_in_line and not active and not in_line(job))
end

-- Forget a job.
function Shelf.drop(job)
  note_before(job)
  leave()
  if is_tenant(job) then
    Line.count(job, -1)
  end
  if unfinished(job) then
    name_keys(job, -1)
  end
  if job.parked_under then
    clear(job.queue, job.parked_under)
  end
  note_freed(job, job.state == 'active', in_line(job))
  Record.drop(job)
end

-- A key that was left since the last time, and how often; nil if none was.
function Shelf.next_freed()
  local place = table.remove(freed_order)
  if place then
    local times = freed[place]
    freed[place] = nil
    return place, times
  end
  return nil
end

-- How many more jobs may hold a key; `own`: the limit that goes where none is known.
function Shelf.room(queue, name, own)
  local limit = tonumber(call('HGET', key('limits', queue), name) or '') or own
  return limit and max(0, limit - call('ZCARD', key('slots', pair(queue, name)))) or 0
end
