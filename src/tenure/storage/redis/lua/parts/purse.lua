-- requires: cell
-- The time budget of one call: a server runs one script at a time, so no script may run for long. A call leaves what it
-- has no time for to the next call, which its caller makes at once. Prices are approximate times in microseconds.
--
-- Starting and reading the request cost time, too. However long the request is, at least 500 are left: a call that does
-- nothing would only be repeated.
local Purse = {}

Purse.left = max(500, 2900 - #ARGV[2] / 80)

function Purse.pay(price)
  Purse.left = Purse.left - price
end

function Purse.is_empty()
  return Purse.left <= 0
end

-- Bytes cost time, too: the server copies them, and the caller must receive the whole answer before it can use any of
-- it. So an answer is not much longer than 750 kB plus its last job.
function Purse.pay_for(...)
  for _, text in ipairs({ ... }) do
    Purse.pay(#text / 250)
  end
end

-- How many things of this price the budget allows, at most `most` and at least one.
function Purse.affords(price, most)
  return price > 0 and min(most, max(1, floor(Purse.left / price))) or most
end
