#!lua flags=allow-oom
-- requires: reclaiming, audit, parking, work, purse
-- reclaim: take over the active jobs of an owner that is known to be dead, without grace.
--
-- Request: {dead, owner, most}: two owner ids, and the maximum number of jobs. Answer: {stalled, more, had}; `stalled`
-- as in sweep.lua. `had`: how many jobs the caller held before.
-- A long answer may end before the maximum; then `more` is 1, and the caller asks again.
local held = key('held', ASKED.dead)
local TAKING = 40
local had = call('ZCARD', key('held', ASKED.owner))
local most = Purse.affords(TAKING, min(ASKED.most, SWEEP_LIMIT))
local refs = first_of(held, most + 1)
local more = #refs > most
local jobs = {}
for number = 1, min(#refs, most) do
  local job = Record.at(refs[number])
  if not job or job.state ~= 'active' or job.owner ~= ASKED.dead then
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
local body = call('HGET', key('workers'), ASKED.dead)
if body then
  local worker = cmsgpack.unpack(body)
  worker.died = true
  call('HSET', key('workers'), ASKED.dead, cmsgpack.pack(worker))
end
return Work.carry_out(function()
  local stalled = {}
  for number, job in ipairs(jobs) do
    if Purse.is_empty() then
      more = true
      break
    end
    stalled[number] = Reclaiming.take(job, ASKED.owner, 'process_died')
    Purse.pay(TAKING)
    Purse.pay_for(stalled[number][2], stalled[number][3])
  end
  Work.let_in()
  return { stalled, more and 1 or 0, had }
end)
