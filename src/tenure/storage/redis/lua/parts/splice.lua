-- requires: cell, form
-- A plain job's record, from its bytes in one state to those in the next (parts/form.lua). What a move does not change is
-- copied as it is: the head from its lengths on, and what lies between the run and how that ended.
local Splice = {}

local pack, unfolded, byte, char, sub = struct.pack, struct.unpack, string.byte, string.char, string.sub
local FORM, WAITING, ACTIVE, COMPLETED = Form.NUMBER, Form.WAITING, Form.ACTIVE, Form.COMPLETED
local HEAD_SIZE, RUN, NEVER = Form.HEAD_SIZE, Form.RUN, Form.NEVER
local BOTH_SIZE = HEAD_SIZE + Form.RUN_SIZE
local NEW, NEW_APART = Form.PLAIN, Form.PLAIN + Form.APART
local RUNS, RUNS_APART = NEW + Form.RAN, NEW_APART + Form.RAN

-- The head from its lengths on: up to the number that the job was made under, and all of it.
local LENGTHS_AT, LENGTHS, NUMBERS = 4, '<I4I4I4d', '<I4I4I4dddddd'

-- A run: how many bytes of it stay as they are when it is over, the counters and the length of the holder; that length and
-- what follows, until it is over; and what follows then.
local STAYING, GOING_AT, GOING, OVER = 20, 17, '<I4I4ddddddd', '<I4dddddddddd'

-- Of a plain job that waits for its first run its marks, what is fixed, the length of its payload, the number it was made
-- under, run_at, created, lease and timeout, in this order; nothing of any other.
function Splice.waiting(body)
  local form, state, marks = byte(body, 1, 3)
  if form ~= FORM or state ~= WAITING or (marks ~= NEW and marks ~= NEW_APART) or #body <= HEAD_SIZE then
    return nil
  end
  local fixed, load, _, made, _, run_at, created, lease, timeout = unfolded(NUMBERS, body, LENGTHS_AT)
  return marks, sub(body, HEAD_SIZE + 1, HEAD_SIZE + fixed), load, made, run_at, created, lease, timeout
end

-- The numbers of a first run that begins now.
function Splice.first_run(holder, fence, ends, run_until)
  return pack(RUN, 1, 0, 0, 0, #holder, 0, fence, 0, fence, NOW, ends, run_until or NEVER, NOW, NEVER, NEVER, NEVER)
end

-- The record of one that waited, once it is started.
function Splice.started(body, marks, run, holder)
  return char(FORM, ACTIVE, marks + Form.RAN) .. sub(body, LENGTHS_AT, HEAD_SIZE) .. run .. sub(body, HEAD_SIZE + 1)
    .. holder
end

-- Of a plain job that is active its marks, the numbers of its run as they lie there, the number it was made under, and after
-- how many bytes its holder stands; nothing of any other.
function Splice.active(body)
  local form, state, marks = byte(body, 1, 3)
  if form ~= FORM or state ~= ACTIVE or (marks ~= RUNS and marks ~= RUNS_APART) or #body <= BOTH_SIZE then
    return nil
  end
  local fixed, load, _, made = unfolded(LENGTHS, body, LENGTHS_AT)
  return marks, sub(body, HEAD_SIZE + 1, BOTH_SIZE), made, BOTH_SIZE + fixed + (marks == RUNS and load or 0)
end

-- Of the numbers of a run its fence and the length of its holder; and what they are once it is over, which so many bytes
-- tell how.
function Splice.run_over(run, size, kept)
  local holder, _, fence, _, run_fence, _, _, _, started = unfolded(GOING, run, GOING_AT)
  return fence, holder, sub(run, 1, STAYING)
    .. pack(OVER, size, fence, fence, run_fence, NEVER, NEVER, NEVER, started, NOW, NOW, kept or NEVER)
end

-- The record of one that was active, once it is completed. `upto`: where its holder ends; `result`: nil if it lies apart.
function Splice.completed(body, marks, run, upto, ended, result)
  return char(FORM, COMPLETED, marks + (result and Form.RESULT or Form.RESULT_APART)) .. sub(body, LENGTHS_AT, HEAD_SIZE)
    .. run .. sub(body, BOTH_SIZE + 1, upto) .. ended .. (result or '')
end
