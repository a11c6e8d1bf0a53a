-- enqueue: stores each call once, as a new job or merged into an existing one. The rows of jobs hold all keys, except
-- keys with a time limit, which are rows of `tenure_window`.

-- name: insert
-- Inserts one row, or none if the queue knows the id. A known id belongs to a job, or to a call that was merged into a
-- job and is then looked up as that job's id. (The look-up costs almost nothing in VALUES, unlike in a SELECT with a
-- WHERE.)
INSERT INTO tenure_job (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, fair_key, weight, run_at, ttl, expires_at,
    timeout, deadline, heartbeat_timeout, keys, rates, merge_key, merge, collected, collected_bytes, lease, max_stalls,
    start_grace, renewed, pinned, policy, created, schedule, tick, parent, payload
)
VALUES (
    :queue, coalesce((SELECT job FROM tenure_call WHERE queue = :queue AND id = :id), :id),
    :task, :state, :headers, :tags, :score, :priority, :boost, :lifo, :fair_key, :weight, :run_at, :ttl, :expires_at,
    :timeout, :deadline, :heartbeat_timeout, :keys, :rates, :merge_key, :merge, :collected, :collected_bytes, :lease,
    :max_stalls, :start_grace, :renewed, :pinned, :policy, :now, :schedule, :tick, :parent, :payload
)
ON CONFLICT (queue, id) DO NOTHING;

-- name: insert_alike
-- The same for several calls that have no merge key and differ only in the listed values.
-- Parameters: the columns as listed, calls (a list of id, headers, score, start and length of the payload in
-- `payloads`), payloads.
INSERT INTO tenure_job (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, weight, run_at, ttl, expires_at, timeout,
    deadline, heartbeat_timeout, keys, rates, lease, max_stalls, start_grace, renewed, pinned, policy, created,
    schedule, tick, parent, payload
)
SELECT :queue,
       coalesce(
              (SELECT job FROM tenure_call AS call WHERE call.queue = :queue AND call.id = listed.value ->> 0),
              listed.value ->> 0
       ),
       :task, :state, listed.value ->> 1, :tags, listed.value ->> 2, :priority, :boost, :lifo, :weight, :run_at, :ttl,
       :expires_at, :timeout, :deadline, :heartbeat_timeout, :keys, :rates, :lease, :max_stalls, :start_grace, :renewed,
       :pinned, :policy, :now, :schedule, :tick, :parent, substr(:payloads, listed.value ->> 3, listed.value ->> 4)
  FROM json_each(:calls) AS listed
 WHERE TRUE
ON CONFLICT (queue, id) DO NOTHING;

-- name: insert_similar
-- The same for several calls that also differ in their start times and keys. No listed merge key is held. (For calls
-- without such differences the longer list would take a fifth more time.)
-- Parameters: the columns as listed, calls (a list of id, headers, score, start and length of the payload in
-- `payloads`, state, run_at, keys, merge_key, merge), payloads.
INSERT INTO tenure_job (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, weight, run_at, ttl, expires_at, timeout,
    deadline, heartbeat_timeout, keys, rates, merge_key, merge, lease, max_stalls, start_grace, renewed, pinned, policy,
    created, schedule, tick, parent, payload
)
SELECT :queue,
       coalesce(
              (SELECT job FROM tenure_call AS call WHERE call.queue = :queue AND call.id = listed.value ->> 0),
              listed.value ->> 0
       ),
       :task, listed.value ->> 5, listed.value ->> 1, :tags, listed.value ->> 2, :priority, :boost, :lifo, :weight,
       listed.value ->> 6, :ttl, :expires_at, :timeout, :deadline, :heartbeat_timeout, listed.value ->> 7, :rates,
       listed.value ->> 8, listed.value ->> 9, :lease, :max_stalls, :start_grace, :renewed, :pinned, :policy, :now,
       :schedule, :tick, :parent, substr(:payloads, listed.value ->> 3, listed.value ->> 4)
  FROM json_each(:calls) AS listed
 WHERE TRUE
ON CONFLICT (queue, id) DO NOTHING;

-- name: delete_last
-- Deletes the jobs that the previous statement inserted; their seqs are consecutive.
DELETE FROM tenure_job WHERE seq > (SELECT max(seq) FROM tenure_job NOT INDEXED) - :jobs;

-- name: set_fences
-- The next job of an id continues from the fences of the previous one.
UPDATE tenure_job SET fence = :fence, settled_fence = :settled_fence WHERE queue = :queue AND id = :id;

-- name: set_created
-- A debounced job keeps its creation time when a later call replaces its own.
UPDATE tenure_job SET created = :created WHERE queue = :queue AND id = :id;

-- name: holder
-- Returns the unfinished job that holds a key, the oldest if there are several, and whether it is too old to start.
SELECT seq, id, state <> 'active' AND expires_at <= :now
  FROM tenure_job INDEXED BY tenure_job_merge
 WHERE queue = :queue
   AND merge_key = :name
   AND collected = 0
   AND finished IS NULL
 ORDER BY seq
 LIMIT 1;

-- name: has_holder
-- Returns whether an unfinished job, in any state, holds one of several keys.
-- `names`: a list.
SELECT EXISTS (
              SELECT 1
                FROM json_each(:names) AS listed
               CROSS JOIN tenure_job INDEXED BY tenure_job_merge
                  ON tenure_job.queue = :queue
                 AND tenure_job.merge_key = listed.value
                 AND tenure_job.finished IS NULL
       );

-- name: queued_holder
-- The same for jobs that are not active.
SELECT seq, id, expires_at <= :now
  FROM tenure_job INDEXED BY tenure_job_merge
 WHERE queue = :queue
   AND merge_key = :name
   AND collected = 0
   AND finished IS NULL
   AND state IN ('delayed', 'waiting')
 ORDER BY seq
 LIMIT 1;

-- name: unstarted_holder
-- The same for jobs that have never started, and have collected fewer calls than `most` and fewer bytes than `bytes`.
SELECT seq, id, expires_at <= :now
  FROM tenure_job INDEXED BY tenure_job_merge
 WHERE queue = :queue
   AND merge_key = :name
   AND collected < :most
   AND collected_bytes < :bytes
   AND finished IS NULL
   AND state IN ('delayed', 'waiting')
   AND starts = 0
 ORDER BY seq
 LIMIT 1;

-- name: insert_call
-- Records a call that was merged into a job.
-- `payload`: its framed arguments.
INSERT INTO tenure_call (queue, id, job, place, payload) VALUES (:queue, :id, :job, :place, :payload);

-- name: insert_replaced_call
-- Records a later call of a debounced job.
INSERT INTO tenure_call (queue, id, job, place)
SELECT :queue, :id, :job, coalesce(max(place), 0) + 1
  FROM tenure_call INDEXED BY tenure_call_of_job
 WHERE queue = :queue
   AND job = :job;

-- name: trim_calls
-- Deletes all but the latest calls of a job.
DELETE FROM tenure_call INDEXED BY tenure_call_of_job
 WHERE queue = :queue
   AND job = :job
   AND place <= (
              SELECT max(place) FROM tenure_call INDEXED BY tenure_call_of_job WHERE queue = :queue AND job = :job
       ) - :kept;

-- name: collect
-- Adds one more call to a collecting job.
UPDATE tenure_job
   SET state = :state,
       parked_under = :parked_under,
       run_at = :run_at,
       score = :score,
       collected = :collected,
       collected_bytes = :collected_bytes,
       merge = :merge,
       ttl = :ttl,
       expires_at = :expires_at,
       created = :created
 WHERE seq = :seq;

-- name: window
SELECT until, jobs, id FROM tenure_window WHERE queue = :queue AND name = :name;

-- name: begin_window
INSERT INTO tenure_window (queue, name, until, jobs, id) VALUES (:queue, :name, :until, 1, :id)
ON CONFLICT (queue, name) DO UPDATE
   SET until = excluded.until,
       jobs = excluded.jobs,
       id = excluded.id;

-- name: shorten_window
-- A window that ends further ahead than its length began before the clock was set back.
UPDATE tenure_window SET until = :until WHERE queue = :queue AND name = :name;

-- name: count_in_window
UPDATE tenure_window SET jobs = jobs + 1, id = :id WHERE queue = :queue AND name = :name;
