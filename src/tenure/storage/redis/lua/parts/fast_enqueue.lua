-- requires: prelude, record_format, notifications, sequence, virtual_time, skips, plain_jobs
-- The fast path of enqueue, for plain jobs; see parts/plain_jobs.lua. Usually the script does nothing else, so it
-- writes at once.
local FastEnqueue = {}

-- Return true if plain jobs of a queue may take the fast path. Usually none of these keys exists.
local function accepts(queue)
  return call('EXISTS', key('settings'), key('fair', queue), key('answers', queue)) == 0
    or PlainJobs.allows_queue(queue) and not VirtualTime.of(queue) and not Sequence.has_merged_calls(queue)
end

-- Maximum number of jobs that are written by the same commands.
local AT_ONCE = 250

-- The same as `FastEnqueue.add`, for at most AT_ONCE jobs of a group, from number `from` on.
local function add_some(group, from, offset)
  local queue, fixed, ids, lease = group.queue, ARGV[group.fixed], group.ids, group.lease
  local to, beginning, keys = min(#ids, from + AT_ONCE - 1), key('job', pair(queue, '')), {}
  for number = from, to do
    keys[number - from + 1] = beginning .. ids[number]
  end
  local known, words, ready, waiting = call('MGET', unpack(keys)), {}, {}, {}
  local timeout, head, new = group.timeout or -1, NOW - (group.boost or 0) + offset - 1, {}
  local first, added = nil, 0
  for at, name in ipairs(keys) do
    local id = ids[from + at - 1]
    if known[at] or new[id] then
      break
    end
    local payload, made, marks = ARGV[group.first + from + at - 2], Sequence.next(), RecordFormat.PLAIN
    local load, score = #payload, head + from + at - 1
    if load > RecordFormat.INLINE_PAYLOAD then
      words[#words + 1], words[#words + 2] = key('load', pair(queue, id)), payload
      payload, marks = '', RecordFormat.PLAIN + RecordFormat.PAYLOAD_APART
    end
    local record = struct.pack(
      RecordFormat.HEAD, RecordFormat.NUMBER, RecordFormat.WAITING, marks,
      #fixed, load, 0, made, score, NOW, NOW, lease, timeout
    )
    words[#words + 1], words[#words + 2] = name, record .. fixed .. payload
    -- Format numbers here: Redis converts number arguments to text, and slowly.
    ready[2 * at - 1], ready[2 * at] = string.format('%d', score), id
    waiting[2 * at - 1], waiting[2 * at] = string.format('%d', made), id
    new[id], first, added = true, first or made, at
  end
  if added > 0 then
    call('MSET', unpack(words))
    call('ZADD', key('in', pair(queue, 'waiting')), unpack(waiting))
    call('ZADD', key('ready', queue), unpack(ready))
    if from == 1 then
      call('ZADD', key('queues'), 'NX', first, queue)
    end
  end
  return added
end

-- Add the leading jobs of a group until an id is known already; return how many were added.
--
-- A group is {queue, fixed, lease, timeout, boost, ids, first}: new jobs of one queue with the same fixed part. Their
-- payloads are arguments of the script, from place `first` on. `offset`: how many jobs of the request come before them.
function FastEnqueue.add(group, offset)
  if not accepts(group.queue) or Sequence.clock_is_back() then
    return 0
  end
  local added = 0
  for from = 1, #group.ids, AT_ONCE do
    added = added + add_some(group, from, offset)
    if added < min(#group.ids, from + AT_ONCE - 1) then
      break
    end
  end
  if added > 0 then
    Skips.finish()
    Notifications.notify_queue(group.queue)
  end
  return added
end
