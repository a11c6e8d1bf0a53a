#!lua
-- requires: arrival, step
-- enqueue: remember each new job once, all of the call's jobs or none of them.
--
-- Request: {calls, jobs}: a list of wishes (parts/intake.lua) and of groups of plain ones (parts/arrival.lua); how many they
-- are in all. Answer: how many, if that made each of them a job; else for each 0 if it did, or {made, id[, retry_in]}; `id`
-- is that of the job that lives.

-- How many jobs were remembered; the first call with any that was not, and how many of that one were.
local remembered, first, of_first = 0, 1, 0

-- Remember the groups that come first, as far as their jobs turn out to be plain; return whether those are all.
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

-- What is asked about, read by one command.
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
  -- Records have been loaded by now, so Arrival, which writes past them, has no part in this.
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
