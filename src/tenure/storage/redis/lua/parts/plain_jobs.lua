-- requires: prelude, settings
-- The fast path for plain jobs: it moves many at a time, from the old bytes of a record straight to the new ones, with
-- one command for each index. A job is plain if it has no special feature (`RecordFormat.PLAIN`), and if its queue and
-- task have no settings that a move would have to apply; this part checks the settings. FastEnqueue adds plain jobs,
-- FastPath starts and completes them. All other jobs, and records with anything unexpected, take the general path by
-- `JobIndexes`, `Transitions` and `Enqueue`. Both paths have the same results for a plain job:
-- tests/storage/test_redis_plain.py checks that.
local PlainJobs = {}

local queues, tasks = {}, {}

-- Return true if a queue has no settings that affect its plain jobs.
function PlainJobs.allows_queue(queue)
  if queues[queue] == nil then
    local settings = Settings.get('queue', queue)
    local special = settings.stall or settings.rate or settings.moved
    queues[queue] = not special and not (settings.record and #settings.record > 0)
  end
  return queues[queue]
end

-- Return true if the task of a job, read from its fixed part, is neither paused nor has a rate. `quiet`: no task has
-- settings.
function PlainJobs.allows_task(fixed, quiet)
  if tasks[fixed] == nil then
    local readable, fields = pcall(cmsgpack.unpack, fixed)
    readable = readable and type(fields) == 'table' and type(fields.task) == 'string'
    local settings = readable and not quiet and Settings.get('task', fields.task)
    tasks[fixed] = readable and (quiet or not settings.paused and not settings.rate)
  end
  return tasks[fixed]
end
