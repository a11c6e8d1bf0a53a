-- requires: cell
-- The notifications that a script publishes after its writes, by topics to which processes may listen.
local Hints = {}

-- The topics noted so far, and their channels in order.
local knocked, in_order = {}, {}

-- The channel of a topic; also usable as the prefix of many channels.
function Hints.channel(topic)
  return BASE .. ':n:' .. topic
end

-- Publish a hint in a channel after all writes. The caller makes sure that this script names the channel only once.
function Hints.put(channel)
  in_order[#in_order + 1] = channel
end

-- Publish a hint for a topic, once, after all writes.
function Hints.knock(topic)
  if not knocked[topic] then
    knocked[topic] = true
    Hints.put(Hints.channel(topic))
  end
end

function Hints.knock_queue(queue)
  Hints.knock('queue:' .. queue)
end

function Hints.knock_job(job)
  Hints.knock('job:' .. job.ref)
end

-- From this many channels on, one command that asks which have listeners costs less than publishing in all of them.
local MANY = 4

-- Publish a hint in each channel that has listeners; or in all, if that is unknown.
local function publish(channels, from, to)
  local listening = to - from >= MANY and redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels, from, to))
  for number = from, to do
    if not listening or listening.err or listening[2 * (number - from) + 2] > 0 then
      redis.pcall('SPUBLISH', channels[number], '')
    end
  end
end

-- Publish the hints. All is written by now, and nothing depends on hints: if the user may not publish, the verb must
-- not fail.
function Hints.flush()
  local channels = in_order
  in_order, knocked = {}, {}
  for from = 1, #channels, 500 do
    publish(channels, from, min(from + 499, #channels))
  end
end
