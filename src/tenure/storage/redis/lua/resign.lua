#!lua flags=allow-oom
-- requires: journal, hints
-- resign: give up the given term, and no other.
--
-- Request: {scope, owner, epoch}. Answer: nothing.
local leader = key('leader')
local got = call('HMGET', leader, 'owner', 'epoch')
if got[1] == ASKED.owner and tonumber(got[2] or '') == ASKED.epoch then
  call('HDEL', leader, 'owner', 'length', 'until')
  Journal.record(
    'leadership_lost',
    { scope = ASKED.scope, owner = ASKED.owner, epoch = ASKED.epoch, reason = 'resigned' }
  )
  Hints.flush()
end
