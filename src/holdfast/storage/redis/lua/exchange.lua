#!lua flags=allow-oom
-- requires: passage, purse, lookout, step
-- exchange: apply each settlement whose run is the current one, then claim what is ordered.
--
-- Request: {owner = {id, name, host, pid}, settlements, settling, queues, room, place}. `settling`: how many these are. `place`: how far the claim has got by the calls
-- before: {queue, promoted, looked}, the queue by its number, in which so many were promoted; so many were looked at in all.
-- A settlement is {ref, fence, state, result, error, reason, charge, keep, redrive_after, after, quarantine, ended, events}:
-- a state to finish in, or `after` to be put back, perhaps into quarantine; `events` a list of {body, name, by}; `by`: whether it says who did it.
-- Or a group of those that complete a job, and do nothing else: {queue, ids, fences, ended, keep, first}. Of each the event
-- and the result are arguments of the script, from `first` on.
-- Answer: {verdicts, leases, left, next_due, place}. `verdicts`: a list, or how many there are if all are done; `leases`:
-- of each ref, record and payload (empty where the record holds it), one after the other. `place`: there was no time for the
-- rest, for settlements without a verdict or for more jobs; from there on the next call is to claim. Else false.
local owner = ASKED.owner

-- What has come of it: verdicts, and whether all are `done`; leases, and how many jobs were looked at.
local verdicts, all_done, leases, looked = {}, true, {}, 0

-- The settlement, or group of some, that is next, and how many of that group were settled.
local settling, of_group = 1, 0

-- How long the list of leases may become.
local room = ASKED.room and 3 * min(ASKED.room, CLAIM_LIMIT) or 0

-- Which queues are told anything; when each has delayed jobs, or a rate that opens. Asked when all is settled.
local told, dues, opening

local function has_room()
  return #leases < room and looked < SCAN_LIMIT
end

-- What is answered. `place`: where there was no time to go on.
local function answer(left, next_in, place)
  return { all_done and #verdicts or verdicts, leases, left, next_in or false, place or false }
end

-- Whether nobody has said anything of any queue or task, nothing is delayed, nobody is parked and none of these lines is
-- fair: mostly so, and told by one look. What a script moves otherwise than plainly may change that.
local function are_quiet(queues)
  if #queues > 100 then
    return false
  end
  local names = { key('settings'), key('dues'), key('places') }
  for number, queue in ipairs(queues) do
    names[number + 3] = key('fair', queue)
  end
  return call('EXISTS', unpack(names)) == 0
end

-- What is asked about by settlements, read by one command.
local function fetch(settlements)
  local refs = {}
  for _, asked in ipairs(settlements) do
    for _, id in ipairs(asked.ids or {}) do
      refs[#refs + 1] = pair(asked.queue, id)
    end
    refs[#refs + 1] = asked.ref
  end
  Bytes.fetch(refs)
end

-- Complete the jobs of a group that come next; `otherwise` does what is not plain. Return whether there was nothing else.
local function complete(group, quiet, otherwise)
  local plainly = Passage.completing(group, owner, quiet)
  while of_group < #group.ids and not Purse.is_empty() do
    local at, event = of_group + 1, group.first + 2 * of_group
    local result = ARGV[event + 1]
    if plainly and Passage.complete(plainly, group.ids[at], group.fences[at], ARGV[event], result) then
      verdicts[#verdicts + 1] = 'done'
      Purse.pay(Passage.FINISHING + #result / 250)
    elseif otherwise then
      otherwise(group, at)
    else
      return false
    end
    of_group = at
  end
  return true
end

-- Claim jobs as far as they are plain, from queues of which none holds them up; return what is answered, or nil and where to
-- go on.
local function claim_plainly(queues, quiet)
  local number, promoted, more = ASKED.place[1], ASKED.place[2], false
  if #queues ~= 1 or not has_room() then
    number = Lookout.first_with('ready', queues, number)
  end
  while number and has_room() do
    if Purse.is_empty() then
      return answer(0, nil, { number, promoted, looked })
    end
    local ready = key('ready', queues[number])
    local most = Purse.affords(Passage.STARTING, min((room - #leases) / 3, SCAN_LIMIT - looked))
    -- One beyond them tells whether any are left.
    local ids = first_of(ready, most + 1)
    more = table.remove(ids, most + 1) ~= nil
    local started = #ids > 0 and Passage.start(queues[number], ids, owner, leases, quiet) or 0
    looked = looked + started
    if started == #ids and not more then
      number, promoted = Lookout.first_with('ready', queues, number + 1), 0
    elseif started < #ids and not Purse.is_empty() then
      return nil, { number, promoted, looked }
    end
  end
  local left = more or number or ASKED.place[1] > 1 and Lookout.first_with('ready', queues, 1)
  return answer(left and 1 or 0)
end

-- Do all that is asked, as far as it is plain; return what is answered, or nil and where to go on claiming.
local function begin()
  local settlements, queues = ASKED.settlements, ASKED.queues or {}
  local quiet = are_quiet(queues)
  fetch(settlements)
  while settling <= #settlements do
    local group = settlements[settling]
    if not group.ids or not complete(group, quiet) then
      return nil
    elseif of_group < #group.ids then
      return answer(0, nil, ASKED.place)
    end
    settling, of_group = settling + 1, 0
  end
  if not ASKED.room then
    return answer(0)
  end
  looked = ASKED.place[3]
  if not quiet then
    told = Settings.fetch('queue', queues)
    dues, opening = Lookout.coming(queues)
    if #told > 0 or next(dues) or next(opening) then
      return nil
    end
  end
  return claim_plainly(queues, quiet)
end

local answered, place = Step.carry_out(begin, Passage.write_down)
if answered then
  return answered
end

-- requires: plain, settling, flow, work

local SETTLING, PUTTING_BACK, STARTING, PROMOTING = 55, 65, 55, 65

local function settle(asked)
  local verdict = Settling.settle(asked, owner)
  Purse.pay(asked.after and PUTTING_BACK or SETTLING)
  Purse.pay_for(asked.result and ARGV[asked.result])
  all_done = all_done and verdict == 'done'
  verdicts[#verdicts + 1] = verdict
end

-- Settle one of a group as if it had been asked for alone.
local function settle_of(group, number)
  local body = group.first + 2 * number - 2
  settle({
    ref = pair(group.queue, group.ids[number]),
    fence = group.fences[number],
    state = 'completed',
    result = body + 1,
    keep = group.keep,
    ended = group.ended,
    events = { { body = body, name = 'completed' } },
  })
end

-- Settle as many as there is time for, in their order.
local function settle_all(settlements)
  while settling <= #settlements and not Purse.is_empty() do
    local asked = settlements[settling]
    if asked.ids then
      complete(asked, false, settle_of)
    else
      settle(asked)
    end
    settling, of_group = settling + 1, 0
  end
end

-- Start the first in a queue's line: `ids`, as far as they are plain, or the first of them in whatever way; return how many
-- were looked at.
local function start(queue, ids, leases)
  local started = Passage.start(queue, ids, owner, leases)
  if started > 0 then
    return started
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
    end
  end
  return 1
end

local NEVER = math.huge

-- Let those of a queue come into line whose time has come, so many at most; return how many were looked at, and whether
-- there was time for no more of them.
local function promote(queue, most)
  local affords = Purse.affords(PROMOTING, most)
  local due = Flow.promote_due(queue, affords)
  Purse.pay(PROMOTING * due)
  return due, due == affords and due < most
end

-- Whether a queue's own rate lets a job start; of a plain one nobody has set any.
local function is_open(queue)
  return Plain.in_queue(queue) or Rates.queue_opens_at(queue) <= NOW
end

-- Claim from a queue; return whether there was no time for the rest.
local function claim_from(queue)
  while has_room() and is_open(queue) do
    if Purse.is_empty() then
      return true
    end
    local may_start = min((room - #leases) / 3, SCAN_LIMIT - looked)
    local most = Plain.in_queue(queue) and Purse.affords(Passage.STARTING, may_start) or 1
    local ids = first_of(key('ready', queue), most)
    if #ids == 0 then
      return false
    end
    looked = looked + start(queue, ids, leases)
    Work.let_in()
  end
  return false
end

-- Claim from those of the queues that have anything, in their order. Return the numbers of those that were visited, the
-- first one that anybody may stand in line of, and where to go on if there was no time for the rest.
local function claim(queues, place)
  local visited, lined, promoted = {}, 0, place[2]
  looked = place[3]
  for number = place[1], #queues do
    local queue = queues[number]
    if lined < number and has_room() then
      lined = Lookout.first_with('ready', queues, number) or NEVER
    end
    local is_due, opens = (dues[number] or NEVER) <= NOW, (opening[number] or NEVER) <= NOW
    if (is_due or opens or number == lined) and not Settings.queue_paused(queue) then
      if Purse.is_empty() then
        return visited, 1, { number, promoted, looked }
      end
      visited[#visited + 1] = number
      if is_due then
        local due, in_vain = promote(queue, PROMOTE_LIMIT - promoted)
        promoted = promoted + due
        if in_vain then
          return visited, 1, { number, promoted, looked }
        end
      end
      if opens and Rates.queue_opens_at(queue) <= NOW then
        Parking.open_up(queue)
      end
      Work.let_in()
      if claim_from(queue) then
        return visited, 1, { number, promoted, looked }
      end
    end
    promoted = 0
  end
  return visited, place[1] == 1 and max(1, min(visited[1] or lined, lined)) or 1, nil
end

-- Whether jobs that could be claimed were left in any of the queues, as 0 or 1, and when time alone gives another.
local function glance(queues, visited, first)
  local shut, next_due = {}, Lookout.next_due(queues, dues)
  local function comes(instant)
    next_due = min(instant, next_due or instant)
  end
  for _, number in ipairs(told) do
    local queue = queues[number]
    local opens_at = Rates.queue_opens_at(queue)
    shut[number] = opens_at > NOW or Settings.queue_paused(queue)
    if opens_at > NOW and not Settings.queue_paused(queue) and call('EXISTS', key('ready', queue)) == 1 then
      comes(opens_at)
    end
  end
  local now_opening = {}
  for _, number in ipairs(visited) do
    -- Somebody may have been parked there by this very claim, or let in.
    now_opening[queues[number]] = head_of(key('opening', queues[number])) or NEVER
  end
  for number, opens in pairs(opening) do
    now_opening[queues[number]] = now_opening[queues[number]] or opens
  end
  for queue, opens in pairs(now_opening) do
    if opens < NEVER and not Settings.queue_paused(queue) then
      -- Nobody is let in line by a rate of his own before the queue's own lets him start.
      comes(max(opens, Rates.queue_opens_at(queue)))
    end
  end
  local lined = Lookout.first_with('ready', queues, first)
  while lined and shut[lined] do
    lined = Lookout.first_with('ready', queues, lined + 1)
  end
  return lined and 1 or 0, next_due
end

-- Claim what is ordered; return what to answer of it.
local function take(queues)
  if not dues then
    told = Settings.fetch('queue', queues)
    dues, opening = Lookout.coming(queues)
  end
  local visited, first, in_vain = claim(queues, place or ASKED.place)
  if in_vain then
    return 0, nil, in_vain
  end
  return glance(queues, visited, first)
end

return Work.carry_out(function()
  settle_all(ASKED.settlements)
  Work.let_in()
  if #verdicts < ASKED.settling then
    return answer(0, nil, ASKED.place)
  elseif not ASKED.room then
    return answer(0)
  end
  local left, next_due, in_vain = take(ASKED.queues)
  return answer(left, next_due and max(0, next_due - NOW), in_vain)
end)
