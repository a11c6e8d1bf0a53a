-- requires: prelude
-- The notifications that a script publishes after its writes, by topics to which processes may listen.
local Notifications = {}

-- The topics noted so far, and their channels in order.
local notified, in_order = {}, {}

-- The channel of a topic; also usable as the prefix of many channels.
function Notifications.channel(topic)
  return BASE .. ':n:' .. topic
end

-- Publish a hint in a channel after all writes. The caller makes sure that this script names the channel only once.
function Notifications.add_channel(channel)
  in_order[#in_order + 1] = channel
end

-- Publish a hint for a topic, once, after all writes.
function Notifications.notify(topic)
  if not notified[topic] then
    notified[topic] = true
    Notifications.add_channel(Notifications.channel(topic))
  end
end

function Notifications.notify_queue(queue)
  Notifications.notify('queue:' .. queue)
end

function Notifications.notify_job(job)
  Notifications.notify('job:' .. job.ref)
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
function Notifications.publish()
  local channels = in_order
  in_order, notified = {}, {}
  for from = 1, #channels, 500 do
    publish(channels, from, min(from + 499, #channels))
  end
end
