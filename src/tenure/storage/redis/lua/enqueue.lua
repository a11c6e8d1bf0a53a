#!lua
-- requires: settings, fast_enqueue, transaction
-- enqueue: add each new job once; either all jobs of the call or none.
--
-- Request: {calls, jobs}. `calls`: a list of new jobs (parts/enqueue.lua) and of groups of plain ones
-- (parts/fast_enqueue.lua); `jobs`: how many jobs these are in all.
-- Answer: the number of jobs if all were created. Else a list: 0 for each created job, {made, id[, retry_in]} for each
-- other; `id`: the job that answers this call. {'\\0moved', queue, to}: nothing was written, because the jobs of a queue
-- are moved to another storage.

-- First, because a script that has written cannot be rolled back.
if call('EXISTS', key('settings')) == 1 then
  for _, item in ipairs(REQUEST.calls) do
    if Settings.moved_to(item.queue) then
      return Settings.refusal(item.queue)
    end
  end
end

-- How many jobs were added; the number of the first call that was not added whole, and how many of its jobs were.
local added, first, of_first = 0, 1, 0

-- The fast path: add the leading groups until a job is not plain. Return true if that was all.
local function begin()
  for number, item in ipairs(REQUEST.calls) do
    first, of_first = number, item.ids and FastEnqueue.add(item, added) or 0
    added = added + of_first
    if not item.ids or of_first < #item.ids then
      return false
    end
  end
  return true
end

if Transaction.run(begin) then
  return added
end

-- requires: record_bytes, enqueue, changes

-- Read the records of all ids in question with one command.
local function fetch(calls)
  local refs = {}
  for _, item in ipairs(calls) do
    for _, id in ipairs(item.ids or {}) do
      refs[#refs + 1] = pair(item.queue, id)
    end
    refs[#refs + 1] = item.id and pair(item.queue, item.id)
  end
  RecordBytes.fetch(refs)
end

return Changes.run(function()
  local results = {}
  for _ = 1, added do
    results[#results + 1] = 0
  end
  local function add(new_job)
    local result = Enqueue.add(new_job, #results)
    results[#results + 1] = result[1] == 'created' and 0 or result
  end
  -- Records are loaded by now. Arrival writes without looking at them, so it is not used here.
  local function add_group(group, from)
    for number = from, #group.ids do
      local new_job = cmsgpack.unpack(ARGV[group.fixed])
      new_job.queue, new_job.id, new_job.payload = group.queue, group.ids[number], group.first + number - 1
      new_job.lease, new_job.timeout = group.lease, group.timeout
      add(new_job)
    end
  end
  fetch(REQUEST.calls)
  for number = first, #REQUEST.calls do
    local item = REQUEST.calls[number]
    if item.ids then
      add_group(item, number == first and of_first + 1 or 1)
    else
      add(item)
    end
  end
  Changes.unpark()
  for _, result in ipairs(results) do
    if result ~= 0 then
      Transaction.note_repeated()
      break
    end
  end
  return results
end)
