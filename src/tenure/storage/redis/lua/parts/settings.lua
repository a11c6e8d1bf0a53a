-- requires: prelude
-- The settings of queues, tasks and workers, each a msgpack map of the fields of Settings.
local Settings = {}

local NOTHING = {}

local known = { queue = {}, task = {}, worker = {} }

-- The settings of a target; an empty table if it has none.
function Settings.get(kind, name)
  local settings = known[kind][name]
  if not settings then
    local body = call('HGET', key('settings'), pair(kind, name))
    settings = body and cmsgpack.unpack(body) or NOTHING
    known[kind][name] = settings
  end
  return settings
end

-- Read the settings of many targets of a kind with few commands; return the numbers of the targets that have settings.
function Settings.fetch(kind, names)
  local numbers = {}
  if #names > 1 and call('EXISTS', key('settings')) == 0 then
    for _, name in ipairs(names) do
      known[kind][name] = NOTHING
    end
    return numbers
  end
  for from = 1, #names, 1000 do
    local fields = {}
    for number = from, min(from + 999, #names) do
      fields[#fields + 1] = pair(kind, names[number])
    end
    for at, body in ipairs(call('HMGET', key('settings'), unpack(fields))) do
      local number = from + at - 1
      known[kind][names[number]] = body and cmsgpack.unpack(body) or NOTHING
      numbers[#numbers + 1] = body and number or nil
    end
  end
  return numbers
end

function Settings.put(kind, name, settings)
  known[kind][name] = settings
  call('HSET', key('settings'), pair(kind, name), cmsgpack.pack(settings))
end

-- Delete the settings of a worker that has left; owner ids are never reused.
function Settings.delete_worker(owner)
  known.worker[owner] = nil
  call('HDEL', key('settings'), pair('worker', owner))
end

-- Return true if a queue records an event that is recorded on request only.
function Settings.records(queue, event)
  for _, wanted in ipairs(Settings.get('queue', queue).record or {}) do
    if wanted == event then
      return true
    end
  end
  return false
end

-- The address of the storage that the jobs of a queue are moved to, or nil.
function Settings.moved_to(queue)
  local moved = Settings.get('queue', queue).moved
  return moved and (moved.to or '') ~= '' and moved.to or nil
end

-- Return true if a queue gives out no jobs.
function Settings.queue_paused(queue)
  return Settings.get('queue', queue).paused == true or Settings.moved_to(queue) ~= nil
end

-- The answer to a call that brings jobs to a queue whose jobs are moved to another storage.
function Settings.refusal(queue)
  return { '\0moved', queue, Settings.moved_to(queue) }
end

function Settings.task_paused(task)
  return Settings.get('task', task).paused == true
end
