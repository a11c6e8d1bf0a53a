-- requires: prelude, notifications
-- Runs the work of a script that changes something. A script is atomic, but a failed script is not rolled back:
-- deferred changes of the work done so far are still written, and the audit repairs what is left inconsistent.
local Transaction = {}

-- Do some work, write its deferred changes, and publish its hints; return both values that the work returns.
function Transaction.run(work, write_down)
  local went_well, answer, rest = pcall(work)
  if write_down then
    write_down()
  end
  if is_made(Notifications) then
    Notifications.publish()
  end
  if not went_well then
    error(answer, 0)
  end
  return answer, rest
end

-- Note that a caller repeated a request that was carried out before. There is nothing to write, but the caller may wait
-- for a replica. A server waits only for writes of the caller's own connection (Valkey, Redis since 7.2). The first
-- request may have come by another connection, and may not have reached a replica yet. So write something here.
--
-- counters  HASH  repeated: the number of such repetitions
function Transaction.note_repeated()
  call('HINCRBY', key('counters'), 'repeated', 1)
end
