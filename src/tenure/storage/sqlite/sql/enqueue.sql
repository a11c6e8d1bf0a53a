-- enqueue: stores each call once, as a new job or merged into an existing one. The rows of jobs hold all keys, except
-- keys with a time limit, which are rows of `window`.

-- name: remember
-- Inserts one row, or none if the queue knows the id. A known id belongs to a job, or to a call that was merged into a
-- job and is then looked up as that job's id. (The look-up costs almost nothing in VALUES, unlike in a SELECT with a
-- WHERE.)
-- Parameters: the columns as listed, queue and id twice each.
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
-- The same for several calls that have no merge key and no concurrency key, and differ only in the listed values.
-- Parameters: the columns as listed, calls (a list of id, headers, score, start and length of the payload in
-- `payloads`), payloads.
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
-- Deletes the jobs that the previous statement inserted; their seqs are consecutive.
-- Parameters: how many.
DELETE FROM job WHERE seq > (SELECT max(seq) FROM job) - ?;

-- name: go_on
-- The next job of an id continues from the fences of the previous one.
-- Parameters: fence, settled_fence, queue, id.
UPDATE job SET fence = ?, settled_fence = ? WHERE queue = ? AND id = ?;

-- name: stay
-- A debounced job keeps its creation time when a later call replaces its own.
-- Parameters: created, queue, id.
UPDATE job SET created = ? WHERE queue = ? AND id = ?;

-- name: holder
-- Returns the unfinished job that holds a key, the oldest if there are several, and whether it is too old to start.
-- Parameters: queue, merge_key, now.
SELECT seq, id, state <> 'active' AND expires_at <= :now
  FROM job INDEXED BY job_merge
 WHERE queue = :queue
   AND merge_key = :name
   AND gathered = 0
   AND finished IS NULL
 ORDER BY seq
 LIMIT 1;

-- name: queued_holder
-- The same for jobs that are not active.
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
-- The same for jobs that have never started, and have collected fewer calls than `most` and fewer bytes than `bytes`.
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
-- Records a call that was merged into a job.
-- Parameters: queue, the call's id, the job's id, its place, its framed arguments.
INSERT INTO call (queue, id, job, place, payload) VALUES (?, ?, ?, ?, ?);

-- name: answer_for
-- Records a later call of a debounced job.
-- Parameters: queue, the call's id, the job's id.
INSERT INTO call (queue, id, job, place)
SELECT :queue, :id, :job, coalesce(max(place), 0) + 1
  FROM call INDEXED BY call_of_job
 WHERE queue = :queue
   AND job = :job;

-- name: forget_calls
-- Deletes all but the latest calls of a job.
-- Parameters: queue, the job's id, how many are kept.
DELETE FROM call
 WHERE queue = :queue
   AND job = :job
   AND place <= (SELECT max(place) FROM call INDEXED BY call_of_job WHERE queue = :queue AND job = :job) - :kept;

-- name: gather
-- Adds one more call to a collecting job.
-- Parameters: the values as listed, seq.
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
-- Deletes a job that a later call replaces. It has never started, so it has neither runs nor a log.
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
-- A window that ends further ahead than its length began before the clock was set back.
-- Parameters: until, queue, name.
UPDATE window SET until = ? WHERE queue = ? AND name = ?;

-- name: count_in_window
-- Parameters: the job's id, queue, name.
UPDATE window SET jobs = jobs + 1, id = ? WHERE queue = ? AND name = ?;
