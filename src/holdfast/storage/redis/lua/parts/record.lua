-- requires: cell
-- Records: each job as one msgpack map, loaded at most once by a script and written back at its end.
--
-- The map has the fields of JobRecord by their names, those at their defaults left out. What no script looks at is text
-- in `headers`, `policy` and `error`; payload, result, runs and log are keys of their own, so that a beat does not copy
-- them.
local Record = {}

-- Stands for a field that is taken away.
local NONE = {}

local UNSAID = {
  __index = {
    priority = 0,
    boost = 0,
    weight = 1,
    gathered = 0,
    gathered_bytes = 0,
    lease = 20000000,
    max_stalls = 1,
    start_grace = 0,
    renewed = true,
    on_expire = 'fail',
    fence = 0,
    settled_fence = 0,
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

local TERMINAL = { completed = true, failed = true, cancelled = true, expired = true }

local loaded, changed, packed = {}, {}, {}

-- A record of these fields, not yet remembered.
function Record.new(ref, fields)
  fields.ref = ref
  fields.queue, fields.id = parts_of(ref)
  return setmetatable(fields, UNSAID)
end

-- The job of a ref, or nil.
function Record.at(ref)
  local job = loaded[ref]
  if job == nil then
    local body = call('GET', key('job', ref))
    job = body and Record.new(ref, cmsgpack.unpack(body))
    loaded[ref] = job
    packed[ref] = body or nil
  end
  return job or nil
end

function Record.of(queue, id)
  return Record.at(pair(queue, id))
end

-- Remember a record as it is now.
function Record.keep(job)
  loaded[job.ref] = job
  changed[job.ref] = true
end

-- Forget a job with all that is kept of it.
function Record.drop(job)
  local ref = job.ref
  loaded[ref], changed[ref], packed[ref] = false, nil, nil
  call('UNLINK', key('job', ref), key('load', ref), key('result', ref), key('runs', ref), key('log', ref))
end

-- The record of a job as it is stored, to be handed out.
function Record.packed(job)
  local ref = job.ref
  if changed[ref] or not packed[ref] then
    local queue, id = job.queue, job.id
    job.ref, job.queue, job.id = nil, nil, nil
    packed[ref] = cmsgpack.pack(job)
    job.ref, job.queue, job.id = ref, queue, id
    if changed[ref] then
      call('SET', key('job', ref), packed[ref])
      changed[ref] = nil
    end
  end
  return packed[ref]
end

-- Write back all that was changed. Every script that changes anything ends with it.
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
