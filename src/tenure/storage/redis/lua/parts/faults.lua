-- requires: prelude
-- The faults of the failed jobs.
--
-- faults                  the faults that failed jobs have: queue and fault, all at 0
-- failed:<queue>.<fault>  the failed jobs that have a fault, by when they ended
local Faults = {}

-- Register the fault of a job that has just failed.
function Faults.add(job)
  call('ZADD', key('faults'), 0, pair(job.queue, job.fault))
end

-- Remove jobs from the index of a fault, and the fault if no job has it any more.
function Faults.remove(queue, fault, ids)
  local place = pair(queue, fault)
  if #ids > 0 then
    call('ZREM', key('failed', place), unpack(ids))
  end
  if call('EXISTS', key('failed', place)) == 0 then
    call('ZREM', key('faults'), place)
  end
end
