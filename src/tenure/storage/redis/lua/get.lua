#!lua flags=no-writes
-- requires: record
-- get: return jobs with their runs and logs. For a call that was merged into another job, return that job.
--
-- Request: {refs}. Answer: for each ref false, or {ref, record, payload, result, runs, log, trace}. `runs`: the earlier
-- runs; the record holds the last one (parts/record_format.lua). `log`: a list of msgpack. `trace`: where the handler
-- of the current run is, or false. A long answer ends before the last ref; the caller asks again for the rest.
local ITEMS, BYTES = 2000, 1048576

local items, bytes = 0, 0

local function read(ref)
  local queue, id = parts_of(ref)
  local answering = call('HGET', key('answers', queue), id)
  local job = Record.get_in(queue, answering or id)
  if not job or Record.is_over(job) then
    return false
  end
  ref = job.ref
  local payload, result = Record.read_separate_payload(job), Record.read_separate_result(job)
  local runs = job.starts > 1 and call('LRANGE', key('runs', ref), 0, -1) or {}
  local log = call('LRANGE', key('log', ref), 0, -1)
  items = items + #runs + #log
  local trace = job.state == 'active' and Record.read_trace(job)
  bytes = bytes + #payload + #(job.payload or '') + (result and #result or 0) + (trace and #trace or 0)
  return { ref, Record.encoded_with_data(job), payload, result, runs, log, trace or false }
end

local found = {}
for number, ref in ipairs(REQUEST.refs) do
  found[number] = read(ref)
  items = items + 5
  if items > ITEMS or bytes > BYTES then
    break
  end
end
return found
