-- requires: prelude, settings, limits
-- Rate limits: each start takes an interval of its rate's time. core/rate.py has the same rules, with reasons.
--
-- taken  ZSET  for each rate (queue, name), the instant up to which its time is taken
-- reach  HASH  for each rate, how far ahead the last start could take time
--
-- A rate is {name, interval, burst}. Its state is {until, reach}.
local Rates = {}

-- How far into the future a start can take time.
local function whole_reach(rate)
  return rate[2] * (rate[3] + 1)
end

Rates.whole_reach = whole_reach

-- Return until when time is taken. If that is further ahead than any start could take, the clock was set back since.
local function sound(so_far)
  return so_far[1] > NOW + so_far[2] and NOW or so_far[1]
end

local function is_of_task(name, task)
  local at = string.find(name, ':', 1, true)
  if not at or string.sub(name, at + 1) ~= task then
    return false
  end
  local kind = string.sub(name, 1, at - 1)
  return kind == 'task' or starts_with(kind, 'task/')
end

Rates.is_of_task = is_of_task

-- Convert a rate from the form of settings to the form of jobs; nil without one.
function Rates.from_settings(setting)
  return setting and { setting.name, setting.interval, setting.burst or 1 }
end

-- The rates of which a job's start takes time. If its task has a rate setting, that replaces the task's own rates.
function Rates.of(job)
  local setting = Rates.from_settings(Settings.get('task', job.task).rate)
  if not setting and #job.rates == 0 then
    return job.rates
  end
  local effective = {}
  if setting and setting[2] > 0 then
    effective[1] = setting
  end
  for _, rate in ipairs(job.rates) do
    local replaced = setting and (rate[1] == setting[1] or is_of_task(rate[1], job.task))
    if not replaced and rate[2] > 0 then
      effective[#effective + 1] = rate
    end
  end
  return effective
end

-- The rate from a queue's settings, or nil.
function Rates.of_queue(queue)
  local setting = Rates.from_settings(Settings.get('queue', queue).rate)
  return setting and setting[2] > 0 and setting or nil
end

function Rates.taken(queue, rate)
  local place = pair(queue, rate[1])
  local till = tonumber(call('ZSCORE', key('taken'), place) or '')
  return till and { till, tonumber(call('HGET', key('reach'), place) or '') or 0 } or { 0, 0 }
end

-- The state of a rate, with the time until the end of its limit taken, too.
function Rates.state(queue, rate)
  local so_far, till = Rates.taken(queue, rate), Limits.end_of(queue, rate[1])
  local ending = till + rate[2] * rate[3] - 1
  return (till <= NOW or sound(so_far) >= ending) and so_far or { ending, ending - NOW }
end

function Rates.keep(queue, rate, so_far)
  local place = pair(queue, rate[1])
  call('ZADD', key('taken'), so_far[1], place)
  call('HSET', key('reach'), place, so_far[2])
end

-- When the next job may start; now or earlier if it may start at once.
function Rates.opens_at(so_far, rate)
  return sound(so_far) - rate[2] * rate[3] + 1
end

-- The state of a rate after `starts` jobs have started now.
function Rates.after(so_far, rate, starts)
  if starts == 0 then
    return so_far
  end
  return { max(sound(so_far), NOW) + rate[2] * starts, whole_reach(rate) }
end

-- The state of a rate that lets the next job start at an instant.
function Rates.taken_if_open(at, rate)
  return { at + rate[2] * rate[3] - 1, whole_reach(rate) }
end

-- The state of a rate after its interval or burst has changed.
function Rates.retuned(so_far, rate)
  return so_far[1] <= NOW + whole_reach(rate) and so_far or { NOW, whole_reach(rate) }
end

-- How many jobs may start now.
function Rates.free(so_far, rate)
  local opened = max(Rates.opens_at(so_far, rate), NOW - rate[2] * rate[3] + 1)
  return max(0, floor((NOW - opened) / rate[2]) + 1)
end

-- The later of two states.
function Rates.later(one, other)
  if one[1] ~= other[1] then
    return one[1] > other[1] and one or other
  end
  return one[2] > other[2] and one or other
end

-- Take the time of one start from each rate.
function Rates.take(queue, rates)
  for _, rate in ipairs(rates) do
    Rates.keep(queue, rate, Rates.after(Rates.taken(queue, rate), rate, 1))
  end
end

-- Give back the time of a start that was undone, so that the next job may start earlier; but not the time that has
-- passed since.
function Rates.give_back(queue, rates, started)
  for _, rate in ipairs(rates) do
    local so_far, more = Rates.taken(queue, rate), max(0, rate[2] - max(0, NOW - started))
    if so_far[1] > NOW then
      Rates.keep(queue, rate, { so_far[1] - more, so_far[2] })
      if call('ZSCORE', key('opening', queue), RATE .. rate[1]) then
        call('ZINCRBY', key('opening', queue), -more, RATE .. rate[1])
      end
    end
  end
end

-- All rates of which a start takes time, the one of the job's queue included.
function Rates.all_of(job)
  local all = {}
  for _, rate in ipairs(Rates.of(job)) do
    all[#all + 1] = rate
  end
  all[#all + 1] = Rates.of_queue(job.queue)
  return all
end

-- When a queue's own rate and limit let the next of its jobs start.
function Rates.queue_opens_at(queue)
  local rate = Rates.of_queue(queue)
  return max(rate and Rates.opens_at(Rates.taken(queue, rate), rate) or NOW, Limits.end_of(queue, QUEUE_RATE))
end

-- The name of the rate that a job's limit applies to: one with a key of its own, else one of its task; nil without one.
function Rates.limit_name(job)
  local rates = Rates.of(job)
  for _, rate in ipairs(rates) do
    if not starts_with(rate[1], 'task:') and not starts_with(rate[1], 'task/') then
      return rate[1]
    end
  end
  return rates[1] and rates[1][1]
end
