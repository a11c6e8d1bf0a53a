-- requires: cell
-- The binary form of a record: numbers at fixed places, then fields that seldom change. docs/decisions/025-redis-records.md has the
-- reasons.
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
-- its timeout, and no rare fields; see parts/plain.lua.
local Form = {}

Form.NUMBER = 2

Form.HEAD = '<BBBI4I4I4dddddd'
Form.RUN = '<I4I4I4I4I4I4dddddddddd'
-- The values of struct.size, so that scripts need not compute them; tests/storage/test_redis_records.py compares them.
Form.HEAD_SIZE, Form.RUN_SIZE = 63, 104
Form.NEVER = -1
Form.PLAIN, Form.RAN, Form.BEATEN, Form.BACK, Form.TRACED = 1, 2, 4, 8, 16
Form.RESULT, Form.APART, Form.RESULT_APART = 32, 64, 128

-- Up to how many bytes a payload, or a result, is in the record. Each move writes it again, but a key of its own costs
-- more.
Form.WITHIN, Form.RESULT_WITHIN = 512, 128

-- The numbers of the states that plain jobs can have; Folding has all states.
Form.WAITING, Form.ACTIVE, Form.COMPLETED = 2, 3, 4
