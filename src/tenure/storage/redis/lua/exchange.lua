#!lua flags=allow-oom
-- requires: fast_path, time_budget, ready_queues, transaction, claims
-- exchange: apply each settlement whose run is the current one, then claim jobs from the given queues.
--
-- Request: {owner = {id, name, host, pid}, settlements, settling, queues, room, tasks, place, lane}.
--   settling  the number of jobs that the settlements settle
--   lane      as in parts/claims.lua; without it a claim has no number
--   tasks     the place of the argument that lists, as msgpack, each task that the owner knows with its payload's
--             newest version
--   place     how far the earlier calls of this claim got: {number of the queue, jobs promoted there, jobs examined}
-- A settlement is {ref, fence, state, result, error, reason, charge, keep, redrive_after, fault, after, quarantine,
-- put_back_used, until_known, ended, events, limit}. `state` finishes the job. `after` puts it back, perhaps into
-- quarantine, or parked until a worker knows the task. `events` is a list of {body, name, by}; `by`: the event names an actor.
-- Settlements that only complete jobs can come as a group: {queue, ids, fences, ended, keep, first}. The event and the
-- result of each are arguments of the script, from place `first` on.
-- Answer: {verdicts, leases, left, next_due, place, seen}.
--   verdicts  a list, or the number of settlements if all are 'done'
--   leases    ref, record and payload (empty if the record holds it) of each job, one after the other
--   left      1 if claimable jobs were left
--   next_due  microseconds until time alone makes another job claimable, or false
--   place     where the next call continues, if there was no time for all settlements or jobs; else false
--   seen      1 if this call's number was seen before
local owner, queues, lane = REQUEST.owner, REQUEST.queues or {}, REQUEST.lane

-- The maximum length of the list of leases, which has three entries for each job.
local room = REQUEST.room and 3 * min(REQUEST.room, CLAIM_LIMIT) or 0

local leases = {}

-- The fences of leases, by number of the lease; those of first runs are left out.
local fences = {}

local seen = lane and Claims.read(owner, lane) or false
if seen then
  room = 0
end

-- Note the claimed jobs, even if the script fails: the owner holds them already.
local function note_claims()
  if lane and not seen then
    -- The fence of a first run is the instant of its claim.
    Claims.note(owner, lane, leases, NOW, fences)
  end
end

-- Return the answer. `verdicts`: a list, or how many are done; `place`: where the next call continues.
local function answer(verdicts, left, next_in, place)
  return { verdicts, leases, left, next_in or false, place or false, seen and 1 or 0 }
end

local function has_room(examined)
  return #leases < room and examined < SCAN_LIMIT
end

-- Return true if there are no settings, no limits, no delayed and no parked jobs, and none of these queues has fair
-- keys. That is the usual case, and one command shows it. Moves outside the fast path may change it during the script.
local function are_quiet()
  if #queues > 100 then
    return false
  end
  local names = { key('settings'), key('dues'), key('places'), key('limited') }
  for number, queue in ipairs(queues) do
    names[number + 4] = key('fair', queue)
  end
  return call('EXISTS', unpack(names)) == 0
end

-- Read the records of all settled jobs with one command.
local function fetch(settlements)
  local refs = {}
  for _, settlement in ipairs(settlements) do
    settlement.refs = settlement.ids and FastPath.refs(settlement.queue, settlement.ids) or { settlement.ref }
    for _, ref in ipairs(settlement.refs) do
      refs[#refs + 1] = ref
    end
  end
  RecordBytes.fetch(refs)
end

-- Complete the jobs of groups until one is not plain. Return how many jobs were completed, how many groups are
-- finished, and how many jobs of the next group.
local function complete_plain(settlements, quiet)
  local done = 0
  for number, group in ipairs(settlements) do
    local completed = group.ids and FastPath.complete(group, 1, owner, quiet) or 0
    done = done + completed
    if not group.ids or completed < #group.ids then
      return done, number - 1, completed
    end
  end
  return done, #settlements, 0
end

-- Claim jobs until one is not plain, from queues whose rates and pauses hold up nothing. Return true if no other kind
-- of job was met; where to continue if one was met or time ran out; and whether jobs are left.
local function claim_plain(quiet)
  local number, promoted, examined = unpack(REQUEST.place)
  local more = false
  if #queues ~= 1 or not has_room(examined) then
    number = ReadyQueues.first_with('ready', queues, number)
  end
  while number and has_room(examined) do
    if TimeBudget.is_spent() then
      return true, { number, promoted, examined }
    end
    local most = TimeBudget.affords(FastPath.START_COST, min((room - #leases) / 3, SCAN_LIMIT - examined))
    -- Read one more id: it shows whether jobs are left.
    local ids = first_of(key('ready', queues[number]), most + 1)
    more = table.remove(ids, most + 1) ~= nil
    local started = #ids > 0 and FastPath.start(queues[number], ids, owner, leases, quiet) or 0
    examined = examined + started
    if started == #ids and not more then
      number, promoted = ReadyQueues.first_with('ready', queues, number + 1), 0
    elseif started < #ids and not TimeBudget.is_spent() then
      return false, { number, promoted, examined }
    end
  end
  return true, nil, more or number or REQUEST.place[1] > 1 and ReadyQueues.first_with('ready', queues, 1)
end

-- The fast path: do as much of the request as concerns plain jobs. Return the answer, or nil and what is left to do:
-- {done, through, completed, place, upcoming}: the number of jobs settled; the number of finished groups; the jobs
-- completed of the group after these; where to continue the claim; and, if it was looked up, `ReadyQueues.upcoming` of
-- the queues.
local function begin()
  local settlements, quiet = REQUEST.settlements, are_quiet()
  fetch(settlements)
  local done, through, completed = complete_plain(settlements, quiet)
  local left_over = { done = done, through = through, completed = completed, place = REQUEST.place }
  if done < REQUEST.settling then
    return TimeBudget.is_spent() and answer(done, 0, nil, REQUEST.place) or nil, left_over
  elseif not REQUEST.room then
    return answer(done, 0)
  elseif lane and Claims.is_lost() then
    return nil, left_over
  end
  if not quiet then
    left_over.upcoming = ReadyQueues.upcoming(queues)
    if ReadyQueues.has_any(left_over.upcoming) or next(ReadyQueues.known_places(queues)) then
      return nil, left_over
    end
  end
  local all, place, left = claim_plain(quiet)
  if all then
    return answer(done, left and 1 or 0, nil, place)
  end
  left_over.place = place
  return nil, left_over
end

local answered, left_over = Transaction.run(begin, function()
  FastPath.write()
  note_claims()
end)
if answered then
  return answered
end

-- requires: plain_jobs, settling, transitions, changes, known_tasks

local SETTLE_COST, PUT_BACK_COST, START_COST, PROMOTE_COST, RETURN_COST = 55, 65, 55, 65, 60

local verdicts = {}

local function note_done(more)
  for _ = 1, more do
    verdicts[#verdicts + 1] = 'done'
  end
end

local function settle(settlement)
  verdicts[#verdicts + 1] = Settling.settle(settlement, owner)
  TimeBudget.spend(settlement.after and PUT_BACK_COST or SETTLE_COST)
  TimeBudget.spend_on_bytes(settlement.result and ARGV[settlement.result])
end

-- Settle one job of a group as if the settlement had come alone.
local function settle_of(group, number)
  local body = group.first + 2 * number - 2
  settle({
    ref = group.refs[number],
    fence = group.fences[number],
    state = 'completed',
    result = body + 1,
    keep = group.keep,
    ended = group.ended,
    events = { { body = body, name = 'completed' } },
  })
end

-- Settle the jobs of a group from one on: plain jobs many at a time, each of the others by itself.
local function settle_group(group, from)
  while from <= #group.ids and not TimeBudget.is_spent() do
    local completed = FastPath.complete(group, from, owner)
    note_done(completed)
    from = from + completed
    if from <= #group.ids and not TimeBudget.is_spent() then
      settle_of(group, from)
      from = from + 1
    end
  end
end

-- Settle in order, as many as there is time for.
local function settle_all(settlements)
  note_done(left_over.done)
  local number, from = left_over.through + 1, left_over.completed + 1
  while number <= #settlements and not TimeBudget.is_spent() do
    if settlements[number].ids then
      settle_group(settlements[number], from)
    else
      settle(settlements[number])
    end
    number, from = number + 1, 1
  end
end

-- The verdicts as the answer has them: their number if all are 'done'.
local function counted()
  for _, verdict in ipairs(verdicts) do
    if verdict ~= 'done' then
      return verdicts
    end
  end
  return #verdicts
end

-- Start the first jobs of a queue: the leading plain ones of `ids`; or, if the first is not plain, that one alone,
-- which may also expire or be parked. Return how many jobs were examined, and whether they were plain.
local function start(queue, ids)
  local started = FastPath.start(queue, ids, owner, leases)
  if started > 0 then
    return started, true
  end
  TimeBudget.spend(START_COST)
  local job = Audit.checked_in('ready', queue, ids[1])
  if job and Record.is_expired(job) then
    Expiry.expire(job)
  elseif job then
    local full = Parking.blocking_name(job)
    if full then
      Parking.park(job, full)
    else
      local lease = Transitions.start(job, owner)
      TimeBudget.spend_on_bytes(lease[2], lease[3])
      local at = #leases
      leases[at + 1], leases[at + 2], leases[at + 3] = lease[1], lease[2], lease[3]
      fences[#leases / 3] = job.fence
    end
  end
  return 1, false
end

local NEVER = math.huge

-- Promote at most `most` delayed jobs of a queue that are due. Return how many were examined, and true if time ran out.
local function promote(queue, most)
  local affords = TimeBudget.affords(PROMOTE_COST, most)
  local due = Transitions.promote_due(queue, affords)
  TimeBudget.spend(PROMOTE_COST * due)
  return due, due == affords and due < most
end

-- Return true if a queue's own rate and limit let a job start now; a plain queue has no rate.
local function is_open(queue)
  return PlainJobs.allows_queue(queue) and not Limits.exist() or Rates.queue_opens_at(queue) <= NOW
end

-- The first jobs of a queue, at most `most`. If jobs are parked under the names in `known`: the single best job of all.
local function first_in_line(queue, known, most)
  if known then
    TimeBudget.spend(RETURN_COST)
    return { Parking.first(queue, known) }
  end
  return first_of(key('ready', queue), most)
end

-- Claim from a queue. `examined`: the number of jobs examined so far; return it updated, and true if time ran out.
-- `known`: the names under which jobs are parked whose task and version the owner knows, if there are any.
local function claim_from(queue, examined, known)
  -- After a job that is not plain, the next ones usually are not plain either; so read fewer ids at a time.
  local stretch = SCAN_LIMIT
  while has_room(examined) and is_open(queue) do
    if TimeBudget.is_spent() then
      return examined, true
    end
    local may_start = min((room - #leases) / 3, SCAN_LIMIT - examined, stretch)
    local most = PlainJobs.allows_queue(queue) and TimeBudget.affords(FastPath.START_COST, may_start) or 1
    local ids = first_in_line(queue, known, most)
    if #ids == 0 then
      return examined, false
    end
    local started, plainly = start(queue, ids)
    examined, stretch = examined + started, plainly and 2 * stretch or 1
    Changes.unpark()
  end
  return examined, false
end

-- Claim from the queues that have jobs, in their order. Return the numbers of the visited queues, the number of the
-- first queue that may have ready jobs, and where to continue if time ran out.
local function claim(upcoming, known, place)
  local visited, first_ready, promoted, examined, out_of_time = {}, 0, place[2], place[3], false
  for number = place[1], #queues do
    local queue = queues[number]
    if first_ready < number and has_room(examined) then
      first_ready = ReadyQueues.first_with('ready', queues, number) or NEVER
    end
    local is_due, opens = (upcoming.dues[number] or NEVER) <= NOW, (upcoming.opening[number] or NEVER) <= NOW
    if (is_due or opens or known[number] or number == first_ready) and not Settings.queue_paused(queue) then
      if TimeBudget.is_spent() then
        return visited, 1, { number, promoted, examined }
      end
      visited[#visited + 1] = number
      if is_due then
        local due
        due, out_of_time = promote(queue, PROMOTE_LIMIT - promoted)
        promoted = promoted + due
        if out_of_time then
          return visited, 1, { number, promoted, examined }
        end
      end
      if opens and Rates.queue_opens_at(queue) <= NOW then
        Parking.release_open_rates(queue)
      end
      Changes.unpark()
      examined, out_of_time = claim_from(queue, examined, known[number])
      if out_of_time then
        return visited, 1, { number, promoted, examined }
      end
    end
    promoted = 0
  end
  return visited, place[1] == 1 and max(1, min(visited[1] or first_ready, first_ready)) or 1, nil
end

-- Return 1 if claimable jobs are left in any of the queues, else 0; and when time alone makes another job claimable.
local function look_ahead(upcoming, visited, first)
  local shut, next_due = {}, ReadyQueues.next_due(queues, upcoming.dues)
  local known = ReadyQueues.known_places(queues)
  local function note_due(instant)
    next_due = min(instant, next_due or instant)
  end
  for _, number in ipairs(upcoming.tuned) do
    local queue = queues[number]
    local opens_at = Rates.queue_opens_at(queue)
    shut[number] = opens_at > NOW or Settings.queue_paused(queue)
    if opens_at > NOW and not Settings.queue_paused(queue) then
      if (known[number] and KnownTasks.has_jobs(queue, known[number])) or call('EXISTS', key('ready', queue)) == 1 then
        note_due(opens_at)
      end
    end
  end
  local now_opening = {}
  for _, number in ipairs(visited) do
    -- Read it again: this claim may have parked jobs there, or released some.
    now_opening[queues[number]] = head_of(key('opening', queues[number])) or NEVER
  end
  for number, opens in pairs(upcoming.opening) do
    now_opening[queues[number]] = now_opening[queues[number]] or opens
  end
  for queue, opens in pairs(now_opening) do
    if opens < NEVER and not Settings.queue_paused(queue) then
      -- A job's own rate releases it only when the queue's rate allows a start.
      note_due(max(opens, Rates.queue_opens_at(queue)))
    end
  end
  local first_ready = ReadyQueues.first_with('ready', queues, first)
  while first_ready and shut[first_ready] do
    first_ready = ReadyQueues.first_with('ready', queues, first_ready + 1)
  end
  for number, names in pairs(known) do
    first_ready = first_ready or (not shut[number] and KnownTasks.has_jobs(queues[number], names))
  end
  return first_ready and 1 or 0, next_due
end

-- Claim jobs; return `left`, `next_due` and `place` of the answer.
local function take()
  local upcoming = left_over.upcoming or ReadyQueues.upcoming(queues)
  local visited, first, out_of_time = claim(upcoming, ReadyQueues.known_places(queues), left_over.place)
  if out_of_time then
    return 0, nil, out_of_time
  end
  return look_ahead(upcoming, visited, first)
end

-- Put back the jobs that earlier calls of this lane claimed and whose answers were lost.
local function hand_back()
  if lane and not seen then
    Claims.hand_back(function(ref, fence)
      Settling.hand_back(ref, fence, owner)
      TimeBudget.spend(PUT_BACK_COST)
    end, function()
      return not TimeBudget.is_spent()
    end)
  end
end

return Changes.with_repairs(Transaction.run(function()
  settle_all(REQUEST.settlements)
  hand_back()
  Changes.unpark()
  if #verdicts < REQUEST.settling or lane and not seen and Claims.is_lost() then
    return answer(counted(), 0, nil, REQUEST.place)
  elseif not REQUEST.room then
    return answer(counted(), 0)
  end
  local left, next_due, out_of_time = take()
  return answer(counted(), left, next_due and max(0, next_due - NOW), out_of_time)
end, function()
  Changes.write()
  note_claims()
end))
