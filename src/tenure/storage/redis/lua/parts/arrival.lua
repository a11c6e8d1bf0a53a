-- requires: cell, form, hints, making, front, skips, plain
-- The fast path of enqueue, for plain jobs; see parts/plain.lua. Usually the script does nothing else, so it writes at
-- once.
local Arrival = {}

-- Return true if plain jobs of a queue may take the fast path. Usually none of these keys exists.
local function comes_plainly(queue)
  return call('EXISTS', key('settings'), key('fair', queue), key('answers', queue)) == 0
    or Plain.in_queue(queue) and not Front.of(queue) and not Making.anybody_answers_in(queue)
end

-- Maximum number of jobs that are written by the same commands.
local AT_ONCE = 250

-- The same as `Arrival.remember`, for at most AT_ONCE jobs of a group, from number `from` on.
local function remember_some(group, from, offset)
  local queue, fixed, ids, lease = group.queue, ARGV[group.fixed], group.ids, group.lease
  local to, beginning, keys = min(#ids, from + AT_ONCE - 1), key('job', pair(queue, '')), {}
  for number = from, to do
    keys[number - from + 1] = beginning .. ids[number]
  end
  local known, words, ready, waiting = call('MGET', unpack(keys)), {}, {}, {}
  local timeout, head, new = group.timeout or -1, NOW - (group.boost or 0) + offset - 1, {}
  local first, remembered = nil, 0
  for at, name in ipairs(keys) do
    local id = ids[from + at - 1]
    if known[at] or new[id] then
      break
    end
    local payload, made, marks = ARGV[group.first + from + at - 2], Making.next_made(), Form.PLAIN
    local load, score = #payload, head + from + at - 1
    if load > Form.WITHIN then
      words[#words + 1], words[#words + 2] = key('load', pair(queue, id)), payload
      payload, marks = '', Form.PLAIN + Form.APART
    end
    local record = struct.pack(
      Form.HEAD, Form.NUMBER, Form.WAITING, marks, #fixed, load, 0, made, score, NOW, NOW, lease, timeout
    )
    words[#words + 1], words[#words + 2] = name, record .. fixed .. payload
    -- Format numbers here: Redis converts number arguments to text, and slowly.
    ready[2 * at - 1], ready[2 * at] = string.format('%d', score), id
    waiting[2 * at - 1], waiting[2 * at] = string.format('%d', made), id
    new[id], first, remembered = true, first or made, at
  end
  if remembered > 0 then
    call('MSET', unpack(words))
    call('ZADD', key('in', pair(queue, 'waiting')), unpack(waiting))
    call('ZADD', key('ready', queue), unpack(ready))
    if from == 1 then
      call('ZADD', key('queues'), 'NX', first, queue)
    end
  end
  return remembered
end

-- Add the leading jobs of a group until an id is known already; return how many were added.
--
-- A group is {queue, fixed, lease, timeout, boost, ids, first}: new jobs of one queue with the same fixed part. Their
-- payloads are arguments of the script, from place `first` on. `offset`: how many jobs of the request come before them.
function Arrival.remember(group, offset)
  if not comes_plainly(group.queue) or Making.is_back() then
    return 0
  end
  local remembered = 0
  for from = 1, #group.ids, AT_ONCE do
    remembered = remembered + remember_some(group, from, offset)
    if remembered < min(#group.ids, from + AT_ONCE - 1) then
      break
    end
  end
  if remembered > 0 then
    Skips.finish()
    Hints.knock_queue(group.queue)
  end
  return remembered
end
