#!lua flags=allow-oom
-- requires: reclaiming, audit, parking, changes, time_budget
-- reclaim: take over the active jobs of an owner that is known to be dead, without grace.
--
-- Request: {dead, owner, most}: two owner ids, and the maximum number of jobs. Answer: {stalled, more, had}; `stalled`
-- as in sweep.lua. `had`: how many jobs the caller held before.
-- A long answer may end before the maximum; then `more` is 1, and the caller asks again.
local held = key('held', REQUEST.dead)
local TAKE_COST = 40
local had = call('ZCARD', key('held', REQUEST.owner))
local most = TimeBudget.affords(TAKE_COST, min(REQUEST.most, SWEEP_LIMIT))
local refs = first_of(held, most + 1)
local more = #refs > most
local jobs = {}
for number = 1, min(#refs, most) do
  local job = Record.get(refs[number])
  if not job or job.state ~= 'active' or job.owner ~= REQUEST.dead then
    job = Audit.check(held, refs[number], refs[number])
  end
  jobs[#jobs + 1] = job
end
table.sort(jobs, function(one, other)
  if one.lease_until ~= other.lease_until then
    return one.lease_until < other.lease_until
  end
  return one.ref < other.ref
end)
local body = call('HGET', key('workers'), REQUEST.dead)
if body then
  local worker = cmsgpack.unpack(body)
  worker.died = true
  call('HSET', key('workers'), REQUEST.dead, cmsgpack.pack(worker))
end
return Changes.run(function()
  local stalled = {}
  for number, job in ipairs(jobs) do
    if TimeBudget.is_spent() then
      more = true
      break
    end
    stalled[number] = Reclaiming.take(job, REQUEST.owner, 'process_died')
    TimeBudget.spend(TAKE_COST)
    TimeBudget.spend_on_bytes(stalled[number][2], stalled[number][3])
  end
  Changes.unpark()
  return { stalled, more and 1 or 0, had }
end)
