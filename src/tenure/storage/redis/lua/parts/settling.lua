-- requires: cell, step, folding, record, hints, journal, line, shelf, flow, forgetting, rates, known
-- Settles runs of all kinds of jobs; parts/passage.lua has the fast path for plain ones.
--
-- Settlements have the form that exchange.lua describes.
local Settling = {}

-- Change a settlement of a job that has a cancellation request; core/settlement.py has the reasons.
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
    put_back_used = asked.after and asked.put_back_used or NONE,
    reason = asked.reason or NONE,
    run_end = NOW,
    ended = asked.ended_as or ARGV[asked.ended],
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
      Record.put_result(job, ARGV[asked.result])
    end
  else
    changes.run_at = NOW + asked.after
    -- Keep an "unreadable" error; without it the job would run with neutral values, for example without its keys.
    changes.error = not Folding.is_unreadable(job) and asked.error or nil
    if asked.after == 0 then
      changes.state, changes.score = 'waiting', Line.score_again(job)
    else
      changes.state, changes.score = 'delayed', Line.place(NOW + asked.after, job.boost, job.lifo)
    end
    if asked.until_known then
      Rates.give_back(job.queue, Rates.all_of(job), job.started or NOW)
      changes.parked_under = Known.place_of(job)
    end
    Hints.knock_queue(job.queue)
  end
  Shelf.move(job, changes)
  if changes.state == 'completed' and not asked.keep then
    Forgetting.note(job.queue, 1)
  end
  Hints.knock_job(job)
end

-- Apply a settlement of an owner; return the verdict.
function Settling.settle(asked, owner)
  local job = Record.at(asked.ref)
  if not job then
    return 'gone'
  end
  if not Record.holds(job, owner.id, asked.fence) then
    if job.settled_fence == asked.fence then
      Step.note_repeated()
      return 'duplicate'
    end
    Flow.refused(job, owner.id, asked.fence, 'settle')
    return 'lost'
  end
  if job.cancel_at then
    when_cancelling(asked, job)
  end
  apply(job, asked)
  if job.traced then
    Record.forget_trace(job.ref)
    job.traced = nil
  end
  for _, event in ipairs(asked.events) do
    Journal.record_as_told(event.made or ARGV[event.body], job.ref, event.over)
  end
  Journal.tell_if_drained(job.queue)
  return 'done'
end

-- Put back a claimed job whose run never began, because the claim's answer was lost; core/settlement.py has the same
-- rules.
function Settling.hand_back(ref, fence, owner)
  local job = Record.at(ref)
  if not job or not Record.holds(job, owner.id, fence) then
    return
  end
  local told = { event = 'released', queue = job.queue, id = job.id, task = job.task, run = job.starts }
  told.reason, told.delay = 'prefetch', 0
  Settling.settle({
    ref = ref,
    fence = fence,
    after = 0,
    charge = 'releases',
    reason = 'prefetch',
    quarantine = job.quarantined,
    put_back_used = job.put_back_used,
    ended_as = cmsgpack.pack({ ended = 'released', reason = 'prefetch' }),
    events = { { made = cmsgpack.pack(told) } },
  }, owner)
end
