-- requires: prelude, record, notifications, event_log, figures, fair_queue, job_indexes, enqueue, redriving, time_budget
-- requires: inbox, wait_verdicts, outbox, partitioning, dependents, steps
-- Carries out the verdict on a job's wait in the step in which its tokens arrive, and notifies the dependents of each
-- end. storage/memory/waiting.py has the same rules, with reasons.
--
-- A job that waits, or that others wait for, has rare fields: `wait` and `timeless` (parts/wait_verdicts.lua);
-- `dependents` and `more` (parts/dependents.lua); `kind`: flow or group; `flow`: the ref of its flow; `plan`: JSON;
-- `wake_at`: when time alone changes a suspended job; `entry`: the number of its last entry in the outbox.
local Waiting = {}

-- constants: NOTIFIED_AT_ONCE, ENDS_AT_ONCE, EARLY_FAILURE, SIGNAL, SLEEP

-- The reasons of a job that failed because a job that it needs has failed, and of one that is not needed.
local FAILED_NEED, NOT_NEEDED = 'dependency', 'skipped'

-- The time to deliver a token, in microseconds.
local DELIVERY_COST = 70

local function error_text(type_, message)
  return cjson.encode({ type = type_, message = message })
end

local function quoted(ref)
  local queue, id = parts_of(ref)
  return "the job '" .. id .. "' of the queue '" .. queue .. "'"
end

-- Return true if two jobs are in this partition.
local function are_together(ref, other)
  return Partitioning.are_together((parts_of(ref)), (parts_of(other)))
end

-- Record what met the needs of a wait as steps of the job, and that it has read the signals.
local function record_steps(job, verdict)
  for _, outcome in ipairs(verdict.outcomes) do
    local need = outcome.need
    local is_signal = starts_with(need.box, SIGNAL)
    if need.step then
      local kind = is_signal and 'signal' or need.box == SLEEP and 'sleep' or 'wait'
      local body = WaitVerdicts.body(job, verdict, outcome)
      Steps.add(job, { name = need.step, by = outcome.by, kind = kind }, body)
    end
    if is_signal and outcome.by ~= 'timer' then
      Inbox.note_read(job, need.box, need.count or 0)
    end
  end
end

-- Put a suspended job back into its queue at its old place, with new budgets.
local function wake(job, verdict)
  record_steps(job, verdict)
  local score, expires_at = nil, NONE
  if job.starts > 0 then
    score = FairQueue.score_of_put_back(job)
  else
    score = FairQueue.score(job, FairQueue.enqueue_time(job))
    expires_at = job.ttl and NOW + job.ttl or NONE
  end
  JobIndexes.move(job, {
    state = 'waiting',
    run_at = NOW,
    score = score,
    expires_at = expires_at,
    failures = NONE,
    stalls = NONE,
    reason = NONE,
    wake_at = NONE,
  })
  Notifications.notify_queue(job.queue)
  Notifications.notify_job(job)
end

-- Return the fault of a job that fails without a run. `cause`: the job whose end is the reason, if it is known.
local function fault_of(job, reason, cause)
  return string.sub(redis.sha1hex(job.task .. '\0' .. reason .. '\0' .. (cause and cause.fault or '')), 1, 12)
end

-- End a suspended job by the verdict on its wait.
local function finish(job, state, reason, message, cause)
  local event = { attempt = state ~= 'cancelled' and job.failures + 1 or nil, reason = reason }
  if state == 'cancelled' then
    event.was = 'suspended'
  end
  JobIndexes.move(job, {
    state = state,
    finished = NOW,
    reason = reason or NONE,
    error = message or NONE,
    fault = state == 'failed' and fault_of(job, reason, cause) or NONE,
    wake_at = NONE,
  })
  event.error = message and cjson.decode(message)
  EventLog.record_job_event(job, state, event)
  Figures.count_end(job, state)
  EventLog.record_if_drained(job.queue)
  Notifications.notify_job(job)
end

-- Return the ref of the job whose end broke a need; nil if the key does not lead to a job.
local function failure_cause(job, need, failed)
  if need.source then
    return pair(need.source.queue, need.source.id)
  end
  local readable, plan = pcall(cjson.decode, job.plan or '{}')
  local node = readable and plan.nodes and plan.nodes[failed]
  if node then
    return pair(node.queue, node.id)
  end
  return job.kind == 'group' and pair(job.queue, job.id .. '~' .. failed) or nil
end

local function cause_of(job, verdict)
  local failed = Inbox.first_failed(job, verdict.need.box) or ''
  return failure_cause(job, verdict.need, failed), failed
end

-- Fail a job because a job that it needs has failed. Its error names that job.
local function fail_by_dependency(job, verdict)
  local ref, failed = cause_of(job, verdict)
  local message, cause = nil, nil
  if not ref then
    message = "'" .. failed .. "' in '" .. verdict.need.box .. "' failed"
  else
    message = 'it needs ' .. quoted(ref) .. ', which did not complete'
    cause = are_together(job.ref, ref) and Record.get(ref) or nil
    local readable, known = pcall(cjson.decode, cause and cause.error or '')
    if readable and type(known) == 'table' and known.type then
      message = message .. ': ' .. known.type .. ': ' .. (known.message or '')
    end
  end
  finish(job, 'failed', FAILED_NEED, error_text('DependencyFailedError', message), cause)
end

local function fail_by_time(job)
  finish(job, 'failed', 'timeout', error_text('WaitTimeoutError', 'its members did not end within its time'))
end

-- Set the instant at which time alone changes a suspended job.
local function set_wake_time(job, verdict)
  local wake_at = WaitVerdicts.due_at(verdict)
  if job.deadline then
    wake_at = min(job.deadline, wake_at or job.deadline)
  end
  if wake_at ~= job.wake_at then
    JobIndexes.move(job, { wake_at = wake_at or NONE })
  end
end

-- Carry out the verdict on a suspended job.
function Waiting.judge(job)
  local verdict = WaitVerdicts.evaluate(job)
  if verdict.is == 'open' then
    if not (job.deadline and job.deadline <= NOW) then
      set_wake_time(job, verdict)
    elseif job.kind then
      fail_by_time(job)
    else
      -- Its next run ends at once, as that of any job whose deadline has passed.
      verdict.outcomes = {}
      wake(job, verdict)
    end
  elseif verdict.is == 'skipped' then
    finish(job, 'cancelled', NOT_NEEDED)
  elseif not job.kind and not (verdict.is == 'broken' and job.starts == 0) then
    -- A broken wait of a job that has started: its handler gets the error.
    wake(job, verdict)
  elseif verdict.is == 'broken' then
    fail_by_dependency(job, verdict)
  elseif verdict.by_time then
    fail_by_time(job)
  else
    finish(job, 'completed')
  end
end

-- Suspend an ended job with new budgets, and judge it. `changes`: further changes of its record.
local function suspend_again(job, changes)
  for field, value in pairs(Redriving.renewed(job, NOW, false)) do
    if changes[field] == nil then
      changes[field] = value
    end
  end
  changes.state, changes.expires_at, changes.run_at = 'suspended', NONE, nil
  JobIndexes.move(job, changes)
  Notifications.notify_job(job)
  Waiting.judge(job)
end

-- Put a job back that had failed by others only, if none of its needs is broken any more.
local function resume(job)
  if WaitVerdicts.evaluate(job).is == 'broken' or Redriving.holder(job) then
    return
  end
  EventLog.record_job_event(job, 'redriven', { by = FAILED_NEED, was = job.state })
  suspend_again(job, {})
end

-- Evaluate the wait of a job whose inbox has changed.
function Waiting.note_arrival(job)
  if job.state == 'suspended' then
    Waiting.judge(job)
  elseif job.state == 'failed' and job.reason == FAILED_NEED then
    resume(job)
  end
end

-- Report the first failure in a flow or a group, which itself may end much later, to the flow, once.
local function note_early_failure(job, token)
  if token.box == EARLY_FAILURE then
    if Inbox.read(job, { EARLY_FAILURE })[EARLY_FAILURE].arrived == 1 then
      EventLog.record_job_event(job, 'flow_broken', { failure_cause = token.key })
    end
    return
  end
  local wait, found = WaitVerdicts.wait_of(job), nil
  for _, need in ipairs(wait and wait.needs or {}) do
    if not found and need.box == token.box and (need.mode == 'fail' or need.mode == 'tally') then
      found = need
    end
  end
  if not found then
    return
  end
  local flow = job.flow or job.ref
  local cause = failure_cause(job, found, token.key)
  local name = cause and string.gsub(cause, '%z', '/') or token.key
  if are_together(job.ref, flow) then
    local known = Record.get(flow)
    if not known or Inbox.read(known, { EARLY_FAILURE })[EARLY_FAILURE].arrived == 0 then
      Waiting.deliver(flow, { box = EARLY_FAILURE, key = name, outcome = 'failed' })
    end
  elseif Inbox.read(job, { token.box })[token.box].failed == 1 then
    Outbox.write({ ref = job.ref, completed = false, dependents = { flow, EARLY_FAILURE, name } })
  end
end

-- Put a token into a job's inbox, and act on it; return true if that changed anything. A token for an unknown job, or a
-- repeated one, is dropped.
function Waiting.deliver(to, token)
  TimeBudget.spend(DELIVERY_COST)
  local queue, id = parts_of(to)
  local job = Record.get_in(queue, Enqueue.answers_for(queue, id))
  if not job or Record.is_over(job) or not Inbox.deliver(job, token) then
    return false
  end
  if token.outcome == 'failed' and job.kind then
    note_early_failure(job, token)
  end
  if token.box ~= EARLY_FAILURE then
    Waiting.note_arrival(job)
  end
  return true
end

-- Notify some dependents of an end, {ref, box, key, ref, box, key, ...}.
local function notify(dependents, completed)
  for at = 1, #dependents, 3 do
    Waiting.deliver(dependents[at], {
      box = dependents[at + 1],
      key = dependents[at + 2],
      outcome = completed and 'completed' or 'failed',
    })
  end
end

local function are_near(ref, dependents)
  for at = 1, #dependents, 3 do
    if not are_together(ref, dependents[at]) then
      return false
    end
  end
  return true
end

local function write_entry(ended)
  local job = ended.job
  if job.entry then
    Outbox.replace(whole(job.entry), job.ref)
  end
  local number = Outbox.write(ended)
  if Record.get(job.ref) == job then
    JobIndexes.update(job, { entry = tonumber(number) })
  end
end

-- Notify the dependents of the jobs that have ended since the last call, and those of the jobs that end by this. Write an
-- entry of the outbox for an end with many dependents, or with some in another partition; and for ends that follow from
-- ends, once they are many, or time is over.
function Waiting.hand_over()
  local carried = 0
  for ended in JobIndexes.next_ended do
    local few = not ended.more and #ended.dependents <= 3 * NOTIFIED_AT_ONCE and carried <= ENDS_AT_ONCE
    if few and (carried == 0 or not TimeBudget.is_spent()) and are_near(ended.job.ref, ended.dependents) then
      carried = carried + 1
      notify(ended.dependents, ended.completed)
    else
      write_entry(ended)
    end
  end
end

-- Tokens of calls whose jobs have ended already, or never begin. A later call of the script may wait for them.
local immediate = {}

-- Add dependents to a job; if it has ended, or was deleted, `Waiting.deliver_immediate` notifies them.
function Waiting.add_dependents(ref, dependents)
  local job = Record.get(ref)
  if not job or TERMINAL[job.state] then
    local completed = job and job.state == 'completed'
    immediate[#immediate + 1] = { ref = ref, completed = completed, dependents = dependents }
  end
  local changes = job and Dependents.added(job, dependents)
  if changes then
    JobIndexes.update(job, changes)
  end
end

-- Deliver these tokens: all jobs of the script exist now.
function Waiting.deliver_immediate()
  local ends = immediate
  immediate = {}
  for _, ended in ipairs(ends) do
    if are_near(ended.ref, ended.dependents) then
      notify(ended.dependents, ended.completed)
    else
      Outbox.write(ended)
    end
  end
  Waiting.hand_over()
end

-- Enqueue a call with links, as Enqueue.add does. The caller calls `deliver_immediate` after all calls.
function Waiting.enqueue(new_job, offset)
  local result = Enqueue.add(new_job, offset)
  local dependents = new_job.dependents or {}
  if result[1] == 'created' then
    local job = Record.get_in(new_job.queue, new_job.id)
    if job.state == 'suspended' then
      Waiting.judge(job)
      Waiting.hand_over()
    end
  elseif #dependents > 0 then
    if result[1] == 'throttled' then
      local ref = pair(new_job.queue, new_job.id)
      immediate[#immediate + 1] = { ref = ref, completed = false, dependents = dependents }
    else
      Waiting.add_dependents(pair(new_job.queue, result[2]), dependents)
    end
  end
  return result
end

-- Redrive a finished job that waits, or has waited, for others: suspend it if something is missing.
function Waiting.redrive(job, delay, by, by_rule)
  local verdict = WaitVerdicts.evaluate(job)
  -- An operator may run a job that was skipped.
  local skipped = verdict.is == 'skipped' and job.starts == 0 and job.reason ~= NOT_NEEDED
  if not job.kind and not (verdict.is == 'open' or skipped) then
    Redriving.redrive(job, delay, by, by_rule)
    return
  end
  EventLog.record_job_event(job, 'redriven', { by = by, was = job.state })
  -- The time of a job without a handler is over, and would end it again.
  suspend_again(job, job.kind and { timeless = true, deadline = NONE } or {})
end

-- Return the ref of the failed job that must be redriven instead of one that needs it; nil if that job does not exist.
-- A job of another partition counts as existing, unless it is `gone`: then the caller has asked that partition.
function Waiting.missing_job(job, gone)
  -- The handler of a job that has started gets the error of its wait, unless that error has ended it.
  if job.starts > 0 and job.reason ~= FAILED_NEED then
    return nil
  end
  local verdict = WaitVerdicts.evaluate(job)
  if verdict.is ~= 'broken' then
    return nil
  end
  local cause = cause_of(job, verdict)
  local there = cause and cause ~= gone and (not are_together(job.ref, cause) or Record.get(cause))
  -- A job without a handler cannot do without it.
  return (there or job.kind) and cause or nil
end
