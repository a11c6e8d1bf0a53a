-- requires: cell, settings
-- Plain jobs, moved many at a time: straight from the bytes of a record to its next, and by as few commands as there are
-- indexes. A job is plain while nothing about it is out of the ordinary (`Form.PLAIN`) and nobody has said anything of its
-- queue or its task that a move would have to heed: that is told here. Arrival remembers plain jobs, Passage starts and
-- completes them. All others, and whatever does not look as it should, go the long way, by Shelf, Flow and Intake; what
-- becomes of a plain one is the same by either: tests/storage/test_redis_plain.py sees to that.
local Plain = {}

local queues, tasks = {}, {}

-- Whether nothing is said of a queue that its plain jobs would have to heed.
function Plain.in_queue(queue)
  if queues[queue] == nil then
    local told = Settings.of('queue', queue)
    queues[queue] = not told.stall and not told.rate and not (told.record and #told.record > 0)
  end
  return queues[queue]
end

-- Likewise of the task of a job, by what is fixed of it. `quiet`: nobody has said anything of any task.
function Plain.goes_on(fixed, quiet)
  if tasks[fixed] == nil then
    local readable, fields = pcall(cmsgpack.unpack, fixed)
    readable = readable and type(fields) == 'table' and type(fields.task) == 'string'
    local told = readable and not quiet and Settings.of('task', fields.task)
    tasks[fixed] = readable and (quiet or not told.paused and not told.rate)
  end
  return tasks[fixed]
end
