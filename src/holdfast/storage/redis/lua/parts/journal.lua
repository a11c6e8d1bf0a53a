-- requires: cell, settings, index
-- What a script says: the events it records, and the hints it gives at its end.
--
-- The log is a stream whose entries are numbered from 1 without a gap: `0-<number>`. An entry has its event as msgpack
-- (`e`), the instant (`t`), the job's ref if it is of one (`j`), and what the storage lays over the event (`o`).
local Journal = {}

local LOG = key('events')

local knocked, in_order = {}, {}

-- Hint at a topic, once, when all is written.
function Journal.knock(topic)
  if not knocked[topic] then
    knocked[topic] = true
    in_order[#in_order + 1] = topic
  end
end

function Journal.knock_queue(queue)
  Journal.knock('queue:' .. queue)
end

function Journal.knock_job(job)
  Journal.knock('job:' .. job.ref)
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
function Journal.flush()
  local channels = {}
  for number, topic in ipairs(in_order) do
    channels[number] = BASE .. ':n:' .. topic
  end
  in_order, knocked = {}, {}
  for from = 1, #channels, 500 do
    publish(channels, from, min(from + 499, #channels))
  end
end

-- Record an event that was encoded by whoever asked; `over`: the fields that the storage knows better.
function Journal.record_as_told(body, ref, over)
  local fields = { 'e', body, 't', NOW }
  if ref then
    fields[#fields + 1], fields[#fields + 2] = 'j', ref
  end
  if over and next(over) then
    fields[#fields + 1], fields[#fields + 2] = 'o', cmsgpack.pack(over)
  end
  call('XADD', LOG, '0-*', unpack(fields))
  Journal.knock('events')
end

-- Record an event of the cell.
function Journal.record(name, event)
  event.event = name
  Journal.record_as_told(cmsgpack.pack(event))
end

-- Record what has happened to a job.
function Journal.record_of(job, name, event)
  event.event, event.queue, event.id, event.task = name, job.queue, job.id, job.task
  event.run = event.run or job.starts
  Journal.record_as_told(cmsgpack.pack(event), job.ref)
end

-- Record what has happened to a job where its queue asks for it.
function Journal.tell(job, name, event)
  if Settings.records(job.queue, name) then
    Journal.record_of(job, name, event())
  end
end

-- Tell that the last unfinished job of a queue is over, where its queue asks for that.
function Journal.tell_if_drained(queue)
  if Settings.records(queue, 'queue_drained') then
    Index.flush()
    for _, state in ipairs({ 'delayed', 'waiting', 'again', 'active' }) do
      if call('EXISTS', key('in', pair(queue, state))) == 1 then
        return
      end
    end
    Journal.record('queue_drained', { queue = queue })
  end
end
