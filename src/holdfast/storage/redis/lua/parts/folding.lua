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

-- The fields of a record.
function Folding.unfold(body)
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
  local job = cmsgpack.unpack(string.sub(body, at, at + fixed - 1))
  job.fixed = string.sub(body, at, at + fixed - 1)
  at = at + fixed
  job.load, job.load_apart = load, has(Form.APART) or nil
  if not job.load_apart then
    job.payload = string.sub(body, at, at + load - 1)
    at = at + load
  end
  if rare > 0 then
    for field, value in pairs(cmsgpack.unpack(string.sub(body, at, at + rare - 1))) do
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
      job.owner = owner_of(job.holder)
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
