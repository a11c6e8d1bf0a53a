-- requires: cell, form
-- Records from their bytes, and to their bytes (parts/form.lua).
local Folding = {}

local STATES = { 'delayed', 'waiting', 'active', 'completed', 'failed', 'cancelled', 'expired' }
local NUMBER_OF = {}
for number, state in ipairs(STATES) do
  NUMBER_OF[state] = number
end

-- Which fields lie at fixed places, and which among what is fixed; all others are rare.
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
Folding.FIXED = {
  task = true,
  headers = true,
  tags = true,
  priority = true,
  boost = true,
  lifo = true,
  fair_key = true,
  weight = true,
  ttl = true,
  deadline = true,
  heartbeat_timeout = true,
  keys = true,
  rates = true,
  merge = true,
  max_stalls = true,
  start_grace = true,
  renewed = true,
  pinned = true,
  on_expire = true,
  policy = true,
  schedule = true,
  tick = true,
  parent = true,
}

local function number_or_nil(number)
  return number ~= -1 and number or nil
end

local owners = {}

-- The id of whoever is meant by a holder.
local function owner_of(holder)
  local owner = owners[holder]
  if not owner then
    owner = cmsgpack.unpack(holder)[1]
    owners[holder] = owner
  end
  return owner
end

-- The fields that a part of a record packs. `bad`: where to note that they cannot be read; else that is an error.
local function packed_fields(part, body, bad)
  local readable, fields = pcall(cmsgpack.unpack, body)
  if readable and type(fields) == 'table' then
    return fields
  elseif not bad then
    error('not a record')
  end
  bad[#bad + 1] = part .. ': not msgpack'
  return {}
end

-- The fields of a record. `bad`: where to note which of its parts cannot be read; else that is an error.
function Folding.unfold(body, bad)
  local form, state, marks, fixed, load, rare, made, score, run_at, created, lease, timeout, at =
    struct.unpack(Form.HEAD, body)
  if form ~= Form.NUMBER then
    error('not a record')
  end
  local function has(mark)
    return bit.band(marks, mark) ~= 0
  end
  local starts, failures, stalls, releases, holder, ended = 0, 0, 0, 0, 0, 0
  local fence, settled, run_fence = 0, 0, 0
  local heard, ends, limit, started, finished, run_end, kept = -1, -1, -1, -1, -1, -1, -1
  if has(Form.RAN) then
    -- As the run has them, one after the other.
    starts, failures, stalls, releases, holder, ended, fence, settled, run_fence, heard, ends, limit, started,
      finished, run_end, kept, at = struct.unpack(Form.RUN, body, at)
  end
  local job = packed_fields('fixed', string.sub(body, at, at + fixed - 1), bad)
  job.fixed = string.sub(body, at, at + fixed - 1)
  at = at + fixed
  job.load, job.load_apart = load, has(Form.APART) or nil
  if not job.load_apart then
    job.payload = string.sub(body, at, at + load - 1)
    at = at + load
  end
  if rare > 0 then
    for field, value in pairs(packed_fields('rare', string.sub(body, at, at + rare - 1), bad)) do
      job[field] = value
    end
    at = at + rare
  end
  job.state = STATES[state]
  job.made, job.score, job.run_at, job.created, job.lease = made, score, run_at, created, lease
  job.timeout = number_or_nil(timeout)
  job.back, job.beaten, job.traced = has(Form.BACK) or nil, has(Form.BEATEN) or nil, has(Form.TRACED) or nil
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
  if has(Form.RESULT) then
    job.result = string.sub(body, at)
  end
  job.result_apart = has(Form.RESULT_APART) or nil
  job.starts, job.failures, job.stalls, job.releases = starts, failures, stalls, releases
  job.fence, job.settled_fence, job.run_fence = fence, settled, run_fence
  job.heard_at, job.lease_until, job.run_until = number_or_nil(heard), number_or_nil(ends), number_or_nil(limit)
  job.started, job.finished = number_or_nil(started), number_or_nil(finished)
  job.run_end, job.kept_until = number_or_nil(run_end), number_or_nil(kept)
  return job
end

-- Whether what is fixed of a job is out of the ordinary.
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

-- The bytes of a record: of these fields, and of what is fixed among them unless it is told.
function Folding.fold(job)
  local fixed, rare, has_rare = job.fixed, {}, false
  local fields = not fixed and {}
  for field, value in pairs(job) do
    if Folding.FIXED[field] then
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
  local marks = (has_rare or is_special(job)) and 0 or Form.PLAIN
  marks = marks + (ran and Form.RAN or 0) + (job.beaten and Form.BEATEN or 0) + (job.back and Form.BACK or 0)
  marks = marks + (job.traced and Form.TRACED or 0) + (job.result and Form.RESULT or 0)
  marks = marks + (job.load_apart and Form.APART or 0) + (job.result_apart and Form.RESULT_APART or 0)
  local head = struct.pack(
    Form.HEAD,
    Form.NUMBER,
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
    Form.RUN,
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

-- A run that is over, as the list of those before the last has it.
function Folding.fold_run(job)
  local run = struct.pack('<I4dddI4', job.starts, job.run_fence, job.started, job.run_end or -1, #job.holder)
  return run .. job.holder .. (job.ended or '')
end

-- What a field must be: a text, a number up to which it may be either way, a truth, or a list of rows of such.
local LARGE, FAR, TEXT, TRUTH = 2 ^ 53, 2 ^ 62, 'string', 'boolean'
local KIND = {
  score = FAR,
  priority = FAR,
  boost = FAR,
  made = LARGE,
  run_at = LARGE,
  created = LARGE,
  lease = LARGE,
  timeout = LARGE,
  load = LARGE,
  starts = LARGE,
  failures = LARGE,
  stalls = LARGE,
  releases = LARGE,
  fence = LARGE,
  settled_fence = LARGE,
  run_fence = LARGE,
  heard_at = LARGE,
  lease_until = LARGE,
  run_until = LARGE,
  started = LARGE,
  finished = LARGE,
  run_end = LARGE,
  kept_until = LARGE,
  weight = LARGE,
  ttl = LARGE,
  deadline = LARGE,
  heartbeat_timeout = LARGE,
  max_stalls = LARGE,
  start_grace = LARGE,
  tick = LARGE,
  expires_at = LARGE,
  gathered = LARGE,
  gathered_bytes = LARGE,
  suspect_until = LARGE,
  progress_until = LARGE,
  cancel_at = LARGE,
  redrive_at = LARGE,
  redrives = LARGE,
  progress = LARGE,
  state = TEXT,
  task = TEXT,
  headers = TEXT,
  fair_key = TEXT,
  on_expire = TEXT,
  policy = TEXT,
  schedule = TEXT,
  parent = TEXT,
  parked_under = TEXT,
  owner = TEXT,
  cancel_reason = TEXT,
  cancel_by = TEXT,
  error = TEXT,
  reason = TEXT,
  progress_note = TEXT,
  holder = TEXT,
  lifo = TRUTH,
  renewed = TRUTH,
  quarantined = TRUTH,
  tags = { TEXT },
  pinned = { TEXT },
  keys = { { TEXT, 'number' } },
  rates = { { TEXT, 'number', 'number' } },
}

local function is_list_of(value, kind)
  if type(value) ~= 'table' then
    return false
  end
  for _, one in pairs(value) do
    if type(kind) == 'string' then
      if type(one) ~= kind then
        return false
      end
    else
      for at, of in ipairs(kind) do
        if type(one) ~= 'table' or type(one[at]) ~= of then
          return false
        end
      end
    end
  end
  return true
end

local function is_sound(field, value)
  local kind = KIND[field]
  if type(kind) == 'number' then
    return type(value) == 'number' and value == value and value > -kind and value < kind
  elseif type(kind) == 'table' then
    return is_list_of(value, kind[1])
  elseif field == 'merge' then
    return type(value) == 'table' and type(value.type) == 'string' and type(value.key) == 'string'
  end
  return kind == nil or type(value) == kind
end

-- Whether a state has all that it must have.
local function is_complete(job)
  if job.state == 'active' then
    return job.owner and job.holder and job.heard_at and job.lease_until and job.started
  end
  return job.state and (not TERMINAL[job.state] or job.finished)
end

local known_fixed = {}

-- Whether all fields of a record are what they must be.
function Folding.is_sound(job)
  local fixed_is_sound = known_fixed[job.fixed]
  for field, value in pairs(job) do
    if not (fixed_is_sound and Folding.FIXED[field]) and not is_sound(field, value) then
      return false
    end
  end
  known_fixed[job.fixed] = true
  return type(job.task) == 'string' and (job.weight or 1) > 0 and job.lease >= 0 and is_complete(job)
end

local NEUTRAL = { 'made', 'score', 'run_at', 'created', 'load', 'starts', 'failures', 'stalls', 'releases', 'fence' }

-- What can be read of a record that is not sound, with neutral values for the rest and an error that says so; which fields
-- those are, and whether the job has become a failed one by that.
function Folding.salvage(body)
  local bad = {}
  local readable, job = pcall(Folding.unfold, body, bad)
  if not readable then
    job, bad = {}, { 'record: not a record' }
  end
  local flawed = {}
  for field, value in pairs(job) do
    if not is_sound(field, value) or (field == 'weight' and value <= 0) or (field == 'lease' and value < 0) then
      flawed[#flawed + 1] = field
    end
  end
  table.sort(flawed)
  for _, field in ipairs(flawed) do
    bad[#bad + 1] = field .. ': not valid'
    job[field] = nil
  end
  for _, field in ipairs(NEUTRAL) do
    job[field] = job[field] or 0
  end
  job.settled_fence, job.run_fence = job.settled_fence or 0, job.run_fence or 0
  job.lease, job.task, job.fixed = job.lease or 20000000, job.task or '', nil
  job.keys, job.rates, job.tags, job.pinned = job.keys or {}, job.rates or {}, job.tags or {}, job.pinned or {}
  job.start_grace = job.start_grace or 0
  if not job.load_apart then
    job.payload = job.payload or ''
    job.load = #job.payload
  end
  job.holder = job.holder and pcall(owner_of, job.holder) and job.holder or nil
  local failed = not is_complete(job)
  if failed then
    bad[#bad + 1] = #bad == 0 and 'state: incomplete' or nil
    job.state, job.reason, job.finished = 'failed', 'undecodable', NOW
    job.owner, job.suspect_until, job.parked_under, job.redrive_at = nil, nil, nil, nil
  end
  local what = table.concat(bad, '; ')
  if job.state ~= 'completed' then
    job.error = cjson.encode({
      type = 'UnreadableRecordError',
      message = 'the record of this job cannot be read: ' .. what,
    })
  end
  return job, what, failed
end
