-- requires: prelude
-- The time budget of one call: a server runs one script at a time, so no script may run for long. A call leaves what it
-- has no time for to the next call, which its caller makes at once. Costs are approximate times in microseconds.
--
-- Starting and reading the request cost time, too. However long the request is, at least 500 are left: a call that does
-- nothing would only be repeated.
local TimeBudget = {}

TimeBudget.left = max(500, 2900 - #ARGV[2] / 80)

function TimeBudget.spend(cost)
  TimeBudget.left = TimeBudget.left - cost
end

function TimeBudget.is_spent()
  return TimeBudget.left <= 0
end

-- Bytes cost time, too: the server copies them, and the caller must receive the whole answer before it can use any of
-- it. So an answer is not much longer than 750 kB plus its last job.
function TimeBudget.spend_on_bytes(...)
  for _, text in ipairs({ ... }) do
    TimeBudget.spend(#text / 250)
  end
end

-- How many things of this cost the budget allows, at most `most` and at least one.
function TimeBudget.affords(cost, most)
  return cost > 0 and min(most, max(1, floor(TimeBudget.left / cost))) or most
end
