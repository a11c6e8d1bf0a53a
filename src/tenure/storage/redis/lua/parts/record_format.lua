-- requires: prelude
-- The binary form of a record: numbers at fixed places, then fields that seldom change.
-- docs/decisions/025-redis-records.md has the reasons.
--
--   head    always   form, state, marks; the lengths of fixed, payload and rare; the instants and numbers that every
--                    move reads
--   run     RAN      counters; the lengths of holder and ended; the instants of the run
--   fixed            msgpack: fields that seldom change after the job is made; the same bytes for all jobs of a call
--   payload          unless it is APART, in its own key
--   rare             msgpack: all other fields, if there are any
--   holder           msgpack of {owner, name, host, pid}: the owner of the last run
--   ended            msgpack of RunEnd, once that run is over
--   result  RESULT   unless it is RESULT_APART
--
-- An instant that is not set is NEVER. PLAIN: the job has no keys, rates or groups, no time limits except its lease and
-- its timeout, and no rare fields; see parts/plain_jobs.lua.
local RecordFormat = {}

RecordFormat.NUMBER = 2

RecordFormat.HEAD = '<BBBI4I4I4dddddd'
RecordFormat.RUN = '<I4I4I4I4I4I4dddddddddd'
-- The values of struct.size, so that scripts need not compute them; tests/storage/test_redis_records.py compares them.
RecordFormat.HEAD_SIZE, RecordFormat.RUN_SIZE = 63, 104
RecordFormat.NEVER = -1
RecordFormat.PLAIN, RecordFormat.RAN, RecordFormat.BEATEN, RecordFormat.BACK, RecordFormat.TRACED = 1, 2, 4, 8, 16
RecordFormat.RESULT, RecordFormat.PAYLOAD_APART, RecordFormat.RESULT_APART = 32, 64, 128

-- Up to how many bytes a payload, or a result, is in the record. Each move writes it again, but a key of its own costs
-- more.
RecordFormat.INLINE_PAYLOAD, RecordFormat.INLINE_RESULT = 512, 128

-- The numbers of the states that plain jobs can have; RecordCodec has all states.
RecordFormat.WAITING, RecordFormat.ACTIVE, RecordFormat.COMPLETED = 2, 3, 4
