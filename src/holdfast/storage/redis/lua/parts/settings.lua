-- requires: cell
-- Settings: what queues, tasks and workers are told, each a msgpack map of Settings' fields.
local Settings = {}

local known = {}

-- What a target is told: an empty table if nothing.
function Settings.of(kind, name)
  local target = pair(kind, name)
  if known[target] == nil then
    local body = call('HGET', key('settings'), target)
    known[target] = body and cmsgpack.unpack(body) or {}
  end
  return known[target]
end

function Settings.put(kind, name, settings)
  local target = pair(kind, name)
  known[target] = settings
  call('HSET', key('settings'), target, cmsgpack.pack(settings))
end

-- Forget what a worker was told who is gone: nobody has his id again.
function Settings.forget_worker(owner)
  known[pair('worker', owner)] = nil
  call('HDEL', key('settings'), pair('worker', owner))
end

-- Whether a queue records an event that is recorded on request.
function Settings.records(queue, event)
  for _, asked in ipairs(Settings.of('queue', queue).record or {}) do
    if asked == event then
      return true
    end
  end
  return false
end

function Settings.queue_paused(queue)
  return Settings.of('queue', queue).paused == true
end

function Settings.task_paused(task)
  return Settings.of('task', task).paused == true
end
