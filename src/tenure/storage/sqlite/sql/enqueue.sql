-- enqueue: remembers each call once, as a job of its own, or by one that is there. Every key is held by the rows of jobs,
-- but for those that are held for a time: these are rows of `window`.

-- name: remember
-- Parameters: the columns as listed, queue and id twice each. Changes one row, or none where the queue knows the id: a
-- job's own, or that of a call which a job has taken in, and which stands for that job's. (In VALUES, and not in a SELECT
-- with a WHERE, the look for it costs next to nothing.)
INSERT INTO job (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, fair_key, weight, run_at, ttl, expires_at,
    timeout, deadline, heartbeat_timeout, keys, rates, merge_key, merge, gathered, gathered_bytes, lease, max_stalls,
    start_grace, renewed, pinned, policy, created, schedule, tick, parent, payload
)
VALUES (
    ?, coalesce((SELECT job FROM call WHERE queue = ? AND id = ?), ?),
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
)
ON CONFLICT (queue, id) DO NOTHING;

-- name: remember_alike
-- The same of calls that come to no other job and hold no key, and differ in nothing but what is listed. Parameters: the
-- columns as listed, calls (a list of id, headers, score, where in `payloads` the payload begins and how long it is),
-- payloads.
INSERT INTO job (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, weight, run_at, ttl, expires_at, timeout,
    deadline, heartbeat_timeout, rates, lease, max_stalls, start_grace, renewed, pinned, policy, created, schedule,
    tick, parent, payload
)
SELECT :queue,
       coalesce((SELECT job FROM call WHERE call.queue = :queue AND call.id = asked.value ->> 0), asked.value ->> 0),
       :task, :state, asked.value ->> 1, :tags, asked.value ->> 2, :priority, :boost, :lifo, :weight, :run_at, :ttl,
       :expires_at, :timeout, :deadline, :heartbeat_timeout, :rates, :lease, :max_stalls, :start_grace, :renewed,
       :pinned, :policy, :now, :schedule, :tick, :parent, substr(:payloads, asked.value ->> 3, asked.value ->> 4)
  FROM json_each(:calls) AS asked
 WHERE TRUE
ON CONFLICT (queue, id) DO NOTHING;

-- name: take_back
-- Takes out jobs again that were just put down, one behind the other. Parameters: how many.
DELETE FROM job WHERE seq > (SELECT max(seq) FROM job) - ?;

-- name: go_on
-- An id's next job goes on from the fences of the one before it. Parameters: fence, settled_fence, queue, id.
UPDATE job SET fence = ?, settled_fence = ? WHERE queue = ? AND id = ?;

-- name: stay
-- A job that a later call was put in the place of is still the one it was. Parameters: created, queue, id.
UPDATE job SET created = ? WHERE queue = ? AND id = ?;

-- name: holder
-- The unfinished job that holds a key, the eldest of several; and whether it is too old to start. Parameters: queue,
-- merge_key, now.
SELECT seq, id, state <> 'active' AND expires_at <= :now
  FROM job INDEXED BY job_merge
 WHERE queue = :queue
   AND merge_key = :name
   AND gathered = 0
   AND finished IS NULL
 ORDER BY seq
 LIMIT 1;

-- name: queued_holder
-- The same of those that are not at work.
SELECT seq, id, expires_at <= :now
  FROM job INDEXED BY job_merge
 WHERE queue = :queue
   AND merge_key = :name
   AND gathered = 0
   AND finished IS NULL
   AND state IN ('delayed', 'waiting')
 ORDER BY seq
 LIMIT 1;

-- name: yet_to_start
-- The same of those that have never started, and gathered fewer calls than `most`, and fewer bytes than `bytes`.
SELECT seq, id, expires_at <= :now
  FROM job INDEXED BY job_merge
 WHERE queue = :queue
   AND merge_key = :name
   AND gathered < :most
   AND gathered_bytes < :bytes
   AND finished IS NULL
   AND state IN ('delayed', 'waiting')
   AND starts = 0
 ORDER BY seq
 LIMIT 1;

-- name: take_in
-- A job answers for a call. Parameters: queue, the call's id, the job's, its place, its arguments in a frame.
INSERT INTO call (queue, id, job, place, payload) VALUES (?, ?, ?, ?, ?);

-- name: answer_for
-- A debounced job answers for a later call. Parameters: queue, the call's id, the job's.
INSERT INTO call (queue, id, job, place)
SELECT :queue, :id, :job, coalesce(max(place), 0) + 1
  FROM call INDEXED BY call_of_job
 WHERE queue = :queue
   AND job = :job;

-- name: forget_calls
-- It answers for the latest calls only. Parameters: queue, the job's id, how many are kept.
DELETE FROM call
 WHERE queue = :queue
   AND job = :job
   AND place <= (SELECT max(place) FROM call INDEXED BY call_of_job WHERE queue = :queue AND job = :job) - :kept;

-- name: gather
-- A job has gathered one more call. Parameters: the values as listed, seq.
UPDATE job
   SET state = ?,
       parked_under = ?,
       run_at = ?,
       score = ?,
       gathered = ?,
       gathered_bytes = ?,
       merge = ?,
       ttl = ?,
       expires_at = ?,
       created = ?
 WHERE seq = ?;

-- name: give_up
-- Takes a job out, for a later call to be put in its place; it has never started, so it has neither runs nor a log.
DELETE FROM job WHERE seq = ?;

-- name: window
-- Parameters: queue, name.
SELECT until, jobs, id FROM window WHERE queue = ? AND name = ?;

-- name: begin_window
-- Parameters: queue, name, until, the job's id.
INSERT INTO window (queue, name, until, jobs, id) VALUES (?, ?, ?, 1, ?)
ON CONFLICT (queue, name) DO UPDATE
   SET until = excluded.until,
       jobs = excluded.jobs,
       id = excluded.id;

-- name: shorten_window
-- One that ends further ahead than it is long began before the clock was set back. Parameters: until, queue, name.
UPDATE window SET until = ? WHERE queue = ? AND name = ?;

-- name: count_in_window
-- Parameters: the job's id, queue, name.
UPDATE window SET jobs = jobs + 1, id = ? WHERE queue = ? AND name = ?;
