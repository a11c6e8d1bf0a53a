#!lua
-- requires: redriving, parking, enqueue, changes
-- receive: store jobs that come from another storage, and calls of an outbox, if the batch has the expected number.
--
-- moves  HASH  for each move and queue, the number of the latest batch, the ids of the jobs and the names of the calls
--              that it brought, and what those calls did whose ids do not lead to a job:
--              {number, ids, {{name, made, id[, retry_in]}, ...}}
--
-- Request: {move, queue, expected, arrivals, calls, jobs}. `jobs`: how many arrive in all. Each arrival has `fields`,
-- those of its record by their names; and the places of further arguments: `payload`, `data`, `holder` and `ended` of
-- its last run, and lists of them, `runs` and `log`. A call is {name, new job} (parts/enqueue.lua).
-- Answer: {number, ids, answers, applied}. {'\0moved', queue, to}: the jobs of the queue are moved to another storage.

-- Store a job; return false if its id is known, or if another job holds its unique key.
local function arrive(queue, item)
  local id, fields = item.id, item.fields
  if Record.get_in(queue, id) or call('HEXISTS', key('answers', queue), id) == 1 then
    return false
  end
  local job = Record.new(pair(queue, id), fields)
  if not TERMINAL[job.state] and Redriving.holder(job) then
    return false
  end
  -- It may have waited longer than jobs that were made here before it.
  job.made, job.back = Sequence.next(), true
  if job.state == 'waiting' then
    job.score = FairQueue.score(job, FairQueue.enqueue_time(job))
  end
  job.holder, job.ended = item.holder and ARGV[item.holder], item.ended and ARGV[item.ended]
  Record.set_payload(job, ARGV[item.payload], job.collected > 0)
  if item.data then
    Record.set_data(job, ARGV[item.data])
  end
  for _, kind in ipairs({ 'runs', 'log' }) do
    for _, place in ipairs(item[kind] or {}) do
      call('RPUSH', key(kind, job.ref), ARGV[place])
    end
  end
  job.logged = item.log and true or nil
  JobIndexes.add(job)
  if not TERMINAL[job.state] then
    Parking.apply_limits(job)
  end
  return true
end

return Changes.run(function()
  local queue = REQUEST.queue
  if Settings.moved_to(queue) then
    return Settings.refusal(queue)
  end
  local name = pair(REQUEST.move, queue)
  local body = call('HGET', key('moves'), name)
  local known = body and cmsgpack.unpack(body) or { 0, {}, {} }
  if REQUEST.expected ~= known[1] then
    if known[1] > 0 then
      -- The caller deletes these jobs elsewhere now, so it must not trust them before they are durable.
      Transaction.note_repeated()
    end
    return { known[1], known[2], known[3] or {}, 0 }
  end
  local taken = {}
  for _, item in ipairs(REQUEST.arrivals) do
    if arrive(queue, item) then
      taken[#taken + 1] = item.id
    end
  end
  local answers = {}
  for offset, item in ipairs(REQUEST.calls) do
    local result = Enqueue.add(item[2], offset - 1)
    taken[#taken + 1] = item[1]
    if result[1] == 'throttled' or result[2] ~= item[2].id then
      answers[#answers + 1] = { item[1], unpack(result) }
    end
  end
  local number = known[1] + 1
  call('HSET', key('moves'), name, cmsgpack.pack({ number, taken, answers }))
  if #taken > 0 then
    Notifications.notify_queue(queue)
  end
  Changes.unpark()
  return { number, taken, answers, 1 }
end)
