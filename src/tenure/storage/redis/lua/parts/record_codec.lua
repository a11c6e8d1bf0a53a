-- requires: prelude, record_format
-- Decodes and encodes records (parts/record_format.lua).
local RecordCodec = {}

local STATES = { 'delayed', 'waiting', 'active', 'completed', 'failed', 'cancelled', 'expired' }
local NUMBER_OF = {}
for number, state in ipairs(STATES) do
  NUMBER_OF[state] = number
end

-- The fields that are neither fixed nor rare.
local PLACED = {
  ref = true,
  queue = true,
  id = true,
  state = true,
  made = true,
  score = true,
  run_at = true,
  created = true,
  lease = true,
  timeout = true,
  load = true,
  load_apart = true,
  beaten = true,
  back = true,
  traced = true,
  starts = true,
  failures = true,
  stalls = true,
  releases = true,
  fence = true,
  settled_fence = true,
  heard_at = true,
  lease_until = true,
  run_until = true,
  started = true,
  finished = true,
  run_end = true,
  run_fence = true,
  kept_until = true,
  owner = true,
  holder = true,
  ended = true,
  payload = true,
  result = true,
  result_apart = true,
  fixed = true,
}

-- The fixed fields, and the kind of value that each must have: see is_sound.
RecordCodec.FIXED = {
  task = 'string',
  headers = 'string',
  tags = 'names',
  priority = 'number',
  boost = 'number',
  lifo = 'boolean',
  fair_key = 'string',
  weight = 'number',
  ttl = 'number',
  deadline = 'number',
  heartbeat_timeout = 'number',
  keys = 'keys',
  rates = 'rates',
  merge = 'merge',
  max_stalls = 'number',
  start_grace = 'number',
  renewed = 'boolean',
  pinned = 'names',
  on_expire = 'string',
  policy = 'string',
  schedule = 'string',
  tick = 'number',
  parent = 'string',
}

-- The same for the rare fields; made on demand, because few scripts need it.
local rare_kinds

local function rare_kinds_made()
  return {
    expires_at = 'number',
    collected = 'number',
    collected_bytes = 'number',
    parked_under = 'string',
    owner = 'string',
    suspect_until = 'number',
    progress_until = 'number',
    quarantined = 'boolean',
    put_back_used = 'boolean',
    cancel_at = 'number',
    cancel_reason = 'string',
    cancel_by = 'string',
    redrive_at = 'number',
    redrives = 'number',
    error = 'string',
    reason = 'string',
    fault = 'string',
    progress = 'progress',
    progress_note = 'string',
    data_number = 'number',
    logged = 'boolean',
  }
end

local function number_or_nil(number)
  return number ~= -1 and number or nil
end

local owners = {}

-- The owner id in an encoded holder.
local function owner_of(holder)
  local owner = owners[holder]
  if not owner then
    owner = cmsgpack.unpack(holder)[1]
    owners[holder] = owner
  end
  return owner
end

-- The absolute values of instants, counters and scores are below this.
local LIMIT = 2 ^ 62

-- The type of the error of a job whose record cannot be read, as core/job.py has it.
local UNREADABLE = 'UnreadableRecordError'

local function in_range(number)
  return number > -LIMIT and number < LIMIT
end

-- Return true if a value is a list of rows whose first values have these types.
local function is_list(value, first, second, third)
  if type(value) ~= 'table' then
    return false
  end
  for _, row in pairs(value) do
    if type(row) ~= 'table' or type(row[1]) ~= first or type(row[2]) ~= second or type(row[3]) ~= third then
      return false
    end
  end
  return true
end

-- Return true if a value is valid for a field of this kind. Fields that a newer version has added may have any value.
local function is_sound(kind, value)
  if kind == 'number' then
    return type(value) == 'number' and in_range(value)
  elseif kind == 'names' then
    if type(value) ~= 'table' then
      return false
    end
    for _, name in pairs(value) do
      if type(name) ~= 'string' then
        return false
      end
    end
    return true
  elseif kind == 'keys' then
    return is_list(value, 'string', 'number', 'nil')
  elseif kind == 'rates' then
    return is_list(value, 'string', 'number', 'number')
  elseif kind == 'merge' then
    return type(value) == 'table' and type(value.type) == 'string' and type(value.key) == 'string'
  elseif kind == 'progress' then
    return type(value) == 'number' or type(value) == 'string'
  end
  return kind == nil or type(value) == kind
end

local checked = {}

-- Decode the msgpack fields of a part of a record. `bad`: a list to which invalid fields are appended; without it, they
-- raise an error.
local function packed_fields(part, body, kinds, bad)
  local readable, fields = true, nil
  if bad then
    readable, fields = pcall(cmsgpack.unpack, body)
  else
    fields = cmsgpack.unpack(body)
  end
  if not readable or type(fields) ~= 'table' then
    if not bad then
      error('not a record')
    end
    bad[#bad + 1] = part .. ': not msgpack'
    return {}
  end
  -- Many jobs have the same fixed part.
  if checked[body] then
    return fields
  end
  for field, value in pairs(fields) do
    local kind = kinds[field]
    -- Most fields are strings, so the type comparison is enough for them.
    if
      (kind ~= type(value) or kind == 'number') and (not is_sound(kind, value) or field == 'weight' and value <= 0)
    then
      if not bad then
        error('not a record')
      end
      bad[#bad + 1] = tostring(field) .. ': not valid'
      fields[field] = nil
    end
  end
  checked[body] = not bad or nil
  return fields
end

-- Return true if a job has all fields that its state requires.
local function is_complete(job)
  if job.state == 'active' then
    return type(job.owner) == 'string' and job.holder and job.heard_at and job.lease_until and job.started
  end
  return job.state and (not TERMINAL[job.state] or job.finished)
end

-- Decode a record. `bad`: a list to which invalid fields are appended, which are left out; without it, they raise an
-- error.
function RecordCodec.decode(body, bad)
  local form, state, marks, fixed, load, rare, made, score, run_at, created, lease, timeout, at =
    struct.unpack(RecordFormat.HEAD, body)
  if form ~= RecordFormat.NUMBER then
    error('not a record')
  end
  local function has(mark)
    return bit.band(marks, mark) ~= 0
  end
  local starts, failures, stalls, releases, holder, ended = 0, 0, 0, 0, 0, 0
  local fence, settled, run_fence = 0, 0, 0
  local heard, ends, limit, started, finished, run_end, kept = -1, -1, -1, -1, -1, -1, -1
  if has(RecordFormat.RAN) then
    -- In the order of RecordFormat.RUN.
    starts, failures, stalls, releases, holder, ended, fence, settled, run_fence, heard, ends, limit, started,
      finished, run_end, kept, at = struct.unpack(RecordFormat.RUN, body, at)
  end
  local packed = string.sub(body, at, at + fixed - 1)
  local job = packed_fields('fixed', packed, RecordCodec.FIXED, bad)
  job.fixed = packed
  at = at + fixed
  job.load, job.load_apart = load, has(RecordFormat.PAYLOAD_APART) or nil
  if not job.load_apart then
    job.payload = string.sub(body, at, at + load - 1)
    at = at + load
  end
  if rare > 0 then
    rare_kinds = rare_kinds or rare_kinds_made()
    for field, value in pairs(packed_fields('rare', string.sub(body, at, at + rare - 1), rare_kinds, bad)) do
      job[field] = value
    end
    at = at + rare
  end
  job.state = STATES[state]
  job.made, job.score, job.run_at, job.created, job.lease = made, score, run_at, created, lease
  job.timeout = number_or_nil(timeout)
  job.back, job.beaten = has(RecordFormat.BACK) or nil, has(RecordFormat.BEATEN) or nil
  job.traced = has(RecordFormat.TRACED) or nil
  if holder > 0 then
    job.holder = string.sub(body, at, at + holder - 1)
    at = at + holder
    if job.state == 'active' and not job.owner then
      local known, owner = pcall(owner_of, job.holder)
      job.owner = known and owner or nil
    end
  end
  if ended > 0 then
    job.ended = string.sub(body, at, at + ended - 1)
    at = at + ended
  end
  if has(RecordFormat.RESULT) then
    job.result = string.sub(body, at)
  end
  job.result_apart = has(RecordFormat.RESULT_APART) or nil
  job.starts, job.failures, job.stalls, job.releases = starts, failures, stalls, releases
  job.fence, job.settled_fence, job.run_fence = fence, settled, run_fence
  job.heard_at, job.lease_until, job.run_until = number_or_nil(heard), number_or_nil(ends), number_or_nil(limit)
  job.started, job.finished = number_or_nil(started), number_or_nil(finished)
  job.run_end, job.kept_until = number_or_nil(run_end), number_or_nil(kept)
  -- If any number is NaN, so is the sum.
  local squares = made * made + score * score + run_at * run_at + created * created + lease * lease + timeout * timeout
    + fence * fence + settled * settled + run_fence * run_fence + heard * heard + ends * ends + limit * limit
    + started * started + finished * finished + run_end * run_end + kept * kept
  if not bad and not (squares < LIMIT * LIMIT and lease >= 0 and type(job.task) == 'string' and is_complete(job)) then
    error('not a record')
  end
  return job
end

-- Return true if a job's fixed fields make it not plain.
local function is_special(job)
  return job.merge
    or job.schedule
    or job.fair_key
    or job.lifo
    or job.deadline
    or job.heartbeat_timeout
    or job.start_grace > 0
    or #job.keys > 0
    or #job.rates > 0
end

-- Encode a record. `job.fixed`: its encoded fixed part, if it has not changed.
function RecordCodec.encode(job)
  local fixed, rare, has_rare = job.fixed, {}, false
  local fields = not fixed and {}
  for field, value in pairs(job) do
    if RecordCodec.FIXED[field] then
      if fields then
        fields[field] = value
      end
    elseif not PLACED[field] then
      rare[field], has_rare = value, true
    end
  end
  if job.owner and not (job.holder and owner_of(job.holder) == job.owner) then
    rare.owner, has_rare = job.owner, true
  end
  fixed = fixed or cmsgpack.pack(fields)
  rare = has_rare and cmsgpack.pack(rare) or ''
  local ran = job.starts > 0 or job.fence > 0 or job.finished
  local marks = (has_rare or is_special(job)) and 0 or RecordFormat.PLAIN
  marks = marks + (ran and RecordFormat.RAN or 0)
  marks = marks + (job.beaten and RecordFormat.BEATEN or 0) + (job.back and RecordFormat.BACK or 0)
  marks = marks + (job.traced and RecordFormat.TRACED or 0) + (job.result and RecordFormat.RESULT or 0)
  marks = marks + (job.load_apart and RecordFormat.PAYLOAD_APART or 0)
  marks = marks + (job.result_apart and RecordFormat.RESULT_APART or 0)
  local head = struct.pack(
    RecordFormat.HEAD,
    RecordFormat.NUMBER,
    NUMBER_OF[job.state],
    marks,
    #fixed,
    job.load,
    #rare,
    job.made,
    job.score,
    job.run_at,
    job.created,
    job.lease,
    job.timeout or -1
  )
  if not ran then
    return head .. fixed .. (job.payload or '') .. rare
  end
  local holder, ended = job.holder or '', job.ended or ''
  local run = struct.pack(
    RecordFormat.RUN,
    job.starts,
    job.failures,
    job.stalls,
    job.releases,
    #holder,
    #ended,
    job.fence,
    job.settled_fence,
    job.run_fence or 0,
    job.heard_at or -1,
    job.lease_until or -1,
    job.run_until or -1,
    job.started or -1,
    job.finished or -1,
    job.run_end or -1,
    job.kept_until or -1
  )
  return head .. run .. fixed .. (job.payload or '') .. rare .. holder .. ended .. (job.result or '')
end

-- Encode a run that is over, for the list of earlier runs.
function RecordCodec.encode_run(job)
  local holder = job.holder or ''
  local run = struct.pack('<I4dddI4', job.starts, job.run_fence, job.started or -1, job.run_end or -1, #holder)
  return run .. holder .. (job.ended or '')
end


-- The numbers at fixed places, each with its neutral value if it needs one; few scripts need them.
local function placed_numbers()
  return {
    { 'made', 0 },
    { 'score', 0 },
    { 'run_at', 0 },
    { 'created', 0 },
    { 'lease', 20000000 },
    { 'timeout' },
    { 'starts', 0 },
    { 'failures', 0 },
    { 'stalls', 0 },
    { 'releases', 0 },
    { 'fence', 0 },
    { 'settled_fence', 0 },
    { 'run_fence', 0 },
    { 'heard_at' },
    { 'lease_until' },
    { 'run_until' },
    { 'started' },
    { 'finished' },
    { 'run_end' },
    { 'kept_until' },
  }
end

-- Return the readable fields of a record that `unfold` refuses, with neutral values for the rest and an error that says
-- so; a text that lists the unreadable parts; and true if the job is failed because of that.
function RecordCodec.salvage(body)
  local bad = {}
  local readable, job = pcall(RecordCodec.decode, body, bad)
  if not readable then
    job, bad = {}, { 'record: not a record' }
  end
  for _, placed in ipairs(placed_numbers()) do
    local field, neutral = placed[1], placed[2]
    local number = job[field]
    if number and (not in_range(number) or field == 'lease' and number < 0) then
      bad[#bad + 1] = field .. ': not valid'
      number = nil
    end
    job[field] = number or neutral
  end
  table.sort(bad)
  job.fixed = nil
  job.task, job.load, job.start_grace = job.task or '', job.load or 0, job.start_grace or 0
  job.keys, job.rates, job.tags, job.pinned = job.keys or {}, job.rates or {}, job.tags or {}, job.pinned or {}
  if not job.load_apart then
    job.payload = job.payload or ''
    job.load = #job.payload
  end
  job.holder = job.holder and pcall(owner_of, job.holder) and job.holder or nil
  local failed = not is_complete(job)
  if #bad == 0 then
    bad[1] = 'record: incomplete'
  end
  if failed then
    job.state, job.reason, job.finished = 'failed', 'undecodable', NOW
    job.owner, job.suspect_until, job.parked_under, job.redrive_at = nil, nil, nil, nil
  end
  local what = table.concat(bad, '; ')
  if job.state ~= 'completed' then
    job.error = cjson.encode({
      type = UNREADABLE,
      message = 'the record of this job cannot be read: ' .. what,
    })
  end
  return job, what, failed
end

-- Return true if a job's error says that its record was unreadable before.
function RecordCodec.is_unreadable(job)
  return job.error ~= nil and string.find(job.error, '"type":"' .. UNREADABLE .. '"', 1, true) ~= nil
end
