#!lua flags=no-writes
-- requires: record
-- get: jobs with their runs and logs. A call that another job has taken in is answered by that.
--
-- Request: {refs}. Answer: for each false or {ref, record, payload, result, runs, log, trace}; runs are those
-- before the last, which the record has (parts/form.lua); log is a list of msgpack; and where the handler of the last run
-- is or false. It may end before the last, where it has become long: whoever asked asks on.
local ITEMS, BYTES = 2000, 1048576

local items, bytes = 0, 0

local function read(ref)
  local queue, id = parts_of(ref)
  local answering = call('HGET', key('answers', queue), id)
  local job = Record.of(queue, answering or id)
  if not job or Record.past(job) then
    return false
  end
  ref = job.ref
  local payload, result = Record.payload_apart(job), Record.result_apart(job)
  local runs = job.starts > 1 and call('LRANGE', key('runs', ref), 0, -1) or {}
  local log = call('LRANGE', key('log', ref), 0, -1)
  items = items + #runs + #log
  local trace = job.state == 'active' and Record.trace_of(job)
  bytes = bytes + #payload + #(job.payload or '') + (result and #result or 0) + (trace and #trace or 0)
  return { ref, Record.packed(job), payload, result, runs, log, trace or false }
end

local found = {}
for number, ref in ipairs(ASKED.refs) do
  found[number] = read(ref)
  items = items + 5
  if items > ITEMS or bytes > BYTES then
    break
  end
end
return found
