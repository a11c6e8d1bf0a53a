-- requires: cell, form, folding, bytes
-- Records: each job as one string (parts/form.lua), loaded at most once by a script and written back at its end.
--
-- The fields are those of JobRecord by their names, those at their defaults left out. What no script looks at is text in
-- `headers`, `policy` and `error`; log, runs before the last, and what is long of payload and result are keys of their own.
-- A beat does not write the record: what it changes lies beside it, of those that have `beaten` set. Who has a log is
-- `logged`, so no plain job has one.
--
-- beats   HASH  of each such job, by its ref, what a beat looks at, as numbers of eight bytes; then its owner
-- traces  HASH  where the handlers of active jobs are, by ref, as far as they have told (`traced`): when the run was
--               started, as a number of eight bytes; then the text
local Record = {}

local UNSAID = {
  __index = {
    priority = 0,
    boost = 0,
    weight = 1,
    gathered = 0,
    gathered_bytes = 0,
    load = 0,
    lease = 20000000,
    max_stalls = 1,
    start_grace = 0,
    renewed = true,
    on_expire = 'fail',
    fence = 0,
    settled_fence = 0,
    run_fence = 0,
    starts = 0,
    failures = 0,
    stalls = 0,
    releases = 0,
    redrives = 0,
    keys = {},
    rates = {},
    pinned = {},
    tags = {},
  },
}

local loaded, changed, packed = {}, {}, {}

-- A record of these fields, not yet remembered.
function Record.new(ref, fields)
  fields.ref = ref
  fields.queue, fields.id = parts_of(ref)
  return setmetatable(fields, UNSAID)
end

local BEAT, NEVER = '<ddddddddddd', -1

-- What is kept of a job for its beats, until its record is written anew.
function Record.beat(job)
  local fields = {
    job.fence,
    job.heard_at,
    job.lease_until,
    job.run_until or NEVER,
    job.progress_until or NEVER,
    job.lease,
    job.start_grace,
    job.started,
    job.timeout or NEVER,
    job.deadline or NEVER,
    job.heartbeat_timeout or NEVER,
  }
  return struct.pack(BEAT, unpack(fields)) .. job.owner
end

local function unless_never(number)
  return number ~= NEVER and number or nil
end

-- What was kept, as the fields of a job have it.
function Record.beat_of(body)
  local fence, heard, ends, run, progress, lease, grace, started, timeout, deadline, heartbeat, at =
    struct.unpack(BEAT, body)
  return {
    fence = fence,
    heard_at = heard,
    lease_until = ends,
    run_until = unless_never(run),
    progress_until = unless_never(progress),
    lease = lease,
    start_grace = grace,
    started = started,
    timeout = unless_never(timeout),
    deadline = unless_never(deadline),
    heartbeat_timeout = unless_never(heartbeat),
    owner = string.sub(body, at),
  }
end

-- Let beats of a job go by what is kept beside its record from now on.
function Record.let_beat(job)
  job.beaten = true
  call('HSET', key('beats'), job.ref, Record.beat(job))
end

-- What is kept of where the handler of a job's current run is.
function Record.trace(job, text)
  return struct.pack('<d', job.started) .. text
end

-- Where that is, or nil. What an earlier run has left there, settled by who knew of no traces, is not said of this one.
function Record.trace_of(job)
  local body = (job.traced or job.beaten) and call('HGET', key('traces'), job.ref)
  if body and #body >= 8 and struct.unpack('<d', body) == job.started then
    return string.sub(body, 9)
  end
  return nil
end

function Record.forget_trace(ref)
  call('HDEL', key('traces'), ref)
end

-- Note that a job has told where its handler is.
function Record.note_traced(job)
  if not job.traced and not job.beaten then
    job.traced = true
    Record.keep(job)
  end
end

-- The payload of a job where its record does not hold it.
function Record.payload_apart(job)
  return job.load_apart and call('GET', key('load', job.ref)) or ''
end

-- Give a job a payload; `apart`: in a key of its own, even if it is short.
function Record.put_payload(job, payload, apart)
  job.load = #payload
  job.load_apart = (apart or #payload > Form.WITHIN) or nil
  job.payload = not job.load_apart and payload or nil
  if job.load_apart then
    call('SET', key('load', job.ref), payload)
  end
end

-- Give a job a result.
function Record.put_result(job, result)
  job.result_apart = #result > Form.RESULT_WITHIN or nil
  job.result = not job.result_apart and result or nil
  if job.result_apart then
    call('SET', key('result', job.ref), result)
  end
end

-- The result of a job whose record does not hold it, or false.
function Record.result_apart(job)
  return job.result_apart and call('GET', key('result', job.ref)) or false
end

-- The jobs whose records cannot be read: {job, what cannot, whether it has failed by that}, in the order they were met.
Record.unreadable = {}

-- The job of a record. What cannot be read of it has neutral values, and its error says so: it must hold up no others.
function Record.read(ref, body)
  local readable, fields = pcall(Folding.unfold, body)
  if readable then
    packed[ref] = body
    return Record.new(ref, fields)
  end
  local salvaged, what, failed = Folding.salvage(body)
  local job = Record.new(ref, salvaged)
  Record.unreadable[#Record.unreadable + 1] = { job, what, failed }
  return job
end

-- The job of a ref, or nil.
function Record.at(ref)
  local job = loaded[ref]
  if job == nil then
    local body = Bytes.take(ref)
    job = body and Record.read(ref, body)
    loaded[ref] = job
    local beaten = job and job.beaten and call('HGET', key('beats'), ref)
    local readable, beat = false, nil
    if beaten then
      readable, beat = pcall(Record.beat_of, beaten)
    end
    if readable then
      job.heard_at, job.lease_until = beat.heard_at, beat.lease_until
      job.run_until, job.progress_until = beat.run_until, beat.progress_until
      packed[ref] = nil
    end
  end
  return job or nil
end

-- Whether this script has loaded a record, or moved it.
function Record.has(ref)
  return loaded[ref] ~= nil
end

function Record.of(queue, id)
  return Record.at(pair(queue, id))
end

-- Remember a record as it is now.
function Record.keep(job)
  loaded[job.ref] = job
  changed[job.ref] = true
  Bytes.let_go(job.ref)
  if job.beaten then
    -- With its beats it may have told where its handler is.
    job.beaten, job.traced = nil, true
    call('HDEL', key('beats'), job.ref)
  end
end

-- Forget a job with all that is kept of it.
function Record.drop(job)
  local ref = job.ref
  loaded[ref], changed[ref], packed[ref] = false, nil, nil
  if job.beaten then
    call('HDEL', key('beats'), ref)
  end
  Bytes.let_go(ref)
  -- Or what was changed before would be written after.
  Bytes.flush()
  call('UNLINK', key('job', ref), key('load', ref), key('result', ref), key('runs', ref), key('log', ref))
end

-- The record of a job as it is stored, to be handed out.
function Record.packed(job)
  local ref = job.ref
  if changed[ref] or not packed[ref] then
    packed[ref] = Folding.fold(job)
    if changed[ref] then
      changed[ref] = nil
      Bytes.write(ref, packed[ref])
    end
  end
  return packed[ref]
end

-- Have all written that was changed, by Bytes.
function Record.flush()
  for ref in pairs(changed) do
    Record.packed(loaded[ref])
  end
end

-- Whether a job's own lifetime is over: it is gone then, swept or not.
function Record.past(job)
  return job.state == 'completed' and job.kept_until ~= nil and job.kept_until <= NOW
end

-- Whether this owner's run under this fence is the job's current one: the guard of every write.
function Record.holds(job, owner, fence)
  return job.state == 'active' and job.fence == fence and job.owner == owner
end

-- Whether a job that has not started is too old to start.
function Record.lapsed(job)
  return job.expires_at ~= nil and job.expires_at <= NOW
end
