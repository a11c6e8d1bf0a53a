-- requires: prelude, record_format, record_codec, record_bytes
-- Records: each job is one string (parts/record_format.lua). A script loads it at most once, and writes it back at its
-- end.
--
-- The fields are those of JobRecord by their names; fields at their defaults are left out. `headers`, `policy` and
-- `error` are JSON text. The log, the earlier runs, and long payloads and results have keys of their
-- own. A beat does not write the record: for jobs with `beaten`, the fields that it changes are in `beats`. A job with
-- a log has `logged`, so it is not plain.
--
-- beats   HASH  for each such job, by its ref: the fields that a beat needs, as numbers of eight bytes; then its owner
-- traces  HASH  where the handlers of active jobs are, by ref, if they have reported it (`traced`): when the run was
--               started, as a number of eight bytes; then the text
local Record = {}

local DEFAULTS = {
  __index = {
    priority = 0,
    boost = 0,
    weight = 1,
    collected = 0,
    collected_bytes = 0,
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

-- Return a record with these fields; it is not stored yet.
function Record.new(ref, fields)
  fields.ref = ref
  fields.queue, fields.id = parts_of(ref)
  return setmetatable(fields, DEFAULTS)
end

local BEAT, NEVER = '<ddddddddddd', -1

-- Encode the entry of a job in `beats`, which is valid until its record is written again.
function Record.encode_beat(job)
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

-- Decode an entry of `beats` into fields of a job.
function Record.decode_beat(body)
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

-- Let later beats of a job use its entry in `beats` instead of its record.
function Record.allow_fast_beats(job)
  job.beaten = true
  call('HSET', key('beats'), job.ref, Record.encode_beat(job))
end

-- Encode the entry of a job in `traces`.
function Record.encode_trace(job, text)
  return struct.pack('<d', job.started) .. text
end

-- Return where the handler of the current run is, or nil. An entry of an earlier run may be left over, if that run was
-- settled by code that knew nothing of traces; it is ignored.
function Record.read_trace(job)
  local body = (job.traced or job.beaten) and call('HGET', key('traces'), job.ref)
  if body and #body >= 8 and struct.unpack('<d', body) == job.started then
    return string.sub(body, 9)
  end
  return nil
end

function Record.delete_trace(ref)
  call('HDEL', key('traces'), ref)
end

-- Note that a job has an entry in `traces`.
function Record.note_traced(job)
  if not job.traced and not job.beaten then
    job.traced = true
    Record.mark_changed(job)
  end
end

-- The payload of a job if it has a key of its own, else ''.
function Record.read_separate_payload(job)
  return job.load_apart and call('GET', key('load', job.ref)) or ''
end

-- Set a job's payload; `apart`: in a key of its own, even if it is short.
function Record.set_payload(job, payload, apart)
  job.load = #payload
  job.load_apart = (apart or #payload > RecordFormat.INLINE_PAYLOAD) or nil
  job.payload = not job.load_apart and payload or nil
  if job.load_apart then
    call('SET', key('load', job.ref), payload)
  end
end

-- Set a job's result.
function Record.set_result(job, result)
  job.result_apart = #result > RecordFormat.INLINE_RESULT or nil
  job.result = not job.result_apart and result or nil
  if job.result_apart then
    call('SET', key('result', job.ref), result)
  end
end

-- The result of a job if it has a key of its own, else false.
function Record.read_separate_result(job)
  return job.result_apart and call('GET', key('result', job.ref)) or false
end

-- Set a job's data, which has a key of its own; the caller sets `data_number`.
function Record.set_data(job, data)
  call('SET', key('data', job.ref), data)
end

-- The jobs with unreadable records, in the order they were met: {job, the unreadable parts, true if that made it fail}.
Record.unreadable = {}

-- Return the number of a job from the listings of its queue, or 1, which is the lowest that listings show.
local function number_of(ref)
  local queue, id = parts_of(ref)
  for _, state in ipairs({ 'waiting', 'again', 'active', 'delayed', 'completed', 'failed', 'cancelled', 'expired' }) do
    local made = tonumber(call('ZSCORE', key('in', pair(queue, state)), id) or '')
    if made and made >= 1 then
      return made
    end
  end
  return 1
end

-- Decode a record. Unreadable fields get neutral values, and the job's error says so: such a job must not block others.
function Record.read(ref, body)
  local readable, fields = pcall(RecordCodec.decode, body)
  if readable then
    packed[ref] = body
    return Record.new(ref, fields)
  end
  local salvaged, what, failed = RecordCodec.salvage(body)
  if salvaged.made < 1 then
    salvaged.made = number_of(ref)
  end
  local job = Record.new(ref, salvaged)
  Record.unreadable[#Record.unreadable + 1] = { job, what, failed }
  return job
end

-- Return the job of a ref, or nil.
function Record.get(ref)
  local job = loaded[ref]
  if job == nil then
    local body = RecordBytes.take(ref)
    job = body and Record.read(ref, body)
    loaded[ref] = job
    local beaten = job and job.beaten and call('HGET', key('beats'), ref)
    local readable, beat = false, nil
    if beaten then
      readable, beat = pcall(Record.decode_beat, beaten)
    end
    if readable then
      job.heard_at, job.lease_until = beat.heard_at, beat.lease_until
      job.run_until, job.progress_until = beat.run_until, beat.progress_until
      packed[ref] = nil
    end
  end
  return job or nil
end

-- Return true if this script has loaded or moved a record.
function Record.is_loaded(ref)
  return loaded[ref] ~= nil
end

function Record.get_in(queue, id)
  return Record.get(pair(queue, id))
end

-- Mark a record as changed; it is written at the end.
function Record.mark_changed(job)
  loaded[job.ref] = job
  changed[job.ref] = true
  RecordBytes.release(job.ref)
  if job.beaten then
    -- Its fast beats may also have stored where its handler is.
    job.beaten, job.traced = nil, true
    call('HDEL', key('beats'), job.ref)
  end
end

-- Delete a job with all its keys.
function Record.delete(job)
  local ref = job.ref
  loaded[ref], changed[ref], packed[ref] = false, nil, nil
  if job.beaten then
    call('HDEL', key('beats'), ref)
  end
  RecordBytes.release(ref)
  -- Write deferred changes first; otherwise an earlier change would write the record again after this.
  RecordBytes.flush()
  call('UNLINK', key('job', ref), key('load', ref), key('result', ref), key('runs', ref), key('log', ref), key('data', ref))
end

-- The encoded record of a job, for an answer; if it was changed, it is also passed on to be written.
function Record.encoded(job)
  local ref = job.ref
  if changed[ref] or not packed[ref] then
    packed[ref] = RecordCodec.encode(job)
    if changed[ref] then
      changed[ref] = nil
      RecordBytes.write(ref, packed[ref])
    end
  end
  return packed[ref]
end

-- The encoded record of a job with its data, for an answer to a caller that shows or runs the job.
function Record.encoded_with_data(job)
  local body = Record.encoded(job)
  if not job.data_number then
    return body
  end
  job.data = call('GET', key('data', job.ref)) or nil
  body = RecordCodec.encode(job)
  job.data = nil
  return body
end

-- Pass all changed records on to RecordBytes, which writes them.
function Record.flush()
  for ref in pairs(changed) do
    Record.encoded(loaded[ref])
  end
end

-- Return true if a completed job's own lifetime is over: then it counts as gone, even before a sweep deletes it.
function Record.is_over(job)
  return job.state == 'completed' and job.kept_until ~= nil and job.kept_until <= NOW
end

-- Return true if this owner's run with this fence is the job's current one: the guard of every write.
function Record.is_held_by(job, owner, fence)
  return job.state == 'active' and job.fence == fence and job.owner == owner
end

-- Return true if a job that has not started is too old to start.
function Record.is_expired(job)
  return job.expires_at ~= nil and job.expires_at <= NOW
end
