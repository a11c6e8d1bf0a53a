-- requires: cell, form, bytes, settings, index, hints, making, front, rest, queues, lease, purse
-- Plain jobs, moved many at a time: straight from the bytes of a record to its next, and by as few commands as there are
-- indexes. A job is plain while nothing about it is out of the ordinary (`Form.PLAIN`) and nobody has said anything of its
-- queue or its task that a move would have to heed. All others, and whatever does not look as it should, go the long way, by
-- Shelf, Flow and Intake; what becomes of a plain one is the same by either: tests/storage/test_redis_plain.py sees to that.
local Plain = {}

Plain.STARTING, Plain.FINISHING = 28, 25

local pack, unfolded, byte, sub = struct.pack, struct.unpack, string.byte, string.sub
local FORM, HEAD, HEAD_AND_RUN, HEAD_SIZE = Form.NUMBER, Form.HEAD, Form.HEAD_AND_RUN, Form.HEAD_SIZE
local BOTH_SIZE = HEAD_SIZE + Form.RUN_SIZE
local WAITING, ACTIVE = Form.NUMBER_OF.waiting, Form.NUMBER_OF.active
local COMPLETED = Form.NUMBER_OF.completed
local NEW, NEW_APART = Form.PLAIN, Form.PLAIN + Form.APART
local RUNS, RUNS_APART = NEW + Form.RAN, NEW_APART + Form.RAN

local queues, tasks = {}, {}

-- Numbers as text: a number that a command is called with becomes one for each call, and slowly.
local function text(number)
  return string.format('%d', number)
end

local NOW_TEXT = text(NOW)
local LOG = key('events')

-- Whether nothing is said of a queue that its plain jobs would have to heed.
function Plain.in_queue(queue)
  if queues[queue] == nil then
    local told = Settings.of('queue', queue)
    queues[queue] = not told.stall and not told.rate and not (told.record and #told.record > 0)
  end
  return queues[queue]
end

-- Likewise of the task of a job, by what is fixed of it.
local function goes_on(fixed)
  if tasks[fixed] == nil then
    local readable, fields = pcall(cmsgpack.unpack, fixed)
    local told = readable and type(fields) == 'table' and Settings.of('task', fields.task)
    tasks[fixed] = told and not told.paused and not told.rate or false
  end
  return tasks[fixed]
end

-- Remember the plain calls that come first of a group, as far as none of them is known; return how many those are.
--
-- A group is {queue, fixed, lease, timeout, boost, ids, first}: calls of one queue that have all that is fixed in common.
-- Their payloads are arguments of the script, from `first` on. `offset`: how many calls come before them.
function Plain.remember(group, offset)
  local queue, fixed, ids, lease = group.queue, ARGV[group.fixed], group.ids, group.lease
  if not Plain.in_queue(queue) or Front.of(queue) or Making.is_back() or Making.anybody_answers_in(queue) then
    return 0
  end
  local beginning, refs = pair(queue, ''), {}
  for number = 1, #ids do
    refs[number] = beginning .. ids[number]
  end
  Bytes.fetch(refs)
  local ready, waiting = Index.puts(key('ready', queue)), Index.puts(Queues.standing(queue, 'waiting'))
  local timeout, head = group.timeout or -1, NOW - (group.boost or 0) + offset - 1
  local at = #ready
  for number = 1, #ids do
    local ref = refs[number]
    if Bytes.of(ref) ~= false then
      return number - 1
    end
    local id, payload, made = ids[number], ARGV[group.first + number - 1], Making.next_made()
    local load, marks = #payload, NEW
    if load > Form.WITHIN then
      Bytes.write_beside(key('load', ref), payload)
      payload, marks = '', NEW_APART
    end
    local score = head + number
    local record = pack(HEAD, FORM, WAITING, marks, #fixed, load, 0, made, score, NOW, NOW, lease, timeout)
    Bytes.rewrite(ref, record .. fixed .. payload)
    if number == 1 then
      Queues.note(queue, made)
      Rest.stir()
      Rest.heed(lease)
      Hints.knock_queue(queue)
    end
    ready[at + 1], ready[at + 2], waiting[at + 1], waiting[at + 2] = text(score), id, text(made), id
    at = at + 2
  end
  return #ids
end

-- Start those jobs of a queue's line that come first, as far as they are plain; put into `leases` what their holder is
-- given, and return how many those are.
function Plain.start(queue, ids, owner, leases)
  if not Plain.in_queue(queue) or Front.of(queue) then
    return 0
  end
  local beginning, refs, holder = pair(queue, ''), {}, Lease.holder(owner)
  for number = 1, #ids do
    refs[number] = beginning .. ids[number]
  end
  Bytes.fetch(refs)
  local waiting, active = Index.gone(Queues.standing(queue, 'waiting')), Index.puts(Queues.standing(queue, 'active'))
  local held, until_when = Index.puts(key('held', owner.id)), Index.puts(key('leases'))
  local fence, apart, started, last_ends, last_text = Lease.next_fence(0), {}, 0, nil, nil
  for number = 1, #ids do
    local id, ref = ids[number], refs[number]
    local body = Bytes.of(ref)
    local form, state, marks = byte(body or '', 1, 3)
    if form ~= FORM or state ~= WAITING or (marks ~= NEW and marks ~= NEW_APART) or #body <= HEAD_SIZE then
      break
    end
    local _, _, _, fixed, load, _, made, score, run_at, created, lease, timeout = unfolded(HEAD, body)
    if run_at ~= created or not goes_on(sub(body, HEAD_SIZE + 1, HEAD_SIZE + fixed)) or Purse.is_empty() then
      break
    end
    local run_until = timeout ~= -1 and Lease.run_limit(NOW, lease, timeout)
    local ends = Lease.ends(lease, run_until)
    local record = pack(
      HEAD_AND_RUN, FORM, ACTIVE, marks + Form.RAN, fixed, load, 0, made, score, run_at, created, lease, timeout,
      1, 0, 0, 0, #holder, 0, fence, 0, fence, NOW, ends, run_until or -1, NOW, -1, -1, -1
    ) .. sub(body, HEAD_SIZE + 1) .. holder
    Bytes.rewrite(ref, record)
    local at = #leases
    leases[at + 1], leases[at + 2], leases[at + 3] = ref, record, ''
    if marks == NEW_APART then
      apart[#apart + 1] = at + 3
    end
    waiting[#waiting + 1] = id
    at = #active
    active[at + 1], active[at + 2] = text(made), id
    at = #held
    held[at + 1], held[at + 2] = NOW_TEXT, ref
    at = #until_when
    until_when[at + 1], until_when[at + 2] = ends == last_ends and last_text or text(ends), ref
    last_ends, last_text = ends, until_when[at + 1]
    started = number
    Purse.pay(Plain.STARTING + (load + #record) / 250)
  end
  if started > 0 then
    Rest.stir()
    Lease.note()
    -- Whoever claims on looks there.
    call('ZREM', key('ready', queue), unpack(ids, 1, started))
    for _, at in ipairs(apart) do
      leases[at] = call('GET', key('load', leases[at - 2])) or ''
    end
  end
  return started
end

-- What the completions of a group have in common, for `complete`; nil where its queue is no plain one. `group`: as
-- exchange is asked, {queue, ended, keep, ...}. It holds words of Index, so nothing may flush that amid the group: what
-- goes the long way there does so only to tell of a queue that is drained, and one that records this is no plain one.
function Plain.completing(group, owner)
  local queue = group.queue
  if not Plain.in_queue(queue) then
    return nil
  end
  Rest.stir()
  Hints.knock('events')
  local kept = group.keep and NOW + group.keep
  return {
    beginning = pair(queue, ''),
    topic = 'job:' .. pair(queue, ''),
    holder = Lease.holder(owner),
    ended = ARGV[group.ended],
    kept = kept,
    until_when = string.format('%d', kept or NOW),
    active = Index.gone(Queues.standing(queue, 'active')),
    held = Index.gone(key('held', owner.id)),
    leases = Index.gone(key('leases')),
    completed = Index.puts(Queues.standing(queue, 'completed')),
    over = Index.puts(kept and key('kept') or key('over', pair(queue, 'completed'))),
  }
end

-- Complete a plain job if this owner's run under this fence is the current one; return whether it was so. `event` and
-- `result` are bytes.
function Plain.complete(with, id, fence, event, result)
  local ref = with.beginning .. id
  local body = Bytes.of(ref)
  local form, state, marks = byte(body or '', 1, 3)
  if form ~= FORM or state ~= ACTIVE or (marks ~= RUNS and marks ~= RUNS_APART) or #body <= BOTH_SIZE then
    return false
  end
  local _, _, _, fixed, load, _, made, score, run_at, created, lease, timeout,
    starts, failures, stalls, releases, size, _, current, _, run_fence, _, _, _, started = unfolded(HEAD_AND_RUN, body)
  local before = BOTH_SIZE + fixed + (marks == RUNS and load or 0)
  if current ~= fence or sub(body, before + 1, before + size) ~= with.holder then
    return false
  end
  local ended, kept = with.ended, with.kept
  if #result > Form.RESULT_WITHIN then
    Bytes.write_beside(key('result', ref), result)
    result, marks = '', marks + Form.RESULT_APART
  else
    marks = marks + Form.RESULT
  end
  Bytes.rewrite(ref, pack(
    HEAD_AND_RUN, FORM, COMPLETED, marks, fixed, load, 0, made, score, run_at, created, lease, timeout,
    starts, failures, stalls, releases, size, #ended, fence, fence, run_fence, -1, -1, -1, started, NOW, NOW, kept or -1
  ) .. sub(body, BOTH_SIZE + 1, before + size) .. ended .. result)
  local active, held, leases = with.active, with.held, with.leases
  active[#active + 1], held[#held + 1], leases[#leases + 1] = id, ref, ref
  local completed, over = with.completed, with.over
  local at = #completed
  completed[at + 1], completed[at + 2] = text(made), id
  at = #over
  over[at + 1], over[at + 2] = with.until_when, kept and ref or id
  call('XADD', LOG, '0-*', 'e', event, 't', NOW_TEXT, 'j', ref)
  Hints.knock(with.topic .. id)
  return true
end
