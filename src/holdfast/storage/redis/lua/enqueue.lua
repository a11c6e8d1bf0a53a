#!lua
-- requires: intake, plain, work
-- enqueue: remember each new job once, all of the call's jobs or none of them.
--
-- Request: {calls, jobs}: a list of wishes (parts/intake.lua) and of groups of plain ones (parts/plain.lua); how many they
-- are in all. Answer: for each 0 if that made it a job, else {made, id[, retry_in]}; `id` is that of the job that lives.

-- Remember the calls of a group: one by one from the first on that turns out to be not so plain.
local function remember_group(group, receipts, remember)
  local plain = Plain.remember(group, #receipts)
  for _ = 1, plain do
    receipts[#receipts + 1] = 0
  end
  for number = plain + 1, #group.ids do
    local wish = cmsgpack.unpack(ARGV[group.fixed])
    wish.queue, wish.id, wish.payload = group.queue, group.ids[number], group.first + number - 1
    wish.lease, wish.timeout = group.lease, group.timeout
    remember(wish)
  end
end

-- What is asked about by calls that come one by one, read by one command.
local function fetch(calls)
  local refs = {}
  for _, asked in ipairs(calls) do
    refs[#refs + 1] = asked.id and pair(asked.queue, asked.id)
  end
  Bytes.fetch(refs)
end

return Work.carry_out(function()
  local receipts = {}
  fetch(ASKED.calls)
  local function remember(wish)
    local receipt = Intake.remember(wish, #receipts)
    receipts[#receipts + 1] = receipt[1] == 'created' and 0 or receipt
  end
  for _, asked in ipairs(ASKED.calls) do
    if asked.ids then
      remember_group(asked, receipts, remember)
    else
      remember(asked)
    end
  end
  Work.let_in()
  return receipts
end)
