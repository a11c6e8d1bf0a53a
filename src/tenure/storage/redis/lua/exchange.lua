#!lua flags=allow-oom
-- requires: passage, purse, lookout, step, claims
-- exchange: apply each settlement whose run is the current one, then claim jobs from the given queues.
--
-- Request: {owner = {id, name, host, pid}, settlements, settling, queues, room, tasks, place, lane}.
--   settling  the number of jobs that the settlements settle
--   lane      as in parts/claims.lua; without it a claim has no number
--   tasks     the place of the argument that lists, as msgpack, each task that the owner knows with its payload's
--             newest version
--   place     how far the earlier calls of this claim got: {number of the queue, jobs promoted there, jobs examined}
-- A settlement is {ref, fence, state, result, error, reason, charge, keep, redrive_after, after, quarantine,
-- put_back_used, until_known, ended, events}. `state` finishes the job. `after` puts it back, perhaps into quarantine,
-- or parked until a worker knows the task. `events` is a list of {body, name, by}; `by`: the event names an actor.
-- Settlements that only complete jobs can come as a group: {queue, ids, fences, ended, keep, first}. The event and the
-- result of each are arguments of the script, from place `first` on.
-- Answer: {verdicts, leases, left, next_due, place, seen}.
--   verdicts  a list, or the number of settlements if all are 'done'
--   leases    ref, record and payload (empty if the record holds it) of each job, one after the other
--   left      1 if claimable jobs were left
--   next_due  microseconds until time alone makes another job claimable, or false
--   place     where the next call continues, if there was no time for all settlements or jobs; else false
--   seen      1 if this call's number was seen before
local owner, queues, lane = ASKED.owner, ASKED.queues or {}, ASKED.lane

-- The maximum length of the list of leases, which has three entries for each job.
local room = ASKED.room and 3 * min(ASKED.room, CLAIM_LIMIT) or 0

local leases = {}

-- The fences of leases, by number of the lease; those of first runs are left out.
local fences = {}

local seen = lane and Claims.look(owner, lane) or false
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

local function has_room(looked)
  return #leases < room and looked < SCAN_LIMIT
end

-- Return true if there are no settings, no delayed and no parked jobs, and none of these queues has fair keys. That is
-- the usual case, and one command tells. Moves outside the fast path may change it during the script.
local function are_quiet()
  if #queues > 100 then
    return false
  end
  local names = { key('settings'), key('dues'), key('places') }
  for number, queue in ipairs(queues) do
    names[number + 3] = key('fair', queue)
  end
  return call('EXISTS', unpack(names)) == 0
end

-- Read the records of all settled jobs with one command.
local function fetch(settlements)
  local refs = {}
  for _, asked in ipairs(settlements) do
    asked.refs = asked.ids and Passage.refs(asked.queue, asked.ids) or { asked.ref }
    for _, ref in ipairs(asked.refs) do
      refs[#refs + 1] = ref
    end
  end
  Bytes.fetch(refs)
end

-- Complete the jobs of groups until one is not plain. Return how many jobs were completed, how many groups are
-- finished, and how many jobs of the next group.
local function complete_plainly(settlements, quiet)
  local done = 0
  for number, group in ipairs(settlements) do
    local completed = group.ids and Passage.complete(group, 1, owner, quiet) or 0
    done = done + completed
    if not group.ids or completed < #group.ids then
      return done, number - 1, completed
    end
  end
  return done, #settlements, 0
end

-- Claim jobs until one is not plain, from queues whose rates and pauses hold up nothing. Return true if no other kind
-- of job was met; where to continue if one was met or time ran out; and whether jobs are left.
local function claim_plainly(quiet)
  local number, promoted, looked = unpack(ASKED.place)
  local more = false
  if #queues ~= 1 or not has_room(looked) then
    number = Lookout.first_with('ready', queues, number)
  end
  while number and has_room(looked) do
    if Purse.is_empty() then
      return true, { number, promoted, looked }
    end
    local most = Purse.affords(Passage.STARTING, min((room - #leases) / 3, SCAN_LIMIT - looked))
    -- Read one more id: it shows whether jobs are left.
    local ids = first_of(key('ready', queues[number]), most + 1)
    more = table.remove(ids, most + 1) ~= nil
    local started = #ids > 0 and Passage.start(queues[number], ids, owner, leases, quiet) or 0
    looked = looked + started
    if started == #ids and not more then
      number, promoted = Lookout.first_with('ready', queues, number + 1), 0
    elseif started < #ids and not Purse.is_empty() then
      return false, { number, promoted, looked }
    end
  end
  return true, nil, more or number or ASKED.place[1] > 1 and Lookout.first_with('ready', queues, 1)
end

-- The fast path: do as much of the request as concerns plain jobs. Return the answer, or nil and what is left to do:
-- {done, through, completed, place, coming}: the number of jobs settled; the number of finished groups; the jobs
-- completed of the group after these; where to continue the claim; and, if it was looked up, `Lookout.coming` of the
-- queues.
local function begin()
  local settlements, quiet = ASKED.settlements, are_quiet()
  fetch(settlements)
  local done, through, completed = complete_plainly(settlements, quiet)
  local undone = { done = done, through = through, completed = completed, place = ASKED.place }
  if done < ASKED.settling then
    return Purse.is_empty() and answer(done, 0, nil, ASKED.place) or nil, undone
  elseif not ASKED.room then
    return answer(done, 0)
  elseif lane and Claims.is_lost() then
    return nil, undone
  end
  if not quiet then
    undone.coming = Lookout.coming(queues)
    if Lookout.holds_up(undone.coming) or next(Lookout.known(queues)) then
      return nil, undone
    end
  end
  local all, place, left = claim_plainly(quiet)
  if all then
    return answer(done, left and 1 or 0, nil, place)
  end
  undone.place = place
  return nil, undone
end

local answered, undone = Step.carry_out(begin, function()
  Passage.write_down()
  note_claims()
end)
if answered then
  return answered
end

-- requires: plain, settling, flow, work, known

local SETTLING, PUTTING_BACK, STARTING, PROMOTING, COMING_BACK = 55, 65, 55, 65, 60

local verdicts = {}

local function note_done(more)
  for _ = 1, more do
    verdicts[#verdicts + 1] = 'done'
  end
end

local function settle(asked)
  verdicts[#verdicts + 1] = Settling.settle(asked, owner)
  Purse.pay(asked.after and PUTTING_BACK or SETTLING)
  Purse.pay_for(asked.result and ARGV[asked.result])
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
  while from <= #group.ids and not Purse.is_empty() do
    local completed = Passage.complete(group, from, owner)
    note_done(completed)
    from = from + completed
    if from <= #group.ids and not Purse.is_empty() then
      settle_of(group, from)
      from = from + 1
    end
  end
end

-- Settle in order, as many as there is time for.
local function settle_all(settlements)
  note_done(undone.done)
  local number, from = undone.through + 1, undone.completed + 1
  while number <= #settlements and not Purse.is_empty() do
    if settlements[number].ids then
      settle_group(settlements[number], from)
    else
      settle(settlements[number])
    end
    number, from = number + 1, 1
  end
end

-- The verdicts as the answer has them: their number if all are 'done'.
local function summed_up()
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
  local started = Passage.start(queue, ids, owner, leases)
  if started > 0 then
    return started, true
  end
  Purse.pay(STARTING)
  local job = Audit.known_in('ready', queue, ids[1])
  if job and Record.lapsed(job) then
    Ends.expire(job)
  elseif job then
    local full = Parking.full(job)
    if full then
      Parking.park(job, full)
    else
      local lease = Flow.start(job, owner)
      Purse.pay_for(lease[2], lease[3])
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
  local affords = Purse.affords(PROMOTING, most)
  local due = Flow.promote_due(queue, affords)
  Purse.pay(PROMOTING * due)
  return due, due == affords and due < most
end

-- Return true if a queue's own rate lets a job start now; a plain queue has no rate.
local function is_open(queue)
  return Plain.in_queue(queue) or Rates.queue_opens_at(queue) <= NOW
end

-- The first jobs of a queue, at most `most`. If jobs are parked under the names in `known`: the single best job of all.
local function first_in_line(queue, known, most)
  if known then
    Purse.pay(COMING_BACK)
    return { Parking.first(queue, known) }
  end
  return first_of(key('ready', queue), most)
end

-- Claim from a queue. `looked`: the number of jobs examined so far; return it updated, and true if time ran out.
-- `known`: the names under which jobs are parked whose task and version the owner knows, if there are any.
local function claim_from(queue, looked, known)
  -- After a job that is not plain, the next ones usually are not plain either; so read fewer ids at a time.
  local stretch = SCAN_LIMIT
  while has_room(looked) and is_open(queue) do
    if Purse.is_empty() then
      return looked, true
    end
    local may_start = min((room - #leases) / 3, SCAN_LIMIT - looked, stretch)
    local most = Plain.in_queue(queue) and Purse.affords(Passage.STARTING, may_start) or 1
    local ids = first_in_line(queue, known, most)
    if #ids == 0 then
      return looked, false
    end
    local started, plainly = start(queue, ids)
    looked, stretch = looked + started, plainly and 2 * stretch or 1
    Work.let_in()
  end
  return looked, false
end

-- Claim from the queues that have jobs, in their order. Return the numbers of the visited queues, the number of the
-- first queue that may have ready jobs, and where to continue if time ran out.
local function claim(coming, known, place)
  local visited, lined, promoted, looked, in_vain = {}, 0, place[2], place[3], false
  for number = place[1], #queues do
    local queue = queues[number]
    if lined < number and has_room(looked) then
      lined = Lookout.first_with('ready', queues, number) or NEVER
    end
    local is_due, opens = (coming.dues[number] or NEVER) <= NOW, (coming.opening[number] or NEVER) <= NOW
    if (is_due or opens or known[number] or number == lined) and not Settings.queue_paused(queue) then
      if Purse.is_empty() then
        return visited, 1, { number, promoted, looked }
      end
      visited[#visited + 1] = number
      if is_due then
        local due
        due, in_vain = promote(queue, PROMOTE_LIMIT - promoted)
        promoted = promoted + due
        if in_vain then
          return visited, 1, { number, promoted, looked }
        end
      end
      if opens and Rates.queue_opens_at(queue) <= NOW then
        Parking.open_up(queue)
      end
      Work.let_in()
      looked, in_vain = claim_from(queue, looked, known[number])
      if in_vain then
        return visited, 1, { number, promoted, looked }
      end
    end
    promoted = 0
  end
  return visited, place[1] == 1 and max(1, min(visited[1] or lined, lined)) or 1, nil
end

-- Return 1 if claimable jobs are left in any of the queues, else 0; and when time alone makes another job claimable.
local function glance(coming, visited, first)
  local shut, next_due = {}, Lookout.next_due(queues, coming.dues)
  local known = Lookout.known(queues)
  local function comes(instant)
    next_due = min(instant, next_due or instant)
  end
  for _, number in ipairs(coming.told) do
    local queue = queues[number]
    local opens_at = Rates.queue_opens_at(queue)
    shut[number] = opens_at > NOW or Settings.queue_paused(queue)
    if opens_at > NOW and not Settings.queue_paused(queue) then
      if (known[number] and Known.holds(queue, known[number])) or call('EXISTS', key('ready', queue)) == 1 then
        comes(opens_at)
      end
    end
  end
  local now_opening = {}
  for _, number in ipairs(visited) do
    -- Read it again: this claim may have parked jobs there, or released some.
    now_opening[queues[number]] = head_of(key('opening', queues[number])) or NEVER
  end
  for number, opens in pairs(coming.opening) do
    now_opening[queues[number]] = now_opening[queues[number]] or opens
  end
  for queue, opens in pairs(now_opening) do
    if opens < NEVER and not Settings.queue_paused(queue) then
      -- A job's own rate releases it only when the queue's rate allows a start.
      comes(max(opens, Rates.queue_opens_at(queue)))
    end
  end
  local lined = Lookout.first_with('ready', queues, first)
  while lined and shut[lined] do
    lined = Lookout.first_with('ready', queues, lined + 1)
  end
  for number, names in pairs(known) do
    lined = lined or (not shut[number] and Known.holds(queues[number], names))
  end
  return lined and 1 or 0, next_due
end

-- Claim jobs; return `left`, `next_due` and `place` of the answer.
local function take()
  local coming = undone.coming or Lookout.coming(queues)
  local visited, first, in_vain = claim(coming, Lookout.known(queues), undone.place)
  if in_vain then
    return 0, nil, in_vain
  end
  return glance(coming, visited, first)
end

-- Put back the jobs that earlier calls of this lane claimed and whose answers were lost.
local function hand_back()
  if lane and not seen then
    Claims.hand_back(function(ref, fence)
      Settling.hand_back(ref, fence, owner)
      Purse.pay(PUTTING_BACK)
    end, function()
      return not Purse.is_empty()
    end)
  end
end

return Work.answer(Step.carry_out(function()
  settle_all(ASKED.settlements)
  hand_back()
  Work.let_in()
  if #verdicts < ASKED.settling or lane and not seen and Claims.is_lost() then
    return answer(summed_up(), 0, nil, ASKED.place)
  elseif not ASKED.room then
    return answer(summed_up(), 0)
  end
  local left, next_due, in_vain = take()
  return answer(summed_up(), left, next_due and max(0, next_due - NOW), in_vain)
end, function()
  Work.write_down()
  note_claims()
end))
