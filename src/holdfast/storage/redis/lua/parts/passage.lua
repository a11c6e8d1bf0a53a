-- requires: cell, form, bytes, index, hints, front, rest, queues, lease, purse, plain
-- How plain jobs are started and completed; see parts/plain.lua.
local Passage = {}

Passage.STARTING, Passage.FINISHING = 28, 25

local pack, unfolded, byte, char, sub = struct.pack, struct.unpack, string.byte, string.char, string.sub
local FORM, HEAD, RUN, HEAD_SIZE = Form.NUMBER, Form.HEAD, Form.RUN, Form.HEAD_SIZE
local BOTH_SIZE = HEAD_SIZE + Form.RUN_SIZE
local WAITING, ACTIVE, COMPLETED = Form.WAITING, Form.ACTIVE, Form.COMPLETED
local NEW, NEW_APART = Form.PLAIN, Form.PLAIN + Form.APART
local RUNS, RUNS_APART = NEW + Form.RAN, NEW_APART + Form.RAN

-- What a move does not change is copied as it is: from the lengths on, and up to that of the holder. From there on stand how
-- long that and the end are, and the instants of the run.
local LENGTHS, LENGTHS_AT = '<I4I4I4d', 4
local HELD, HELD_AT, ENDED = '<I4I4ddddddd', HEAD_SIZE + 17, '<I4dddddddddd'

-- Numbers as text: a number that a command is called with becomes one for each call, and slowly.
local function text(number)
  return string.format('%d', number)
end

local NOW_TEXT = text(NOW)
local LOG = key('events')

-- Start those jobs of a queue's line that come first, as far as they are plain; put into `leases` what their holder is
-- given, and return how many those are. `quiet`: nobody has said anything of any queue or task, and the line is not fair.
function Passage.start(queue, ids, owner, leases, quiet)
  if not quiet and (not Plain.in_queue(queue) or Front.of(queue)) then
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
    if run_at ~= created or not Plain.goes_on(sub(body, HEAD_SIZE + 1, HEAD_SIZE + fixed), quiet) or Purse.is_empty() then
      break
    end
    local run_until = timeout ~= -1 and Lease.run_limit(NOW, lease, timeout)
    local ends = Lease.ends(lease, run_until)
    local run = pack(RUN, 1, 0, 0, 0, #holder, 0, fence, 0, fence, NOW, ends, run_until or -1, NOW, -1, -1, -1)
    local record = char(FORM, ACTIVE, marks + Form.RAN) .. sub(body, LENGTHS_AT, HEAD_SIZE) .. run
      .. sub(body, HEAD_SIZE + 1) .. holder
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
    Purse.pay(Passage.STARTING + (load + #record) / 250)
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
-- `quiet`: as for `start`.
function Passage.completing(group, owner, quiet)
  local queue = group.queue
  if not quiet and not Plain.in_queue(queue) then
    return nil
  end
  Rest.stir()
  Hints.knock('events')
  local kept = group.keep and NOW + group.keep
  return {
    beginning = pair(queue, ''),
    channel = Hints.channel('job:' .. pair(queue, '')),
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
function Passage.complete(with, id, fence, event, result)
  local ref = with.beginning .. id
  local body = Bytes.of(ref)
  local form, state, marks = byte(body or '', 1, 3)
  if form ~= FORM or state ~= ACTIVE or (marks ~= RUNS and marks ~= RUNS_APART) or #body <= BOTH_SIZE then
    return false
  end
  local fixed, load, _, made = unfolded(LENGTHS, body, LENGTHS_AT)
  local size, _, current, _, run_fence, _, _, _, started = unfolded(HELD, body, HELD_AT)
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
  Bytes.rewrite(ref, char(FORM, COMPLETED, marks) .. sub(body, LENGTHS_AT, HELD_AT + 3)
    .. pack(ENDED, #ended, fence, fence, run_fence, -1, -1, -1, started, NOW, NOW, kept or -1)
    .. sub(body, BOTH_SIZE + 1, before + size) .. ended .. result)
  local active, held, leases = with.active, with.held, with.leases
  active[#active + 1], held[#held + 1], leases[#leases + 1] = id, ref, ref
  local completed, over = with.completed, with.over
  local at = #completed
  completed[at + 1], completed[at + 2] = text(made), id
  at = #over
  over[at + 1], over[at + 2] = with.until_when, kept and ref or id
  call('XADD', LOG, '0-*', 'e', event, 't', NOW_TEXT, 'j', ref)
  Hints.put(with.channel .. id)
  return true
end

-- Write down what was moved.
function Passage.write_down()
  Bytes.flush()
  Index.flush()
end
