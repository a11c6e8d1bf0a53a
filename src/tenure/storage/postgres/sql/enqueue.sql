-- enqueue: stores each call once, as a new job or merged into an existing one. The rows of jobs hold all keys, except
-- keys with a time limit, which are rows of `window`.

-- name: insert
-- Inserts one row, or none if the queue knows the id. A known id belongs to a job, or to a call that was merged into a
-- job and is then looked up as that job's id.
INSERT INTO job_live (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, fair_key, weight, run_at, ttl, expires_at,
    timeout, deadline, heartbeat_timeout, keys, rates, merge_key, merge, collected, collected_bytes, lease, max_stalls,
    start_grace, renewed, pinned, policy, created, schedule, tick, parent, payload
)
SELECT :queue, known.id, :task, :state, :headers, :tags, :score, :priority, :boost, :lifo, :fair_key, :weight, :run_at,
       :ttl::bigint, :expires_at::bigint, :timeout::bigint, :deadline::bigint, :heartbeat_timeout::bigint, :keys, :rates,
       :merge_key, :merge, :collected, :collected_bytes, :lease, :max_stalls, :start_grace, :renewed, :pinned, :policy,
       :now, :schedule, :tick::bigint, :parent, :payload
  FROM (SELECT coalesce((SELECT job FROM call WHERE queue = :queue AND id = :id), :id) AS id) AS known
 WHERE NOT has_ended(:queue, known.id)
ON CONFLICT (queue, id) DO NOTHING;

-- name: insert_alike
-- The same for several calls that have no merge key and differ only in the listed values.
-- Parameters: the columns as listed, calls (a list of id, headers, score, start and length of the payload in
-- `payloads`), payloads.
INSERT INTO job_live (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, weight, run_at, ttl, expires_at, timeout,
    deadline, heartbeat_timeout, keys, rates, lease, max_stalls, start_grace, renewed, pinned, policy, created,
    schedule, tick, parent, payload
)
SELECT :queue, known.id, :task, :state, known.headers, :tags, known.score, :priority, :boost, :lifo, :weight, :run_at,
       :ttl::bigint, :expires_at::bigint, :timeout::bigint, :deadline::bigint, :heartbeat_timeout::bigint, :keys, :rates,
       :lease, :max_stalls, :start_grace, :renewed, :pinned, :policy, :now, :schedule, :tick::bigint, :parent,
       substr(:payloads, known.start, known.length)
  FROM (
       SELECT coalesce((SELECT job FROM call WHERE call.queue = :queue AND call.id = value ->> 0), value ->> 0) AS id,
              value ->> 1 AS headers,
              (value ->> 2)::bigint AS score,
              (value ->> 3)::integer AS start,
              (value ->> 4)::integer AS length
         FROM jsonb_array_elements(:calls::jsonb) AS listed (value)
  ) AS known
 WHERE NOT has_ended(:queue, known.id)
ON CONFLICT (queue, id) DO NOTHING;

-- name: insert_similar
-- The same for several calls that also differ in their start times and keys. No listed merge key is held.
-- Parameters: the columns as listed, calls (a list of id, headers, score, start and length of the payload in
-- `payloads`, state, run_at, keys, merge_key, merge), payloads.
INSERT INTO job_live (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, weight, run_at, ttl, expires_at, timeout,
    deadline, heartbeat_timeout, keys, rates, merge_key, merge, lease, max_stalls, start_grace, renewed, pinned, policy,
    created, schedule, tick, parent, payload
)
SELECT :queue, known.id, :task, known.state, known.headers, :tags, known.score, :priority, :boost, :lifo, :weight,
       known.run_at, :ttl::bigint, :expires_at::bigint, :timeout::bigint, :deadline::bigint, :heartbeat_timeout::bigint,
       known.keys, :rates, known.merge_key, known.merge, :lease, :max_stalls, :start_grace, :renewed, :pinned, :policy,
       :now, :schedule, :tick::bigint, :parent, substr(:payloads, known.start, known.length)
  FROM (
       SELECT coalesce((SELECT job FROM call WHERE call.queue = :queue AND call.id = value ->> 0), value ->> 0) AS id,
              value ->> 1 AS headers,
              (value ->> 2)::bigint AS score,
              (value ->> 3)::integer AS start,
              (value ->> 4)::integer AS length,
              value ->> 5 AS state,
              (value ->> 6)::bigint AS run_at,
              value ->> 7 AS keys,
              value ->> 8 AS merge_key,
              value ->> 9 AS merge
         FROM jsonb_array_elements(:calls::jsonb) AS listed (value)
  ) AS known
 WHERE NOT has_ended(:queue, known.id)
ON CONFLICT (queue, id) DO NOTHING;

-- name: delete_last
-- Deletes the jobs that the previous statement inserted: no other job has a higher seq.
DELETE FROM job_live WHERE seq IN (SELECT seq FROM job_live ORDER BY seq DESC LIMIT :jobs);

-- name: set_fences
-- The next job of an id continues from the fences of the previous one.
UPDATE job_live SET fence = :fence, settled_fence = :settled_fence WHERE queue = :queue AND id = :id;

-- name: set_created
-- A debounced job keeps its creation time when a later call replaces its own.
UPDATE job_live SET created = :created WHERE queue = :queue AND id = :id;

-- name: holder
-- Returns the unfinished job that holds a key, the oldest if there are several, and whether it is too old to start.
SELECT seq, id, state <> 'active' AND expires_at <= :now
  FROM job_live
 WHERE queue = :queue
   AND merge_key = :name
   AND collected = 0
 ORDER BY seq
 LIMIT 1;

-- name: has_holder
-- Returns whether an unfinished job, in any state, holds one of several keys.
-- `names`: a list.
SELECT EXISTS (
              SELECT 1
                FROM jsonb_array_elements_text(:names::jsonb) AS listed (name)
                JOIN job_live
                  ON job_live.queue = :queue
                 AND job_live.merge_key = listed.name
       );

-- name: queued_holder
-- The same for jobs that are not active.
SELECT seq, id, expires_at <= :now
  FROM job_live
 WHERE queue = :queue
   AND merge_key = :name
   AND collected = 0
   AND state IN ('delayed', 'waiting')
 ORDER BY seq
 LIMIT 1;

-- name: unstarted_holder
-- The same for jobs that have never started, and have collected fewer calls than `most` and fewer bytes than `bytes`.
SELECT seq, id, expires_at <= :now
  FROM job_live
 WHERE queue = :queue
   AND merge_key = :name
   AND collected < :most
   AND collected_bytes < :bytes
   AND state IN ('delayed', 'waiting')
   AND starts = 0
 ORDER BY seq
 LIMIT 1;

-- name: insert_call
-- Records a call that was merged into a job.
-- `payload`: its framed arguments.
INSERT INTO call (queue, id, job, place, payload) VALUES (:queue, :id, :job, :place, :payload);

-- name: insert_replaced_call
-- Records a later call of a debounced job.
INSERT INTO call (queue, id, job, place)
SELECT :queue, :id, :job, coalesce(max(place), 0) + 1
  FROM call
 WHERE queue = :queue
   AND job = :job;

-- name: trim_calls
-- Deletes all but the latest calls of a job.
DELETE FROM call
 WHERE queue = :queue
   AND job = :job
   AND place <= (SELECT max(place) FROM call WHERE queue = :queue AND job = :job) - :kept;

-- name: collect
-- Adds one more call to a collecting job.
UPDATE job_live
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
SELECT until, jobs, id FROM "window" WHERE queue = :queue AND name = :name;

-- name: begin_window
INSERT INTO "window" (queue, name, until, jobs, id) VALUES (:queue, :name, :until, 1, :id)
ON CONFLICT (queue, name) DO UPDATE
   SET until = excluded.until,
       jobs = excluded.jobs,
       id = excluded.id;

-- name: shorten_window
-- A window that ends further ahead than its length began before the clock was set back.
UPDATE "window" SET until = :until WHERE queue = :queue AND name = :name;

-- name: count_in_window
UPDATE "window" SET jobs = jobs + 1, id = :id WHERE queue = :queue AND name = :name;
