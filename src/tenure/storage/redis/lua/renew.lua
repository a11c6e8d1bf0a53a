#!lua flags=allow-oom
-- requires: transitions, changes, time_budget, claims, settling, identity, figures
-- renew: record that an owner is alive, and extend each lease that it names and still holds.
--
-- workers  HASH  for each worker, by its owner's id: name, host, pid, its number, when it started, the number of the
--                last event that it has announced, and the data of its latest beat
-- seen     ZSET  for each worker, the time of its latest beat
-- log:<ref>  LIST  the lines that a job's handlers logged
--
-- Request: {owner = {id, name, host, pid}, renewals, worker, events, first_event, last, lanes, seen, layout, fresh}.
--   renewals  each with the fields of LeaseRenewal, but data and trace by their places among the arguments; a line of
--             its log is {level, message, fields, ago, number}
--   events    each {body, ref}: the place of its body, and its job if it belongs to one; or {counted} of a delta of the figures
--   lanes     of claims whose answers may have been lost, as in parts/claims.lua
--   seen, layout, fresh  as in parts/identity.lua; absent if the state is not wanted
-- Answer: {lost, cancelling, orders, renewed, left, state}.
--   lost        the places of lost leases among the renewals
--   cancelling  {place, reason} of each run that has a cancellation request
--   renewed     how many renewals there was time for; the call that renews the last one also stores worker and events
--   left        1 if there was no time to hand back all jobs of lost claims
--   state       the state of the partition, or false
local owner = REQUEST.owner

-- Append lines to the log of a job, which keeps the newest ones. `line` is a line's number in the whole log, so the
-- last line has the number of all lines. It also counts lines that were not sent: those missing in a run's own numbering.
local function keep_log(job, lines)
  local log = key('log', job.ref)
  job.logged = true
  local body = call('LRANGE', log, -1, -1)[1]
  local last = body and cmsgpack.unpack(body) or { line = 0 }
  local run, number, count = last.run, last.number or 0, last.line
  for _, line in ipairs(lines) do
    if run ~= job.starts then
      run, number = job.starts, 0
    end
    -- A lower number means that the line was sent before, and is in the log.
    if not line.number or line.number > number then
      count = count + (line.number and line.number - number or 1)
      number = line.number or 0
      call(
        'RPUSH',
        log,
        cmsgpack.pack({
          at = NOW - (line.ago or 0),
          run = run,
          level = line.level,
          message = line.message,
          fields = line.fields,
          number = line.number,
          line = count,
        })
      )
    end
  end
  call('LTRIM', log, -LOG_LINES_KEPT, -1)
end

-- Return when a renewed run's time limit and its progress limit end; core/lease.py gives the reasons.
local function limits(job, renewal)
  local run_until, progress_until, silent = job.run_until, job.progress_until, renewal.silent
  if renewal.sign and not silent then
    silent = 0
  end
  if renewal.ran then
    run_until = Lease.run_limit(NOW - renewal.ran, job.lease, job.timeout, job.deadline)
  end
  if silent and job.heartbeat_timeout then
    progress_until = NOW + job.heartbeat_timeout - silent
  end
  return run_until, progress_until
end

-- Return when a lease that is renewed now ends, its run's time limit, and its progress limit.
local function ends_of(job, renewal)
  local run_until, progress_until = limits(job, renewal)
  -- A start in the future means that the clock was set back since.
  local not_before = min(job.started or NOW, NOW) + job.start_grace
  if renewal.exclusive then
    -- The worker enforces the limits itself: no other run may begin before the handler has ended.
    return Lease.ends(job.lease, nil, nil, not_before), run_until, progress_until
  end
  return Lease.ends(job.lease, run_until, progress_until, not_before), run_until, progress_until
end

local function extend(job, renewal)
  if renewal.log then
    keep_log(job, renewal.log)
  end
  local ends, run_until, progress_until = ends_of(job, renewal)
  local changes = {
    heard_at = NOW,
    lease_until = ends,
    suspect_until = ends <= NOW and job.suspect_until or NONE,
    run_until = run_until or NONE,
    progress_until = progress_until or NONE,
  }
  if renewal.progress then
    changes.progress, changes.progress_note = renewal.progress, renewal.note or NONE
    EventLog.record_if_wanted(job, 'progressed', function()
      return { value = renewal.progress, note = renewal.note }
    end)
  end
  -- A message that arrives late does not replace newer data.
  if renewal.data and (renewal.data_number or 0) > (job.data_number or 0) then
    Record.set_data(job, ARGV[renewal.data])
    changes.data_number = renewal.data_number
    TimeBudget.spend_on_bytes(ARGV[renewal.data])
  end
  JobIndexes.move(job, changes)
  -- A fast beat reads no record, so it would miss a cancellation request or a suspicion.
  if not job.cancel_at and not job.suspect_until then
    Record.allow_fast_beats(job)
  end
end

local traces = {}

-- Note where the handler of a renewed run is.
local function note_trace(number, job, place)
  traces[number] = Record.encode_trace(job, ARGV[place])
end

-- Store the noted traces of these renewals, in their order; those that this call did not reach come with the next one.
local function keep_traces(first, last)
  if not next(traces) then
    return
  end
  local entries = {}
  for number = first, last do
    if traces[number] then
      entries[#entries + 1], entries[#entries + 2] = REQUEST.renewals[number].ref, traces[number]
      TimeBudget.spend_on_bytes(traces[number])
    end
  end
  if #entries > 0 then
    call('HSET', key('traces'), unpack(entries))
  end
  traces = {}
end

local SPAN = 125
local FAST_BEAT_COST, EXTEND_COST, LOG_LINE_COST, PUT_BACK_COST = 4, 32, 9, 65

-- Extend leases of a span of renewals without reading their records, if an earlier beat extended them too. Return the
-- numbers of those renewals.
local function beat(first, last)
  local places, refs, extended = {}, {}, {}
  for number = first, last do
    local renewal = REQUEST.renewals[number]
    if renewal.extend and not renewal.log and not renewal.progress and not renewal.data then
      places[#places + 1], refs[#refs + 1] = number, renewal.ref
    end
  end
  local leases, beats = {}, {}
  for at, body in ipairs(#refs > 0 and call('HMGET', key('beats'), unpack(refs)) or {}) do
    local renewal = REQUEST.renewals[places[at]]
    local readable, job = false, nil
    if body then
      readable, job = pcall(Record.decode_beat, body)
    end
    if readable and job.fence == renewal.fence and job.owner == owner.id then
      local ends, run_until, progress_until = ends_of(job, renewal)
      job.heard_at, job.lease_until, job.run_until, job.progress_until = NOW, ends, run_until, progress_until
      leases[#leases + 1], leases[#leases + 2] = ends, renewal.ref
      beats[#beats + 1], beats[#beats + 2] = renewal.ref, Record.encode_beat(job)
      if renewal.trace then
        note_trace(places[at], job, renewal.trace)
      end
      extended[places[at]] = true
    end
  end
  if #leases > 0 then
    -- Write deferred changes of earlier renewals first, so that they do not overwrite these.
    IndexWrites.flush()
    call('ZADD', key('leases'), unpack(leases))
    call('HSET', key('beats'), unpack(beats))
  end
  return extended
end

-- Record the events and add the deltas that were not received before; return the number of the last one.
local function announce(announced)
  local first = REQUEST.first_event
  for place, event in ipairs(REQUEST.events) do
    local number = first and first + place - 1
    if not number or number > announced then
      if event.counted then
        Figures.add(event.counted)
      else
        EventLog.append(ARGV[event.body], event.ref)
      end
      announced = number or announced
    end
  end
  return announced
end

local function record_worker()
  local workers = key('workers')
  local body = (REQUEST.worker or REQUEST.first_event) and call('HGET', workers, owner.id)
  local known, worker = body and cmsgpack.unpack(body) or {}, REQUEST.worker
  local announced = announce(known.announced or 0)
  if REQUEST.last then
    call('HDEL', workers, owner.id)
    call('ZREM', key('seen'), owner.id)
    Settings.delete_worker(owner.id)
  elseif worker then
    worker.name, worker.host, worker.pid = owner.name, owner.host, owner.pid
    worker.number = known.number or call('HINCRBY', key('counters'), 'workers', 1)
    worker.started = known.started or NOW
    worker.announced = announced
    call('HSET', workers, owner.id, cmsgpack.pack(worker))
    call('ZADD', key('seen'), NOW, owner.id)
  end
end

local lost, cancelling, orders = {}, {}, {}

local function renew(number, renewal)
  local job = Record.get(renewal.ref)
  if job and Record.is_held_by(job, owner.id, renewal.fence) then
    if renewal.trace then
      Record.note_traced(job)
      note_trace(number, job, renewal.trace)
    end
    if renewal.extend then
      extend(job, renewal)
    end
    if job.cancel_at then
      cancelling[#cancelling + 1] = { number, job.cancel_reason or false }
    end
    return
  end
  -- A run that this owner has settled meanwhile is not lost: beat and settlement crossed.
  if job and job.settled_fence ~= renewal.fence then
    Transitions.record_refusal(job, owner.id, renewal.fence, 'renew')
  end
  lost[#lost + 1] = number
end

-- Hand back the jobs of a lane's claims whose answers were lost.
local left, state = 0, false

local function hand_back(lane)
  Claims.read(owner, lane)
  Claims.hand_back(function(ref, fence)
    Settling.hand_back(ref, fence, owner)
    TimeBudget.spend(PUT_BACK_COST)
  end, function()
    return not TimeBudget.is_spent()
  end)
  if Claims.is_lost() then
    left = 1
  end
  Claims.note(owner, lane, {}, 0, {})
end

return Changes.run(function()
  local renewals = REQUEST.renewals
  local renewed = 0
  while renewed < #renewals and not TimeBudget.is_spent() do
    Lease.note()
    local first, last = renewed + 1, min(renewed + SPAN, #renewals)
    local extended = beat(first, last)
    TimeBudget.spend(FAST_BEAT_COST * (last - renewed))
    -- At least one renewal of each span is done, so that each call makes progress.
    while renewed < last and (extended[renewed + 1] or renewed < first or not TimeBudget.is_spent()) do
      renewed = renewed + 1
      local renewal = renewals[renewed]
      if not extended[renewed] then
        renew(renewed, renewal)
        TimeBudget.spend(EXTEND_COST + LOG_LINE_COST * #(renewal.log or {}))
      end
    end
    keep_traces(first, renewed)
  end
  if renewed == #renewals then
    for _, lane in ipairs(REQUEST.lanes or {}) do
      hand_back(lane)
    end
    Changes.unpark()
    local settings = Settings.get('worker', owner.id)
    if REQUEST.seen then
      -- First, because the events of this beat would create a missing event log.
      state = Identity.state(REQUEST.seen, REQUEST.layout, REQUEST.fresh)
    end
    record_worker()
    for _, order in ipairs({ 'quiet', 'stop' }) do
      if settings[order] then
        orders[#orders + 1] = order
      end
    end
    if (settings.concurrency or 0) > 0 then
      orders[#orders + 1] = CONCURRENCY .. whole(settings.concurrency)
    end
    if settings.moved and (settings.moved.to or '') ~= '' then
      orders[#orders + 1] = MOVED .. settings.moved.to
    end
  end
  return { lost, cancelling, orders, renewed, left, state }
end)
