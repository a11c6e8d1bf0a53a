-- requires: prelude, record_format
-- Makes a plain job's next record directly from the bytes of the current one (parts/record_format.lua). Parts that do
-- not change are copied: the head from its lengths on, and the bytes between the run and its end.
local FastRecords = {}

local pack, unfolded, byte, char, sub = struct.pack, struct.unpack, string.byte, string.char, string.sub
local FORM = RecordFormat.NUMBER
local WAITING, ACTIVE, COMPLETED = RecordFormat.WAITING, RecordFormat.ACTIVE, RecordFormat.COMPLETED
local HEAD_SIZE, RUN, NEVER = RecordFormat.HEAD_SIZE, RecordFormat.RUN, RecordFormat.NEVER
local BOTH_SIZE = HEAD_SIZE + RecordFormat.RUN_SIZE
local NEW, NEW_APART = RecordFormat.PLAIN, RecordFormat.PLAIN + RecordFormat.PAYLOAD_APART
local RUNS, RUNS_APART = NEW + RecordFormat.RAN, NEW_APART + RecordFormat.RAN

-- The head from its lengths on: LENGTHS up to the sequence number, NUMBERS all of it.
local LENGTHS_AT, LENGTHS, NUMBERS = 4, '<I4I4I4d', '<I4I4I4dddddd'

-- A run. STAYING: how many bytes stay unchanged when it ends, which are the counters and the length of the holder.
-- GOING: the fields from that length on while it runs. OVER: the fields after that length once it is over.
local STAYING, GOING_AT, GOING, OVER = 20, 17, '<I4I4ddddddd', '<I4dddddddddd'

-- If a record belongs to a plain job that waits for its first run, return its marks, its fixed part, the length of its
-- payload, its sequence number, run_at, created, lease and timeout; else nil.
function FastRecords.read_waiting(body)
  local form, state, marks = byte(body, 1, 3)
  if form ~= FORM or state ~= WAITING or (marks ~= NEW and marks ~= NEW_APART) or #body <= HEAD_SIZE then
    return nil
  end
  local fixed, load, _, made, _, run_at, created, lease, timeout = unfolded(NUMBERS, body, LENGTHS_AT)
  return marks, sub(body, HEAD_SIZE + 1, HEAD_SIZE + fixed), load, made, run_at, created, lease, timeout
end

-- The numbers of a first run that begins now.
function FastRecords.first_run(holder, fence, ends, run_until)
  return pack(RUN, 1, 0, 0, 0, #holder, 0, fence, 0, fence, NOW, ends, run_until or NEVER, NOW, NEVER, NEVER, NEVER)
end

-- The record of a waiting job after its start.
function FastRecords.started(body, marks, run, holder)
  return char(FORM, ACTIVE, marks + RecordFormat.RAN) .. sub(body, LENGTHS_AT, HEAD_SIZE) .. run
    .. sub(body, HEAD_SIZE + 1)
    .. holder
end

-- If a record belongs to a plain active job, return its marks, the bytes of its run, its sequence number, and the number of
-- bytes before its holder; else nil.
function FastRecords.read_active(body)
  local form, state, marks = byte(body, 1, 3)
  if form ~= FORM or state ~= ACTIVE or (marks ~= RUNS and marks ~= RUNS_APART) or #body <= BOTH_SIZE then
    return nil
  end
  local fixed, load, _, made = unfolded(LENGTHS, body, LENGTHS_AT)
  return marks, sub(body, HEAD_SIZE + 1, BOTH_SIZE), made, BOTH_SIZE + fixed + (marks == RUNS and load or 0)
end

-- From the bytes of a run, return its fence, the length of its holder, and the bytes of the same run once it is over.
-- `size`: the length of `ended` in the new record.
function FastRecords.end_run(run, size, kept)
  local holder, _, fence, _, run_fence, _, _, _, started = unfolded(GOING, run, GOING_AT)
  return fence, holder, sub(run, 1, STAYING)
    .. pack(OVER, size, fence, fence, run_fence, NEVER, NEVER, NEVER, started, NOW, NOW, kept or NEVER)
end

-- The record of an active job after its completion. `upto`: where its holder ends. `result`: nil if it has its own key.
function FastRecords.completed(body, marks, run, upto, ended, result)
  marks = marks + (result and RecordFormat.RESULT or RecordFormat.RESULT_APART)
  return char(FORM, COMPLETED, marks) .. sub(body, LENGTHS_AT, HEAD_SIZE)
    .. run .. sub(body, BOTH_SIZE + 1, upto) .. ended .. (result or '')
end
