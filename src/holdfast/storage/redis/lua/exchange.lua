#!lua flags=allow-oom
-- requires: flow, work, purse
-- exchange: apply each settlement whose run is the current one, then claim what is ordered.
--
-- Request: {owner = {id, name, host, pid}, settlements, queues, room, place}. `place`: how far the claim has got by the calls
-- before: {queue, promoted, looked}, the queue by its number, in which so many were promoted; so many were looked at in all.
-- A settlement is {ref, fence, state, result, error, reason, charge, keep, redrive_after, after, quarantine, ended, events}:
-- a state to finish in, or `after` to be put back, perhaps into quarantine; `events` a list of {body, name, by}; `by`: whether it says who did it.
-- Answer: {verdicts, leases, left, next_due, place}; a lease is {ref, record, payload}. `place`: there was no time for the
-- rest, for settlements without a verdict or for more jobs; from there on the next call is to claim. Else false.
local owner = ASKED.owner

-- What a settlement becomes where somebody has asked the job to stop; core/settlement.py says why.
local function when_cancelling(asked, job)
  if asked.after then
    local told = { event = 'cancelled', queue = job.queue, id = job.id, task = job.task, run = job.starts, was = 'active' }
    told.reason, told.by = job.cancel_reason, job.cancel_by
    asked.events = { { made = cmsgpack.pack(told) } }
    asked.after, asked.state, asked.reason, asked.error, asked.charge = nil, 'cancelled', job.cancel_reason, nil, nil
    return
  end
  asked.redrive_after = nil
  for _, event in ipairs(asked.events) do
    if event.name == 'completed' then
      event.over = { cancel_too_late = true }
    elseif event.name == 'cancelled' and not event.by then
      event.over = job.cancel_by and { by = job.cancel_by }
    end
  end
end

local function apply(job, asked)
  local changes = {
    settled_fence = job.fence,
    owner = NONE,
    heard_at = NONE,
    lease_until = NONE,
    suspect_until = NONE,
    run_until = NONE,
    progress_until = NONE,
    quarantined = asked.after and asked.quarantine or NONE,
    reason = asked.reason or NONE,
  }
  if asked.charge then
    changes[asked.charge] = job[asked.charge] + 1
  end
  if not asked.after then
    changes.state = asked.state
    changes.finished = NOW
    changes.error = asked.error or NONE
    changes.kept_until = asked.keep and NOW + asked.keep or NONE
    changes.redrive_at = asked.redrive_after and NOW + asked.redrive_after or NONE
    if asked.result then
      call('SET', key('result', job.ref), ARGV[asked.result])
    end
  else
    changes.run_at = NOW + asked.after
    changes.error = asked.error
    if asked.after == 0 then
      changes.state, changes.score = 'waiting', Line.score_again(job)
    else
      changes.state, changes.score = 'delayed', Line.place(NOW + asked.after, job.boost, job.lifo)
    end
    Journal.knock_queue(job.queue)
  end
  Shelf.move(job, changes)
  Journal.knock_job(job)
end

local function close_run(job, ended)
  Record.forget_trace(job.ref)
  local runs = key('runs', job.ref)
  local last = call('LINDEX', runs, -1)
  local run = last and cmsgpack.unpack(last)
  if run and run.number == job.starts then
    run['end'], run.ended, run.reason, run.detail = NOW, ended.ended, ended.reason, ended.detail
    call('LSET', runs, -1, cmsgpack.pack(run))
  end
end

local function settle(asked)
  local job = Record.at(asked.ref)
  if not job then
    return 'gone'
  end
  if not Record.holds(job, owner.id, asked.fence) then
    if job.settled_fence == asked.fence then
      return 'duplicate'
    end
    Flow.refused(job, owner.id, asked.fence, 'settle')
    return 'lost'
  end
  if job.cancel_at then
    when_cancelling(asked, job)
  end
  apply(job, asked)
  close_run(job, asked.ended)
  for _, event in ipairs(asked.events) do
    Journal.record_as_told(event.made or ARGV[event.body], job.ref, event.over)
  end
  Journal.tell_if_drained(job.queue)
  return 'done'
end

local SETTLING, PUTTING_BACK, STARTING, PROMOTING = 55, 65, 55, 65

-- Claim from the queues; return what was won, and where to go on if there was no time for the rest.
local function claim(queues, room, place)
  local leases, from, promoted, looked = {}, place[1], place[2], place[3]
  room = min(room, CLAIM_LIMIT)
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
      Parking.let_in()
      while #leases < room and looked < SCAN_LIMIT and Rates.queue_opens_at(queue) <= NOW do
        if Purse.is_empty() then
          return leases, { number, promoted, looked }
        end
        local id = first_of(ready, 1)[1]
        if not id then
          break
        end
        looked = looked + 1
        Purse.pay(STARTING)
        local job = Audit.known_in('ready', queue, id)
        if job and Record.lapsed(job) then
          Ends.expire(job)
        elseif job then
          local full = Parking.full(job)
          if full then
            Parking.park(job, full)
          else
            local lease = Flow.start(job, owner)
            Purse.pay_for(lease[2], lease[3])
            leases[#leases + 1] = lease
          end
        end
        Parking.let_in()
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

return carry_out(function()
  local verdicts = {}
  for number, asked in ipairs(ASKED.settlements) do
    if Purse.is_empty() then
      break
    end
    verdicts[number] = settle(asked)
    Purse.pay(asked.after and PUTTING_BACK or SETTLING)
    Purse.pay_for(asked.result and ARGV[asked.result])
  end
  Parking.let_in()
  local leases, left, next_due = {}, 0, nil
  local place = #verdicts < #ASKED.settlements and ASKED.place or nil
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
  return { verdicts, leases, left, next_in, place or false }
end)
