#!lua
-- requires: arrival, step
-- enqueue: add each new job once; either all jobs of the call or none.
--
-- Request: {calls, jobs}. `calls`: a list of new jobs (parts/intake.lua) and of groups of plain ones
-- (parts/arrival.lua); `jobs`: how many jobs these are in all.
-- Answer: the number of jobs if all were created. Else a list: 0 for each created job, {made, id[, retry_in]} for each
-- other; `id`: the job that answers this call.

-- How many jobs were added; the number of the first call that was not added whole, and how many of its jobs were.
local remembered, first, of_first = 0, 1, 0

-- The fast path: add the leading groups until a job is not plain. Return true if that was all.
local function begin()
  for number, asked in ipairs(ASKED.calls) do
    first, of_first = number, asked.ids and Arrival.remember(asked, remembered) or 0
    remembered = remembered + of_first
    if not asked.ids or of_first < #asked.ids then
      return false
    end
  end
  return true
end

if Step.carry_out(begin) then
  return remembered
end

-- requires: bytes, intake, work

-- Read the records of all ids in question with one command.
local function fetch(calls)
  local refs = {}
  for _, asked in ipairs(calls) do
    for _, id in ipairs(asked.ids or {}) do
      refs[#refs + 1] = pair(asked.queue, id)
    end
    refs[#refs + 1] = asked.id and pair(asked.queue, asked.id)
  end
  Bytes.fetch(refs)
end

return Work.carry_out(function()
  local receipts = {}
  for _ = 1, remembered do
    receipts[#receipts + 1] = 0
  end
  local function remember(wish)
    local receipt = Intake.remember(wish, #receipts)
    receipts[#receipts + 1] = receipt[1] == 'created' and 0 or receipt
  end
  -- Records are loaded by now. Arrival writes without looking at them, so it is not used here.
  local function remember_group(group, from)
    for number = from, #group.ids do
      local wish = cmsgpack.unpack(ARGV[group.fixed])
      wish.queue, wish.id, wish.payload = group.queue, group.ids[number], group.first + number - 1
      wish.lease, wish.timeout = group.lease, group.timeout
      remember(wish)
    end
  end
  fetch(ASKED.calls)
  for number = first, #ASKED.calls do
    local asked = ASKED.calls[number]
    if asked.ids then
      remember_group(asked, number == first and of_first + 1 or 1)
    else
      remember(asked)
    end
  end
  Work.let_in()
  for _, receipt in ipairs(receipts) do
    if receipt ~= 0 then
      Step.note_repeated()
      break
    end
  end
  return receipts
end)
