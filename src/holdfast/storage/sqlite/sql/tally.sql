-- tally: the counters and keys that a transaction leaves behind.

-- name: count
-- Parameters: queue, state, how many more.
INSERT INTO tally (queue, state, jobs) VALUES (?, ?, ?)
ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs;

-- name: counted
-- All counters that are not at zero, the queues in the order of their first job.
SELECT queue, state, jobs
  FROM tally
 WHERE jobs <> 0
 ORDER BY (SELECT min(seq) FROM tally AS first WHERE first.queue = tally.queue), seq;

-- name: queues_with
-- Parameters: state. The queues that have any such job, in the order of their first.
SELECT queue
  FROM tally
 GROUP BY queue
HAVING sum(iif(state = ?, jobs, 0)) > 0
 ORDER BY min(seq);

-- name: unfinished
-- Parameters: queue.
SELECT coalesce(sum(jobs), 0) FROM tally WHERE queue = ? AND state IN ('delayed', 'waiting', 'active');

-- name: slots
-- Returns a key's limit, how many unfinished jobs name it, and how many of them are active.
SELECT "limit", named, (SELECT count(*) FROM slot WHERE slot.queue = :queue AND slot.key = :name)
  FROM key
 WHERE queue = :queue
   AND name = :name;

-- name: name_key
-- Parameters: queue, name, limit, named.
INSERT INTO key (queue, name, "limit", named) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, name) DO UPDATE
   SET "limit" = excluded."limit",
       named = excluded.named;

-- name: forget_key
-- Parameters: queue, name.
DELETE FROM key WHERE queue = ? AND name = ?;

-- name: recount
-- Returns the counters that the jobs themselves contradict, with the difference; in a sound storage there is none. Of
-- what was discarded nothing is left to be counted.
SELECT queue, state, sum(jobs)
  FROM (
       SELECT queue, state, jobs FROM tally WHERE state <> 'discarded'
       UNION ALL
       SELECT queue, state, -count(*) FROM job GROUP BY queue, state
       UNION ALL
       SELECT queue, 'parked', -count(*) FROM job WHERE parked_under IS NOT NULL GROUP BY queue
       UNION ALL
       SELECT queue, 'kept', -count(*) FROM job WHERE state = 'completed' AND kept_until IS NOT NULL GROUP BY queue
       UNION ALL
       SELECT queue, 'ruled', -count(*) FROM job WHERE state = 'failed' AND redrive_at IS NOT NULL GROUP BY queue
 )
 GROUP BY queue, state
HAVING sum(jobs) <> 0;

-- name: recount_calls
-- The same of the calls that jobs have taken in: whose job is gone, or of which it has gathered another number.
SELECT queue, job, sum(calls)
  FROM (
       SELECT queue, job, count(payload) AS calls FROM call GROUP BY queue, job
       UNION ALL
       SELECT queue, id, -gathered FROM job WHERE gathered > 0
 )
 GROUP BY queue, job
HAVING sum(calls) <> 0
UNION ALL
SELECT queue, job, 1
  FROM call
 WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.queue = call.queue AND job.id = call.job);

-- name: recount_keys
-- The same of the keys, and of their slots, which active jobs hold and nobody else.
SELECT queue, name, sum(jobs)
  FROM (
       SELECT queue, name, named AS jobs FROM key
       UNION ALL
       SELECT queue, json_extract(value, '$.name'), -1
         FROM job, json_each(keys)
        WHERE state IN ('delayed', 'waiting', 'active')
 )
 GROUP BY queue, name
HAVING sum(jobs) <> 0
UNION ALL
SELECT queue, name, sum(jobs)
  FROM (
       SELECT queue, key AS name, id, 1 AS jobs FROM slot
       UNION ALL
       SELECT DISTINCT queue, json_extract(value, '$.name'), job.id, -1
         FROM job, json_each(keys)
        WHERE state = 'active'
 )
 GROUP BY queue, name, id
HAVING sum(jobs) <> 0;
