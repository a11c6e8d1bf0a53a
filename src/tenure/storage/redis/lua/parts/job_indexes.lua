-- requires: prelude, record_codec, record, index_writes, fair_queue, skips, rates, faults
-- The job indexes: each job is in exactly the indexes that follow from its state.
-- Outside the fast path and the audit, only `add`, `move` and `drop` change them.
--
-- All of them are sorted sets; `<a>.<b>` means two names joined by NUL.
--
-- queues                  all queues, by the sequence number of each one's first job
-- in:<queue>.<state>      the jobs in a state, by sequence number; of the waiting jobs only those that have waited
--                         since they were made, so that the first has waited longest; `again`: the other waiting jobs
-- ages:<queue>            these other waiting jobs, by the start of their wait
-- ready:<queue>           the jobs that may be claimed, by score
-- parked:<queue>.<name>   the jobs that are held back by a key, a rate, or a paused or unknown task, by score
-- places                  where jobs are parked: queue and name, all at 0
-- opening:<queue>         the rates under which jobs are parked, by when each lets one start
-- delayed:<queue>         the delayed jobs, by when they are due
-- unknown:<queue>         the unknown tasks under which jobs are parked (parts/known_tasks.lua)
-- dues                    for each queue, an instant before which none of its delayed jobs is due
-- leases, suspects        refs of active jobs, by the end of the lease; by the end of the suspicion
-- held:<owner>            refs of an owner's active jobs, by their start
-- aging, kept, redrives   refs, by when a job is too old to start; too old to be kept; to be redriven by its rule
-- over:<queue>.<state>    the jobs that ended in a state, by when
-- failed:<queue>.<fault>  the failed jobs that have a fault, by when they ended (parts/faults.lua)
-- slots:<queue>.<name>    the active jobs that hold a concurrency key, by their start
-- merge:<queue>.<name>    the jobs of a merge key into which a call may be merged, by sequence number
-- busy:<queue>.<name>     the other unfinished jobs of that key, likewise
-- queued:<schedule>       refs of a schedule's jobs that have not started; `running:<schedule>`: of its active jobs
--
-- There are also two hashes: limits:<queue>, the limit of each key; and named:<queue>, how many unfinished jobs name
-- it. A key that no unfinished job names is removed from both.
local JobIndexes = {}

local freed, freed_order = {}, {}

-- The names of the indexes of states, cached.
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

-- Note that a queue exists; `made`: the sequence number of its first job.
local function note_queue(queue, made)
  if not noted[queue] then
    noted[queue] = true
    call('ZADD', key('queues'), 'NX', made, queue)
  end
end

-- The name of a merge key in its queue; keys of different types never collide.
function JobIndexes.merge_name(merge)
  return merge.type .. ':' .. merge.key
end

local function unfinished(job)
  return not TERMINAL[job.state]
end

local function in_line(job)
  return job.state == 'waiting' and not job.parked_under
end

-- Return true if a later call may still be merged into an unfinished job: then it is in `merge`, else in `busy`.
function JobIndexes.is_open(job)
  return job.state ~= 'active' and (job.merge.type == 'unique' or job.starts == 0)
end

-- The indexes of an unfinished job in addition to those of its state: by merge key, schedule, and time to live.
local function stand_in_groups(job, stand)
  local queued = job.state ~= 'active'
  if job.merge then
    local name = pair(job.queue, JobIndexes.merge_name(job.merge))
    stand(key(JobIndexes.is_open(job) and 'merge' or 'busy', name), job.made, job.id)
  end
  if job.schedule then
    stand(key(queued and 'queued' or 'running', job.schedule), job.made, job.ref)
  end
  if queued and job.expires_at then
    stand(key('aging'), job.expires_at, job.ref)
  end
end

-- Call `stand(index, number, member, later)` for each index that a job must be in. `later`: the change may be deferred,
-- because scripts read this index only before they move jobs, or after `IndexWrites.flush`.
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
    -- Not in `over`: retention must not delete a job that its rule will redrive.
    stand(key('redrives'), job.redrive_at, job.ref)
  else
    stand(key('over', pair(queue, state)), job.finished, id, true)
  end
  if job.fault then
    stand(key('failed', pair(queue, job.fault)), job.finished, id)
  end
  stand(standing(queue, stood_in), job.made, id, true)
  if unfinished(job) then
    stand_in_groups(job, stand)
  end
end

-- The index entries that a job must have now, for the audit.
function JobIndexes.entries(job)
  local places = {}
  stand_in_all(job, function(index, number, member)
    places[#places + 1] = { index, number, member }
  end)
  return places
end

-- The index entries of the job that is being moved, before and after: parallel lists, reused for each job.
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
    IndexWrites.put(index, number, member)
  else
    call('ZADD', index, number, member)
  end
end

local function take_out(index, member, later)
  if later then
    IndexWrites.remove(index, member)
  else
    call('ZREM', index, member)
  end
end

-- Return the score that the job had in an index, and mark that entry as kept.
local function taken_over(index)
  for at = 1, before.count do
    if before.index[at] == index then
      before.index[at] = false
      return before.number[at]
    end
  end
  return nil
end

-- Remove the job from the indexes that it must leave.
local function leave()
  for at = 1, before.count do
    if before.index[at] then
      take_out(before.index[at], before.member[at], before.later[at])
    end
  end
end

-- Move the job from its old to its new index entries; unchanged entries are not written.
local function go(job)
  after.count = 0
  stand_in_all(job, stand_after)
  for at = 1, after.count do
    if taken_over(after.index[at]) ~= after.number[at] then
      put(after.index[at], after.number[at], after.member[at], after.later[at])
    end
  end
  leave()
  if job.fault then
    Faults.add(job)
  end
  if job.state == 'delayed' then
    call('ZADD', key('dues'), 'LT', job.run_at, job.queue)
  elseif job.parked_under then
    call('ZADD', key('places'), 0, pair(job.queue, job.parked_under))
    if starts_with(job.parked_under, UNKNOWN) then
      call('ZADD', key('unknown', job.queue), 0, job.parked_under)
    end
  end
end

-- Remove a place without parked jobs; then it also does not matter any more when its rate opens.
local function clear(queue, name)
  local place = pair(queue, name)
  if call('EXISTS', key('parked', place)) == 0 then
    call('ZREM', key('places'), place)
    call('ZREM', key('opening', queue), name)
    call('ZREM', key('unknown', queue), name)
  end
end

-- Count the unfinished jobs that name each of a job's keys; remove a key that no job names.
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

-- Note the keys of a job that has freed a slot, or that has left the queue while a slot may be free; the latter also
-- for rates.
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

-- Add a new job. Parking applies the limits of its keys.
function JobIndexes.add(job)
  note_queue(job.queue, job.made)
  Skips.finish()
  name_keys(job, 1)
  before.count = 0
  go(job)
  if is_tenant(job) then
    FairQueue.count_waiting(job, 1)
  end
  Record.mark_changed(job)
end

-- Change fields on which no index depends. A field that is NONE is removed.
function JobIndexes.update(job, changes)
  for field, value in pairs(changes) do
    if RecordCodec.FIXED[field] then
      job.fixed = nil
    end
    if value == NONE then
      job[field] = nil
    else
      job[field] = value
    end
  end
  Record.mark_changed(job)
end

-- Change a job, and move it in all indexes accordingly.
function JobIndexes.move(job, changes)
  note_before(job)
  local was_active, was_in_line, was_unfinished = job.state == 'active', in_line(job), unfinished(job)
  local was_parked, had_fault = job.parked_under, job.fault
  Skips.finish()
  if is_tenant(job) then
    FairQueue.count_waiting(job, -1)
  end
  JobIndexes.update(job, changes)
  go(job)
  if is_tenant(job) then
    FairQueue.count_waiting(job, 1)
  end
  if was_unfinished ~= unfinished(job) then
    name_keys(job, was_unfinished and -1 or 1)
  end
  if was_parked then
    clear(job.queue, was_parked)
  end
  if had_fault then
    Faults.remove(job.queue, had_fault, {})
  end
  local active = job.state == 'active'
  note_freed(job, was_active and not active, was_in_line and not active and not in_line(job))
end

-- Delete a job.
function JobIndexes.drop(job)
  note_before(job)
  leave()
  if is_tenant(job) then
    FairQueue.count_waiting(job, -1)
  end
  if unfinished(job) then
    name_keys(job, -1)
  end
  if job.parked_under then
    clear(job.queue, job.parked_under)
  end
  if job.fault then
    Faults.remove(job.queue, job.fault, {})
  end
  note_freed(job, job.state == 'active', in_line(job))
  Record.delete(job)
end

-- Return a key or rate that was freed since the last call, and how often; nil without one.
function JobIndexes.next_freed()
  local place = table.remove(freed_order)
  if place then
    local times = freed[place]
    freed[place] = nil
    return place, times
  end
  return nil
end

-- How many more jobs may hold a key; `own`: the limit if none is stored.
function JobIndexes.room(queue, name, own)
  local limit = tonumber(call('HGET', key('limits', queue), name) or '') or own
  return limit and max(0, limit - call('ZCARD', key('slots', pair(queue, name)))) or 0
end
