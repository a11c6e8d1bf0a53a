-- requires: prelude, time_budget
-- The tasks that a claiming worker knows, and the jobs that are parked until a worker knows their task and version.
--
-- unknown:<queue>  ZSET  the names under which such jobs are parked, all at 0: `unknown:<task>:<version>`
local KnownTasks = {}

-- The approximate cost of reading a name, and of reading the first job under it, in microseconds.
local NAME_COST, FIRST_JOB_COST = 1, 3

local known

-- The tasks that the caller knows, each with the newest version of its payload; false if it knows all.
local function tasks()
  if known == nil then
    known = REQUEST.tasks and cmsgpack.unpack(ARGV[REQUEST.tasks]) or false
  end
  return known
end

local function knows(task, version)
  local all = tasks()
  return not all or (all[task] or 0) >= version
end

-- The version of a job's payload. Scripts read nothing else of a policy.
local function version_of(job)
  return tonumber(job.policy and string.match(job.policy, '"version":(%d+)')) or 1
end

-- The name under which a job is parked until a worker knows it.
function KnownTasks.place_of(job)
  return UNKNOWN .. job.task .. ':' .. whole(version_of(job))
end

-- Return true if the caller may have a job. Only jobs that have started before are checked.
function KnownTasks.may_start(job)
  return job.starts == 0 or not tasks() or knows(job.task, version_of(job))
end

local function is_known(name)
  local task, version = string.match(name, '^(.*):(%d+)$', #UNKNOWN + 1)
  return knows(task, tonumber(version))
end

-- All names of tasks and versions that the caller knows, or false if there are more than `most`.
local function all_known(most)
  local names = {}
  for task, newest in pairs(tasks() or {}) do
    for version = 1, newest do
      if #names == most then
        return false
      end
      names[#names + 1] = UNKNOWN .. task .. ':' .. whole(version)
    end
  end
  return tasks() and names
end

-- Return names in a queue's index that the caller may know, at most `most`, and true if there may be more. If the index
-- has more than `most` names, look up the caller's own names; if those are more than `most`, too, take random ones of
-- the index.
local function candidates(queue, most)
  local index = key('unknown', queue)
  local there = call('ZCARD', index)
  if there <= most then
    return first_of(index, there), false
  end
  local names = all_known(most)
  if not names then
    return call('ZRANDMEMBER', index, most), true
  end
  local found = {}
  for at, score in ipairs(#names > 0 and call('ZMSCORE', index, unpack(names)) or {}) do
    found[#found + 1] = score and names[at] or nil
  end
  return found, false
end

-- Return the names under which jobs of a queue are parked whose task and version the caller knows; it examines at most
-- `most` names. `more` of the answer: there may be others.
function KnownTasks.places(queue, most)
  local names, more = candidates(queue, most)
  local found = { more = more }
  for _, name in ipairs(names) do
    if is_known(name) then
      found[#found + 1] = name
    end
  end
  TimeBudget.spend(NAME_COST * #names + FIRST_JOB_COST * #found)
  return found
end

-- The first job under each of the names of a queue, as read last: {score, id}, or false without a job.
local heads = {}

local function first_under(queue, name)
  local of_queue = heads[queue] or {}
  heads[queue] = of_queue
  if of_queue[name] == nil then
    local score, id = head_of(key('parked', pair(queue, name)))
    of_queue[name] = score and { score, id } or false
  end
  return of_queue[name]
end

-- The best of a queue's ready jobs and of those parked under some names: its id, and the name it is parked under or
-- nil; nil without a job. The caller must unpark the job.
function KnownTasks.first(queue, names)
  local score, id = head_of(key('ready', queue))
  local under
  for _, name in ipairs(names) do
    local head = first_under(queue, name)
    if head and (not score or head[1] < score or (head[1] == score and head[2] < id)) then
      score, id, under = head[1], head[2], name
    end
  end
  if under then
    heads[queue][under] = nil
  end
  return id, under
end

-- Return true if jobs may be left under some names of a queue.
function KnownTasks.has_jobs(queue, names)
  for _, name in ipairs(names) do
    if first_under(queue, name) then
      return true
    end
  end
  return names.more
end
