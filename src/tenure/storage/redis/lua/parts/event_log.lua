-- requires: prelude, settings, index_writes, notifications
-- The event log, and the events that a script records in it.
--
-- The log is a stream whose entries are numbered from 1 without gaps: `0-<number>`. An entry has the event as msgpack
-- (`e`), the instant (`t`), the job's ref if it belongs to one (`j`), and fields that the storage overrides (`o`).
local EventLog = {}

local LOG = key('events')

local function number_of(id)
  return tonumber(string.sub(id, 3))
end

local function instant_of(entry)
  local fields = entry[2]
  for at = 1, #fields, 2 do
    if fields[at] == 't' then
      return tonumber(fields[at + 1])
    end
  end
  return 0
end

-- Return the number of the last event, and its instant; the instant is 0 if the event was trimmed.
function EventLog.last()
  if call('EXISTS', LOG) == 0 then
    return 0, 0
  end
  local info, last, at = call('XINFO', 'STREAM', LOG), 0, 0
  for place = 1, #info, 2 do
    if info[place] == 'last-generated-id' then
      last = number_of(info[place + 1])
    elseif info[place] == 'last-entry' and info[place + 1] then
      at = instant_of(info[place + 1])
    end
  end
  return last, at
end

-- Return true if the event that a worker saw as the last one is still in the log, or was trimmed.
function EventLog.continues(seen, last)
  local number = seen.last_event or 0
  if number > last or number == 0 or not seen.last_event_at then
    return number <= last
  end
  local entry = call('XRANGE', LOG, '0-' .. whole(number), '0-' .. whole(number))[1]
  return not entry or instant_of(entry) == seen.last_event_at
end

-- Record an event that the caller has encoded; `over`: fields that the storage overrides.
function EventLog.append(body, ref, over)
  local fields = { 'e', body, 't', NOW }
  if ref then
    fields[#fields + 1], fields[#fields + 2] = 'j', ref
  end
  if over and next(over) then
    fields[#fields + 1], fields[#fields + 2] = 'o', cmsgpack.pack(over)
  end
  call('XADD', LOG, 'MAXLEN', '~', EVENTS_KEPT.count, 'LIMIT', TRIM_BATCH, '0-*', unpack(fields))
  Notifications.notify('events')
end

-- Record an event of the partition.
function EventLog.record(name, event)
  event.event = name
  EventLog.append(cmsgpack.pack(event))
end

-- Record an event of a job.
function EventLog.record_job_event(job, name, event)
  event.event, event.queue, event.id, event.task = name, job.queue, job.id, job.task
  event.run = event.run or job.starts
  EventLog.append(cmsgpack.pack(event), job.ref)
end

-- Record an event of a job if its queue's settings ask for it.
function EventLog.record_if_wanted(job, name, event)
  if Settings.records(job.queue, name) then
    EventLog.record_job_event(job, name, event())
  end
end

-- Record that a queue has no unfinished jobs left, if the queue's settings ask for that.
function EventLog.record_if_drained(queue)
  if Settings.records(queue, 'queue_drained') then
    IndexWrites.flush()
    for _, state in ipairs({ 'delayed', 'waiting', 'again', 'active' }) do
      if call('EXISTS', key('in', pair(queue, state))) == 1 then
        return
      end
    end
    EventLog.record('queue_drained', { queue = queue })
  end
end
