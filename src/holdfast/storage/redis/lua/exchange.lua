#!lua flags=allow-oom
-- requires: settling, flow, plain, work, purse, lookout
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

local SETTLING, PUTTING_BACK, STARTING, PROMOTING = 55, 65, 55, 65

local all_done = true

local function settle_one(asked)
  local verdict = Settling.settle(asked, owner)
  Purse.pay(asked.after and PUTTING_BACK or SETTLING)
  Purse.pay_for(asked.result and ARGV[asked.result])
  all_done = all_done and verdict == 'done'
  return verdict
end

-- Complete the jobs of a group, each plainly or as if it had been asked for alone.
local function complete(group, verdicts)
  local plainly = Plain.completing(group, owner)
  for number, id in ipairs(group.ids) do
    if Purse.is_empty() then
      return
    end
    local body, result = group.first + 2 * number - 2, group.first + 2 * number - 1
    local fence, verdict = group.fences[number], 'done'
    if plainly and Plain.complete(plainly, id, fence, ARGV[body], ARGV[result]) then
      Purse.pay(Plain.FINISHING + #ARGV[result] / 250)
    else
      verdict = settle_one({
        ref = pair(group.queue, id),
        fence = fence,
        state = 'completed',
        result = result,
        keep = group.keep,
        ended = group.ended,
        events = { { body = body, name = 'completed' } },
      })
    end
    verdicts[#verdicts + 1] = verdict
  end
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

-- Settle as many as there is time for, in their order; return the verdicts.
local function settle_all(settlements)
  local verdicts = {}
  fetch(settlements)
  for _, asked in ipairs(settlements) do
    if Purse.is_empty() then
      break
    elseif asked.ids then
      complete(asked, verdicts)
    else
      verdicts[#verdicts + 1] = settle_one(asked)
    end
  end
  return verdicts
end

-- Start the first in a queue's line: `ids`, as far as they are plain, or the first of them in whatever way; return how many
-- were looked at.
local function start(queue, ids, leases)
  local started = Plain.start(queue, ids, owner, leases)
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

-- What a claim has come to.
local leases, looked, room = {}, 0, 0

local function has_room()
  return #leases < room and looked < SCAN_LIMIT
end

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
    local most = Plain.in_queue(queue) and Purse.affords(Plain.STARTING, may_start) or 1
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
local function claim(queues, place, dues, opening)
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
local function glance(queues, told, dues, opening, visited, first)
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
  room = 3 * min(ASKED.room, CLAIM_LIMIT)
  local told = Settings.fetch('queue', queues)
  local dues, opening = Lookout.coming(queues)
  local visited, first, place = claim(queues, ASKED.place, dues, opening)
  if place then
    return 0, nil, place
  end
  return glance(queues, told, dues, opening, visited, first)
end

return Work.carry_out(function()
  local verdicts = settle_all(ASKED.settlements)
  Work.let_in()
  local left, next_due, place = 0, nil, nil
  if #verdicts < ASKED.settling then
    place = ASKED.place
  elseif ASKED.room then
    left, next_due, place = take(ASKED.queues)
  end
  local next_in = next_due and max(0, next_due - NOW) or false
  return { all_done and #verdicts or verdicts, leases, left, next_in, place or false }
end)
