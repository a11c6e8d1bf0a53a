-- requires: cell
-- What the caller of a claim knows, and the jobs that are parked until a worker knows their task and version.
--
-- unknown:<queue>  ZSET  what jobs are parked under so, all at 0: `unknown:<task>:<version>`
local Known = {}

local known

-- The tasks that the caller knows, each with the newest version of its payload; false if it knows all.
local function tasks()
  if known == nil then
    known = ASKED.tasks and cmsgpack.unpack(ARGV[ASKED.tasks]) or false
  end
  return known
end

local function knows(task, version)
  local all = tasks()
  return not all or (all[task] or 0) >= version
end

-- The version of a job's payload. No script reads the rest of a policy.
local function version_of(job)
  return tonumber(job.policy and string.match(job.policy, '"version":(%d+)')) or 1
end

-- What a job is parked under until a worker knows it.
function Known.place_of(job)
  return UNKNOWN .. job.task .. ':' .. whole(version_of(job))
end

-- Whether a job may be given to the caller. Only a job that has started before is held against what the caller knows.
function Known.may_have(job)
  return job.starts == 0 or not tasks() or knows(job.task, version_of(job))
end

local function is_known(name)
  local task, version = string.match(name, '^(.*):(%d+)$', #UNKNOWN + 1)
  return knows(task, tonumber(version))
end

-- What jobs of a queue are parked under whose task and version the caller knows. Where there are very many places, each of
-- the caller's tasks is looked up by itself.
function Known.places(queue)
  local index, found = key('unknown', queue), {}
  local function note(names)
    for _, name in ipairs(names) do
      if is_known(name) then
        found[#found + 1] = name
      end
    end
  end
  local names = first_of(index, LOOK_LIMIT)
  if #names < LOOK_LIMIT or not tasks() then
    note(names)
    return found
  end
  for task in pairs(tasks()) do
    local beginning = UNKNOWN .. task
    note(call('ZRANGEBYLEX', index, '[' .. beginning .. ':', '(' .. beginning .. ';', 'LIMIT', 0, LOOK_LIMIT))
  end
  return found
end

-- The first of the jobs that stand in a queue's line or are parked under some names: its id, and the name it is parked under
-- or nil; nil if there is no job.
function Known.first(queue, names)
  local score, id = head_of(key('ready', queue))
  local under
  for _, name in ipairs(names) do
    local at, first = head_of(key('parked', pair(queue, name)))
    if at and (not score or at < score or (at == score and first < id)) then
      score, id, under = at, first, name
    end
  end
  return id, under
end
