-- requires: cell, form, hints, making, front, rest, plain
-- How plain jobs come in; see parts/plain.lua. What its script does is mostly this and nothing else, so it writes at once.
local Arrival = {}

-- Whether a queue takes in plain calls plainly. As a rule nothing is there that would say otherwise.
local function comes_plainly(queue)
  return call('EXISTS', key('settings'), key('fair', queue), key('answers', queue)) == 0
    or Plain.in_queue(queue) and not Front.of(queue) and not Making.anybody_answers_in(queue)
end

-- So many jobs of a group are written by the same commands.
local AT_ONCE = 250

-- The same for those of a group from a number on, as many as are written at once.
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
    -- A number that a command is called with becomes text for each call, and slowly.
    ready[2 * at - 1], ready[2 * at] = string.format('%d', score), id
    waiting[2 * at - 1], waiting[2 * at] = string.format('%d', made), id
    new[id], first, remembered = true, first or made, at
  end
  if remembered > 0 then
    call('MSET', unpack(words))
    call('ZADD', key('in', pair(queue, 'waiting')), unpack(waiting))
    call('ZADD', key('ready', queue), unpack(ready))
    if from == 1 and call('ZADD', key('queues'), 'NX', first, queue) == 1 then
      Rest.wake()
    end
  end
  return remembered
end

-- Remember the plain calls that come first of a group, as far as none of them is known; return how many those are.
--
-- A group is {queue, fixed, lease, timeout, boost, ids, first}: calls of one queue that have all that is fixed in common.
-- Their payloads are arguments of the script, from `first` on. `offset`: how many calls come before them.
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
    Rest.stir()
    Rest.heed(group.lease)
    Hints.knock_queue(group.queue)
  end
  return remembered
end
