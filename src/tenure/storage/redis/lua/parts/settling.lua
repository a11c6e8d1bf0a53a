-- requires: prelude, transaction, record_codec, record, notifications, event_log, fair_queue, job_indexes
-- requires: transitions, deletion, rates, limits, known_tasks
-- Settles runs of all kinds of jobs; parts/fast_path.lua has the fast path for plain ones.
--
-- Settlements have the form that exchange.lua describes.
local Settling = {}

-- Change a settlement of a job that has a cancellation request, as `when_cancelling` of core/settlement.py does.
--
-- It stands here, too, because the request may arrive after the worker has decided, so only this step knows both. A
-- worker could send each settlement in both forms instead, but that would double every request for a rare case.
local function when_cancelling(settlement, job)
  if settlement.after then
    local event = { event = 'cancelled', queue = job.queue, id = job.id, task = job.task, run = job.starts }
    event.was, event.reason, event.by = 'active', job.cancel_reason, job.cancel_by
    settlement.events = { { made = cmsgpack.pack(event) } }
    settlement.state, settlement.reason = 'cancelled', job.cancel_reason
    settlement.after, settlement.error, settlement.charge = nil, nil, nil
    return
  end
  settlement.redrive_after = nil
  for _, event in ipairs(settlement.events) do
    if event.name == 'completed' then
      event.over = { cancel_too_late = true }
    elseif event.name == 'cancelled' and not event.by then
      event.over = job.cancel_by and { by = job.cancel_by }
    end
  end
end

-- Let nothing start under the job's own rate, or in its queue, for a time.
local function limit(job, length)
  local rate = Rates.limit_name(job)
  local till = Limits.set(job.queue, rate or QUEUE_RATE, length)
  if till then
    EventLog.record('queue_limited', { queue = job.queue, rate = rate, ['until'] = till, by = job.id })
  end
end

local function apply(job, settlement)
  local changes = {
    settled_fence = job.fence,
    owner = NONE,
    heard_at = NONE,
    lease_until = NONE,
    suspect_until = NONE,
    run_until = NONE,
    progress_until = NONE,
    quarantined = settlement.after and settlement.quarantine or NONE,
    put_back_used = settlement.after and settlement.put_back_used or NONE,
    reason = settlement.reason or NONE,
    run_end = NOW,
    ended = settlement.ended_as or ARGV[settlement.ended],
  }
  if settlement.charge then
    changes[settlement.charge] = job[settlement.charge] + 1
  end
  if not settlement.after then
    changes.state = settlement.state
    changes.finished = NOW
    changes.error = settlement.error or NONE
    changes.fault = settlement.fault or NONE
    changes.kept_until = settlement.keep and NOW + settlement.keep or NONE
    changes.redrive_at = settlement.redrive_after and NOW + settlement.redrive_after or NONE
    if settlement.result then
      Record.set_result(job, ARGV[settlement.result])
    end
  else
    changes.run_at = NOW + settlement.after
    -- Keep an "unreadable" error; without it the job would run with neutral values, for example without its keys.
    changes.error = not RecordCodec.is_unreadable(job) and settlement.error or nil
    if settlement.after == 0 then
      changes.state, changes.score = 'waiting', FairQueue.score_of_put_back(job)
    else
      changes.state, changes.score = 'delayed', FairQueue.score_at(NOW + settlement.after, job.boost, job.lifo)
    end
    if settlement.until_known then
      Rates.give_back(job.queue, Rates.all_of(job), job.started or NOW)
      changes.parked_under = KnownTasks.place_of(job)
    end
    Notifications.notify_queue(job.queue)
  end
  JobIndexes.move(job, changes)
  if changes.state == 'completed' and not settlement.keep then
    Deletion.note_completed(job.queue, 1)
  end
  Notifications.notify_job(job)
end

-- Apply a settlement of an owner; return the verdict.
function Settling.settle(settlement, owner)
  local job = Record.get(settlement.ref)
  if not job then
    return 'gone'
  end
  if not Record.is_held_by(job, owner.id, settlement.fence) then
    if job.settled_fence == settlement.fence then
      Transaction.note_repeated()
      return 'duplicate'
    end
    Transitions.record_refusal(job, owner.id, settlement.fence, 'settle')
    return 'lost'
  end
  if job.cancel_at then
    when_cancelling(settlement, job)
  end
  if settlement.limit then
    limit(job, settlement.limit)
  end
  apply(job, settlement)
  if job.traced then
    Record.delete_trace(job.ref)
    job.traced = nil
  end
  for _, event in ipairs(settlement.events) do
    EventLog.append(event.made or ARGV[event.body], job.ref, event.over)
  end
  EventLog.record_if_drained(job.queue)
  return 'done'
end

-- Put back a claimed job whose run never began, because the claim's answer was lost; core/settlement.py has the same
-- rules.
function Settling.hand_back(ref, fence, owner)
  local job = Record.get(ref)
  if not job or not Record.is_held_by(job, owner.id, fence) then
    return
  end
  local event = { event = 'released', queue = job.queue, id = job.id, task = job.task, run = job.starts }
  event.reason, event.delay = 'prefetch', 0
  Settling.settle({
    ref = ref,
    fence = fence,
    after = 0,
    charge = 'releases',
    reason = 'prefetch',
    quarantine = job.quarantined,
    put_back_used = job.put_back_used,
    ended_as = cmsgpack.pack({ ended = 'released', reason = 'prefetch' }),
    events = { { made = cmsgpack.pack(event) } },
  }, owner)
end
