-- requires: cell
-- What one call may take: a server is busy with one script at a time, so none may go on for long. What a call has no time
-- for it leaves to the next, which its caller makes at once. Prices are about what a thing takes, in microseconds.
--
-- To begin takes time, and to read the request; but however long that is, something is done, or the next call would be as
-- long again.
local Purse = {}

Purse.left = max(500, 2900 - #ARGV[2] / 80)

function Purse.pay(price)
  Purse.left = Purse.left - price
end

function Purse.is_empty()
  return Purse.left <= 0
end

-- Bytes cost, too: to copy, and whoever asked has to take them all before he has any. So no answer is much longer than
-- 750 kB and its last job.
function Purse.pay_for(...)
  for _, text in ipairs({ ... }) do
    Purse.pay(#text / 250)
  end
end

-- How many things of a price are left to be done, of so many; one is always.
function Purse.affords(price, most)
  return price > 0 and min(most, max(1, floor(Purse.left / price))) or most
end
