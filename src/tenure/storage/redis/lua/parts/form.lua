-- requires: cell
-- The form of a record: numbers at fixed places, then what seldom or never changes. docs/why/records.md says why.
--
--   head    always   form, state, marks; three lengths: of what is fixed, of the payload, of what is rare; the instants
--                    and numbers that every move looks at
--   run     RAN      counters, two lengths: of who holds it and of how it ended; the instants of the run
--   fixed            msgpack: what a job is made with and seldom changed later, the same bytes for all jobs of a call
--   payload          unless it is APART, in a key of its own
--   rare             msgpack: all other fields, where there are any
--   holder           msgpack of {owner, name, host, pid}: who runs the last run, or ran it
--   ended            msgpack of RunEnd, once that run is over
--   result  RESULT   unless it is RESULT_APART
--
-- An instant that is none is NEVER. PLAIN says that nothing about the job is out of the ordinary: no keys, rates or groups
-- that it belongs to, no clocks but its lease and its time-out, and nothing rare; parts/plain.lua tells of such ones.
local Form = {}

Form.NUMBER = 2

Form.HEAD = '<BBBI4I4I4dddddd'
Form.RUN = '<I4I4I4I4I4I4dddddddddd'
-- As struct.size has them, which each script would have to ask anew; tests/storage/test_redis_records.py does.
Form.HEAD_SIZE, Form.RUN_SIZE = 63, 104
Form.NEVER = -1
Form.PLAIN, Form.RAN, Form.BEATEN, Form.BACK, Form.TRACED = 1, 2, 4, 8, 16
Form.RESULT, Form.APART, Form.RESULT_APART = 32, 64, 128

-- How many bytes of a payload, or of a result, lie in the record: each move writes them anew, but a key takes more.
Form.WITHIN, Form.RESULT_WITHIN = 512, 128

-- The numbers of the states that plain jobs are in; Folding has all.
Form.WAITING, Form.ACTIVE, Form.COMPLETED = 2, 3, 4
