#!lua flags=allow-oom
-- requires: event_log, notifications
-- resign: give up the given term, and no other.
--
-- Request: {scope, owner, epoch}. Answer: nothing.
local leader = key('leader')
local got = call('HMGET', leader, 'owner', 'epoch')
if got[1] == REQUEST.owner and tonumber(got[2] or '') == REQUEST.epoch then
  call('HDEL', leader, 'owner', 'length', 'until')
  EventLog.record(
    'leadership_lost',
    { scope = REQUEST.scope, owner = REQUEST.owner, epoch = REQUEST.epoch, reason = 'resigned' }
  )
  Notifications.publish()
end
