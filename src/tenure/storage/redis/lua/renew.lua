#!lua flags=allow-oom
-- requires: flow, work, purse, claims, settling, identity
-- renew: record that an owner is alive, and extend each lease that it names and still holds.
--
-- workers  HASH  for each worker, by its owner's id: name, host, pid, its number, when it started, the number of the
--                last event that it has announced, and the data of its latest beat
-- seen     ZSET  for each worker, the time of its latest beat
-- log:<ref>  LIST  the lines that a job's handlers logged
--
-- Request: {owner = {id, name, host, pid}, renewals, worker, events, first_event, last, lanes, seen, layout, fresh}.
--   renewals  each with the fields of LeaseRenewal, but the trace by its place among the arguments; a line of its log
--             is {level, message, fields, ago, number}
--   events    each {body, ref}: the place of its body, and its job if it belongs to one
--   lanes     of claims whose answers may have been lost, as in parts/claims.lua
--   seen, layout, fresh  as in parts/identity.lua; absent if the state is not asked for
-- Answer: {lost, cancelling, orders, renewed, left, state}.
--   lost        the places of lost leases among the renewals
--   cancelling  {place, reason} of each run that has a cancellation request
--   renewed     how many renewals there was time for; the call that renews the last one also stores worker and events
--   left        1 if there was no time to hand back all jobs of lost claims
--   state       the state of the partition, or false
local owner = ASKED.owner

-- Append lines to the log of a job, which keeps the newest ones. `line` is a line's number in the whole log, so the
-- last line tells how many there were. It also counts lines that were not sent: those missing in a run's own numbering.
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
local function limits(job, asked)
  local run_until, progress_until, silent = job.run_until, job.progress_until, asked.silent
  if asked.sign and not silent then
    silent = 0
  end
  if asked.ran then
    run_until = Lease.run_limit(NOW - asked.ran, job.lease, job.timeout, job.deadline)
  end
  if silent and job.heartbeat_timeout then
    progress_until = NOW + job.heartbeat_timeout - silent
  end
  return run_until, progress_until
end

-- Return when a lease that is renewed now ends, its run's time limit, and its progress limit.
local function ends_of(job, asked)
  local run_until, progress_until = limits(job, asked)
  -- A start in the future means that the clock was set back since.
  local not_before = min(job.started or NOW, NOW) + job.start_grace
  if asked.exclusive then
    -- The worker enforces the limits itself: no other run may begin before the handler has ended.
    return Lease.ends(job.lease, nil, nil, not_before), run_until, progress_until
  end
  return Lease.ends(job.lease, run_until, progress_until, not_before), run_until, progress_until
end

local function extend(job, asked)
  if asked.log then
    keep_log(job, asked.log)
  end
  local ends, run_until, progress_until = ends_of(job, asked)
  local changes = {
    heard_at = NOW,
    lease_until = ends,
    suspect_until = ends <= NOW and job.suspect_until or NONE,
    run_until = run_until or NONE,
    progress_until = progress_until or NONE,
  }
  if asked.progress then
    changes.progress, changes.progress_note = asked.progress, asked.note or NONE
    Journal.tell(job, 'progressed', function()
      return { value = asked.progress, note = asked.note }
    end)
  end
  Shelf.move(job, changes)
  -- A fast beat reads no record, so it would miss a cancellation request or a suspicion.
  if not job.cancel_at and not job.suspect_until then
    Record.let_beat(job)
  end
end

local traces = {}

-- Note where the handler of a renewed run is.
local function note_trace(number, job, place)
  traces[number] = Record.trace(job, ARGV[place])
end

-- Store the noted traces of these renewals, in their order; those that this call did not reach come with the next one.
local function keep_traces(first, last)
  if not next(traces) then
    return
  end
  local told = {}
  for number = first, last do
    if traces[number] then
      told[#told + 1], told[#told + 2] = ASKED.renewals[number].ref, traces[number]
      Purse.pay_for(traces[number])
    end
  end
  if #told > 0 then
    call('HSET', key('traces'), unpack(told))
  end
  traces = {}
end

local SPAN = 125
local BEATING, EXTENDING, LOGGING, PUTTING_BACK = 4, 32, 9, 65

-- Extend leases of a span of renewals without reading their records, if an earlier beat extended them too. Return the
-- numbers of those renewals.
local function beat(first, last)
  local places, refs, extended = {}, {}, {}
  for number = first, last do
    local asked = ASKED.renewals[number]
    if asked.extend and not asked.log and not asked.progress then
      places[#places + 1], refs[#refs + 1] = number, asked.ref
    end
  end
  local leases, beats = {}, {}
  for at, body in ipairs(#refs > 0 and call('HMGET', key('beats'), unpack(refs)) or {}) do
    local asked = ASKED.renewals[places[at]]
    local readable, job = false, nil
    if body then
      readable, job = pcall(Record.beat_of, body)
    end
    if readable and job.fence == asked.fence and job.owner == owner.id then
      local ends, run_until, progress_until = ends_of(job, asked)
      job.heard_at, job.lease_until, job.run_until, job.progress_until = NOW, ends, run_until, progress_until
      leases[#leases + 1], leases[#leases + 2] = ends, asked.ref
      beats[#beats + 1], beats[#beats + 2] = asked.ref, Record.beat(job)
      if asked.trace then
        note_trace(places[at], job, asked.trace)
      end
      extended[places[at]] = true
    end
  end
  if #leases > 0 then
    -- Write deferred changes of earlier renewals first, so that they do not overwrite these.
    Index.flush()
    call('ZADD', key('leases'), unpack(leases))
    call('HSET', key('beats'), unpack(beats))
  end
  return extended
end

-- Record the events that were not recorded before; return the number of the last one.
local function announce(announced)
  local first = ASKED.first_event
  for place, event in ipairs(ASKED.events) do
    local number = first and first + place - 1
    if not number or number > announced then
      Journal.record_as_told(ARGV[event.body], event.ref)
      announced = number or announced
    end
  end
  return announced
end

local function remember_worker()
  local workers = key('workers')
  local body = (ASKED.worker or ASKED.first_event) and call('HGET', workers, owner.id)
  local known, worker = body and cmsgpack.unpack(body) or {}, ASKED.worker
  local announced = announce(known.announced or 0)
  if ASKED.last then
    call('HDEL', workers, owner.id)
    call('ZREM', key('seen'), owner.id)
    Settings.forget_worker(owner.id)
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

local function renew(number, asked)
  local job = Record.at(asked.ref)
  if job and Record.holds(job, owner.id, asked.fence) then
    if asked.trace then
      Record.note_traced(job)
      note_trace(number, job, asked.trace)
    end
    if asked.extend then
      extend(job, asked)
    end
    if job.cancel_at then
      cancelling[#cancelling + 1] = { number, job.cancel_reason or false }
    end
    return
  end
  -- A run that this owner has settled meanwhile is not lost: beat and settlement crossed.
  if job and job.settled_fence ~= asked.fence then
    Flow.refused(job, owner.id, asked.fence, 'renew')
  end
  lost[#lost + 1] = number
end

-- Hand back the jobs of a lane's claims whose answers were lost.
local left, state = 0, false

local function hand_back(lane)
  Claims.look(owner, lane)
  Claims.hand_back(function(ref, fence)
    Settling.hand_back(ref, fence, owner)
    Purse.pay(PUTTING_BACK)
  end, function()
    return not Purse.is_empty()
  end)
  if Claims.is_lost() then
    left = 1
  end
  Claims.note(owner, lane, {}, 0, {})
end

return Work.carry_out(function()
  local renewals = ASKED.renewals
  local renewed = 0
  while renewed < #renewals and not Purse.is_empty() do
    Lease.note()
    local first, last = renewed + 1, min(renewed + SPAN, #renewals)
    local extended = beat(first, last)
    Purse.pay(BEATING * (last - renewed))
    -- At least one renewal of each span is done, so that each call makes progress.
    while renewed < last and (extended[renewed + 1] or renewed < first or not Purse.is_empty()) do
      renewed = renewed + 1
      local asked = renewals[renewed]
      if not extended[renewed] then
        renew(renewed, asked)
        Purse.pay(EXTENDING + LOGGING * #(asked.log or {}))
      end
    end
    keep_traces(first, renewed)
  end
  if renewed == #renewals then
    for _, lane in ipairs(ASKED.lanes or {}) do
      hand_back(lane)
    end
    Work.let_in()
    local told = Settings.of('worker', owner.id)
    if ASKED.seen then
      -- First, because the events of this beat would create a missing event log.
      state = Identity.state(ASKED.seen, ASKED.layout, ASKED.fresh)
    end
    remember_worker()
    for _, order in ipairs({ 'quiet', 'stop' }) do
      if told[order] then
        orders[#orders + 1] = order
      end
    end
  end
  return { lost, cancelling, orders, renewed, left, state }
end)
