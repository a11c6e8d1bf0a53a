-- requires: cell
-- What a script hints at when all is written: topics that somebody may be listening to.
local Hints = {}

-- Topics, and the channels of these.
local knocked, in_order = {}, {}

-- The channel of a topic, or what those of many begin with.
function Hints.channel(topic)
  return BASE .. ':n:' .. topic
end

-- Hint in a channel when all is written; it is nobody else's in this script.
function Hints.put(channel)
  in_order[#in_order + 1] = channel
end

-- Hint at a topic, once, when all is written.
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

-- Where so many are asked about by one command, that costs less than to tell them all what most of them do not listen to.
local MANY = 4

-- Publish a hint in each of some channels that anybody listens to, or in all where that cannot be told.
local function publish(channels, from, to)
  local listening = to - from >= MANY and redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels, from, to))
  for number = from, to do
    if not listening or listening.err or listening[2 * (number - from) + 2] > 0 then
      redis.pcall('SPUBLISH', channels[number], '')
    end
  end
end

-- All is written by now, and nothing rests on a hint: one that the user may not publish must not fail the verb.
function Hints.flush()
  local channels = in_order
  in_order, knocked = {}, {}
  for from = 1, #channels, 500 do
    publish(channels, from, min(from + 499, #channels))
  end
end
