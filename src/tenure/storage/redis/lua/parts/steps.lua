-- requires: prelude, job_indexes, time_budget
-- The recorded steps of jobs: what the functions of a durable handler returned, and what met the needs of its waits.
--
-- steps:<ref>  HASH  by the name of the step: numbers as in `FORM`, then the value, error or content. '', which is not a
--                    name: how many steps redrives have forgotten. A job with steps has `stepped`
local Steps = {}

-- Its place among the job's steps; the run that recorded it, or the last run before; when it was recorded; what ended
-- it; whether it has a body; its kind; and how many microseconds its function took, or NO_TIME.
local FORM, NO_TIME = '<I4I4dBBBd', -1
local MET_BY = { failed = 1, completed = 2, timer = 3 }
local KINDS = { step = 1, sleep = 2, signal = 3, wait = 4 }

-- The time to record a step, without the bytes of its body, in microseconds.
Steps.COST = 12

-- Record a step, {name, by, kind, took}, of a job; return true if that wrote anything. The first record of a name stays.
function Steps.add(job, step, body)
  local steps = key('steps', job.ref)
  local number = call('HLEN', steps) + (tonumber(call('HGET', steps, '') or '') or 0) + 1
  local by, kind = MET_BY[step.by], KINDS[step.kind]
  local numbers = struct.pack(FORM, number, job.starts, NOW, by, body and 1 or 0, kind, step.took or NO_TIME)
  local is_new = call('HSETNX', steps, step.name, numbers .. (body or '')) == 1
  if not job.stepped then
    JobIndexes.update(job, { stepped = true })
  end
  TimeBudget.spend(Steps.COST)
  if body then
    TimeBudget.spend_on_bytes(body)
  end
  return is_new
end

-- Return the names of the recorded failures of a job, and of the pauses between their attempts.
-- `forgotten_by_redrive` of core/steps.py has the same rule.
local function forgotten(job)
  local failed, names = {}, {}
  local flat = call('HGETALL', key('steps', job.ref))
  for at = 1, #flat, 2 do
    if flat[at] ~= '' then
      local _, _, _, by, _, kind = struct.unpack(FORM, flat[at + 1])
      if by == MET_BY.failed or by == MET_BY.timer and kind == KINDS.signal then
        failed[flat[at]] = true
      end
      TimeBudget.spend_on_bytes(flat[at + 1])
    end
  end
  for at = 1, #flat, 2 do
    local name = flat[at]
    if name ~= '' and (failed[name] or failed[string.match(name, '^(.*)~[^~]*$') or '']) then
      names[#names + 1] = name
    end
  end
  return names
end

-- Return a wait, in its stored form, in which the time of the needs with this step is long over. It is changed as text:
-- a decoded instant would lose its last digits.
local function with_time_over(wait, name)
  local text, from = '"step":"' .. string.gsub(name, '["\\]', '\\%0') .. '"', 1
  while true do
    local at = string.find(wait, text, from, true)
    if not at then
      return wait
    end
    local before = string.gsub(string.sub(wait, 1, at - 1), '"until":%-?%d+,$', '"until":0,')
    wait, from = before .. string.sub(wait, at), #before + #text
  end
end

-- Forget the recorded failures of a job that is redriven, so that it tries these steps again.
function Steps.forget_failures(job)
  local names = job.stepped and forgotten(job) or {}
  if #names == 0 then
    return
  end
  call('HINCRBY', key('steps', job.ref), '', #names)
  local wait = job.wait
  for from = 1, #names, 1000 do
    call('HDEL', key('steps', job.ref), unpack(names, from, min(from + 999, #names)))
  end
  for _, name in ipairs(wait and names or {}) do
    wait = with_time_over(wait, name)
  end
  -- The wait stays over, but its time counts from the next wait for the same.
  if wait ~= job.wait then
    JobIndexes.update(job, { wait = wait })
  end
end
