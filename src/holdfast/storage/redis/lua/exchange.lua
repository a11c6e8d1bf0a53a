#!lua flags=allow-oom
-- requires: settling, flow, plain, work, purse
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

-- Claim from the queues; return what was won, and where to go on if there was no time for the rest.
local function claim(queues, room, place)
  local leases, from, promoted, looked = {}, place[1], place[2], place[3]
  -- Of each lease there are three things.
  room = 3 * min(room, CLAIM_LIMIT)
  for number = from, #queues do
    local queue = queues[number]
    if Purse.is_empty() then
      return leases, { number, promoted, looked }
    end
    if not Settings.queue_paused(queue) then
      local ready = key('ready', queue)
      local may_promote = PROMOTE_LIMIT - promoted
      local affords = Purse.affords(PROMOTING, may_promote)
      local due = Flow.promote_due(queue, affords)
      Purse.pay(PROMOTING * due)
      promoted = promoted + due
      if due == affords and due < may_promote then
        return leases, { number, promoted, looked }
      end
      if Rates.queue_opens_at(queue) <= NOW then
        Parking.open_up(queue)
      end
      Work.let_in()
      while #leases < room and looked < SCAN_LIMIT and Rates.queue_opens_at(queue) <= NOW do
        if Purse.is_empty() then
          return leases, { number, promoted, looked }
        end
        local may_start = min((room - #leases) / 3, SCAN_LIMIT - looked)
        local ids = first_of(ready, Plain.in_queue(queue) and Purse.affords(Plain.STARTING, may_start) or 1)
        if #ids == 0 then
          break
        end
        looked = looked + start(queue, ids, leases)
        Work.let_in()
      end
    end
    promoted = 0
  end
  return leases, nil
end

-- Whether a queue has a job that could be claimed, and when time alone gives it another.
local function glance(queue)
  local opens_at = Rates.queue_opens_at(queue)
  local due = head_of(key('delayed', queue))
  local opening = head_of(key('opening', queue))
  if opening then
    -- Nobody is let in line by a rate of his own before the queue's own lets him start.
    opening = max(opening, opens_at)
    due = due and min(due, opening) or opening
  end
  local ready = call('EXISTS', key('ready', queue)) == 1
  if ready and opens_at > NOW then
    ready = false
    due = due and min(due, opens_at) or opens_at
  end
  return ready, due
end

return Work.carry_out(function()
  local verdicts = settle_all(ASKED.settlements)
  Work.let_in()
  local leases, left, next_due = {}, 0, nil
  local place = #verdicts < ASKED.settling and ASKED.place or nil
  if ASKED.room and not place then
    leases, place = claim(ASKED.queues, ASKED.room, ASKED.place)
    for _, queue in ipairs(ASKED.queues) do
      if not Settings.queue_paused(queue) then
        local ready, due = glance(queue)
        left = ready and 1 or left
        next_due = due and min(due, next_due or due) or next_due
      end
    end
  end
  local next_in = next_due and max(0, next_due - NOW) or false
  return { all_done and #verdicts or verdicts, leases, left, next_in, place or false }
end)
