#!lua
-- requires: intake, work
-- enqueue: remember each new job once, all of the call's jobs or none of them.
--
-- Request: a list of wishes. Answer: for each {made, id[, retry_in]}; `id` is that of the job that lives.
return carry_out(function()
  local receipts = {}
  for number, wish in ipairs(ASKED) do
    receipts[number] = Intake.remember(wish, number - 1)
  end
  Parking.let_in()
  return receipts
end)
