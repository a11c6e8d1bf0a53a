-- requires: prelude, record_format, fast_records, record_bytes, index_writes, notifications, virtual_time, skips
-- requires: lease, time_budget, plain_jobs, deletion
-- The fast path of claim and settle: starts and completes many plain jobs at a time; see parts/plain_jobs.lua.
local FastPath = {}

FastPath.START_COST, FastPath.SETTLE_COST = 28, 25

local LOG = key('events')

-- Format a number as text: Redis would do so for each command, and slowly.
local function text(number)
  return string.format('%d', number)
end

local NOW_TEXT = text(NOW)

local function put(words, number, member)
  local at = #words
  words[at + 1], words[at + 2] = number, member
end

-- The refs of a queue's jobs.
function FastPath.refs(queue, ids)
  local refs, beginning = {}, pair(queue, '')
  for number = 1, #ids do
    refs[number] = beginning .. ids[number]
  end
  return refs
end

-- What all jobs started now with this lease and timeout have in common: the bytes of their run, and the end of the
-- lease.
local function run_of(holder, lease, timeout)
  local run_until = timeout ~= -1 and Lease.run_limit(NOW, lease, timeout)
  local ends = Lease.ends(lease, run_until)
  return FastRecords.first_run(holder, Lease.next_fence(0), ends, run_until), text(ends)
end

-- Start the first ready jobs of a queue until one is not plain. Append their leases to `leases`, and return how many
-- were started. `quiet`: there are no settings, and the queue has no fair keys.
function FastPath.start(queue, ids, owner, leases, quiet)
  if not quiet and (not PlainJobs.allows_queue(queue) or VirtualTime.of(queue)) then
    return 0
  end
  local refs, holder = FastPath.refs(queue, ids), Lease.holder(owner)
  RecordBytes.fetch(refs)
  if not FastRecords.read_waiting(RecordBytes.get(refs[1]) or '') then
    return 0
  end
  local waiting = IndexWrites.removals(key('in', pair(queue, 'waiting')))
  local active = IndexWrites.additions(key('in', pair(queue, 'active')))
  local held, until_when = IndexWrites.additions(key('held', owner.id)), IndexWrites.additions(key('leases'))
  local started, run, ends, last_lease, last_timeout = 0, nil, nil, nil, nil
  for number = 1, #ids do
    local id, ref = ids[number], refs[number]
    local body = RecordBytes.get(ref) or ''
    local marks, fixed, load, made, run_at, created, lease, timeout = FastRecords.read_waiting(body)
    if not marks or run_at ~= created or not PlainJobs.allows_task(fixed, quiet) or TimeBudget.is_spent() then
      break
    end
    if lease ~= last_lease or timeout ~= last_timeout then
      run, ends = run_of(holder, lease, timeout)
      last_lease, last_timeout = lease, timeout
    end
    local record = FastRecords.started(body, marks, run, holder)
    RecordBytes.replace(ref, record)
    local at = #leases
    leases[at + 1], leases[at + 2] = ref, record
    leases[at + 3] = marks ~= RecordFormat.PLAIN and call('GET', key('load', ref)) or ''
    waiting[#waiting + 1] = id
    put(active, text(made), id)
    put(held, NOW_TEXT, ref)
    put(until_when, ends, ref)
    started = number
    TimeBudget.spend(FastPath.START_COST + (load + #record) / 250)
  end
  if started > 0 then
    Skips.finish()
    Lease.note()
    -- Not deferred, because the rest of the claim reads this index. By rank, which is faster than by member.
    call('ZREMRANGEBYRANK', key('ready', queue), 0, started - 1)
  end
  return started
end

-- Complete the jobs of a group from number `from` on, until one is not plain, its current run is not this owner's run
-- with this fence, or time runs out; return how many were completed. `group`: as in the request of exchange.lua,
-- {queue, ids, fences, ended, keep, first}, plus the `refs` of its jobs. `quiet`: as for `start`.
function FastPath.complete(group, from, owner, quiet)
  local queue, ids, refs, fences, first = group.queue, group.ids, group.refs, group.fences, group.first
  if not quiet and not PlainJobs.allows_queue(queue) then
    return 0
  end
  if not FastRecords.read_active(RecordBytes.get(refs[from]) or '') then
    return 0
  end
  local holder = Lease.holder(owner)
  local ended, kept = ARGV[group.ended], group.keep and NOW + group.keep
  local over_at, channel = text(kept or NOW), Notifications.channel('job:' .. pair(queue, ''))
  local active = IndexWrites.removals(key('in', pair(queue, 'active')))
  local held = IndexWrites.removals(key('held', owner.id))
  local leases = IndexWrites.removals(key('leases'))
  local completed = IndexWrites.additions(key('in', pair(queue, 'completed')))
  local over = IndexWrites.additions(kept and key('kept') or key('over', pair(queue, 'completed')))
  -- Whether the queue may keep too many jobs after these completions.
  local forgets = not kept and Deletion.surplus(queue, quiet) + #ids > 0
  if forgets then
    TimeBudget.spend(Deletion.STEP_COST)
  end
  local number, last_run, fence, size, run = from, nil, nil, nil, nil
  while number <= #ids and not TimeBudget.is_spent() do
    local id, ref, result = ids[number], refs[number], ARGV[first + 2 * number - 1]
    local body = RecordBytes.get(ref) or ''
    local marks, current, made, before = FastRecords.read_active(body)
    if not marks then
      break
    end
    -- Jobs that were started together have the same bytes here.
    if current ~= last_run then
      fence, size, run = FastRecords.end_run(current, #ended, kept)
      last_run = current
    end
    if fence ~= fences[number] or string.sub(body, before + 1, before + size) ~= holder then
      break
    end
    TimeBudget.spend(FastPath.SETTLE_COST + #result / 250)
    if #result > RecordFormat.INLINE_RESULT then
      RecordBytes.write_key(key('result', ref), result)
      result = nil
    end
    RecordBytes.replace(ref, FastRecords.completed(body, marks, run, before + size, ended, result))
    active[#active + 1], held[#held + 1], leases[#leases + 1] = id, ref, ref
    put(completed, text(made), id)
    put(over, over_at, kept and ref or id)
    call(
      'XADD', LOG, 'MAXLEN', '~', EVENTS_KEPT.count, 'LIMIT', TRIM_BATCH, '0-*',
      'e', ARGV[first + 2 * number - 2], 't', NOW_TEXT, 'j', ref
    )
    Notifications.add_channel(channel .. id)
    number = number + 1
  end
  if number > from then
    if forgets then
      Deletion.note_completed(queue, number - from)
    end
    Skips.finish()
    Notifications.notify('events')
  end
  return number - from
end

-- Write the deferred changes.
function FastPath.write()
  RecordBytes.flush()
  IndexWrites.flush()
  if is_made(Deletion) then
    Deletion.delete_surplus()
  end
end
