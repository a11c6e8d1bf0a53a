-- requires: cell, settings
-- The fast path for plain jobs: it moves many at a time, from the old bytes of a record straight to the new ones, with
-- one command for each index. A job is plain if it has no special feature (`Form.PLAIN`), and if its queue and task
-- have no settings that a move would have to apply; this part checks the settings. Arrival adds plain jobs, Passage
-- starts and completes them. All other jobs, and records with anything unexpected, take the general path by
-- `Shelf`, `Flow` and `Intake`. Both paths have the same results for a plain job: tests/storage/test_redis_plain.py
-- checks that.
local Plain = {}

local queues, tasks = {}, {}

-- Return true if a queue has no settings that affect its plain jobs.
function Plain.in_queue(queue)
  if queues[queue] == nil then
    local told = Settings.of('queue', queue)
    queues[queue] = not told.stall and not told.rate and not (told.record and #told.record > 0)
  end
  return queues[queue]
end

-- Return true if the task of a job, read from its fixed part, is neither paused nor has a rate. `quiet`: no task has
-- settings.
function Plain.goes_on(fixed, quiet)
  if tasks[fixed] == nil then
    local readable, fields = pcall(cmsgpack.unpack, fixed)
    readable = readable and type(fields) == 'table' and type(fields.task) == 'string'
    local told = readable and not quiet and Settings.of('task', fields.task)
    tasks[fixed] = readable and (quiet or not told.paused and not told.rate)
  end
  return tasks[fixed]
end
