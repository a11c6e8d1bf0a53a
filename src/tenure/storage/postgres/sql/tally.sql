-- tally: the counters and keys that a transaction writes at its end.

-- name: count_one
-- Adds to one counter, and lowers the front of its jobs.
-- `trim_at`: 0 if the next sweep must check whether jobs are past retention, else NULL. `since`: the front is at most here.
WITH lowered AS (
     UPDATE front SET reached = :since WHERE queue = :queue AND state = :state AND reached > :since
)
INSERT INTO tally (queue, state, jobs, trim_at) VALUES (:queue, :state, :jobs, :trim_at)
ON CONFLICT (queue, state) DO UPDATE
   SET jobs = tally.jobs + excluded.jobs,
       trim_at = coalesce(excluded.trim_at, tally.trim_at);

-- name: count
-- Adds to counters, and lowers the fronts of their jobs. No counter is listed twice.
-- `counts`: a list of queue, state, number of jobs, 0 if the next sweep must check whether jobs are past retention, else
-- NULL, and the value that the front may have at most.
WITH listed AS MATERIALIZED (
     SELECT value ->> 0 AS queue, value ->> 1 AS state, (value ->> 2)::bigint AS jobs, (value ->> 3)::bigint AS trim_at,
            (value ->> 4)::bigint AS since
       FROM jsonb_array_elements(:counts::jsonb) AS listed (value)
), lowered AS (
     UPDATE front
        SET reached = listed.since
       FROM listed
      WHERE front.queue = listed.queue
        AND front.state = listed.state
        AND front.reached > listed.since
)
INSERT INTO tally (queue, state, jobs, trim_at)
SELECT queue, state, jobs, trim_at
  FROM listed
ON CONFLICT (queue, state) DO UPDATE
   SET jobs = tally.jobs + excluded.jobs,
       trim_at = coalesce(excluded.trim_at, tally.trim_at);

-- name: trim_now
-- Makes the next sweep check whether jobs of a queue are past retention.
UPDATE tally
   SET trim_at = 0
 WHERE queue = :queue
   AND state IN ('completed', 'failed', 'cancelled', 'expired');

-- name: queues_delayed
-- The queues that have delayed jobs, with a few index steps per queue: the one whose first job falls due first is the first.
WITH RECURSIVE found (queue) AS (
       SELECT (SELECT min(queue) FROM job_live WHERE state = 'delayed')
       UNION ALL
       SELECT (SELECT min(queue) FROM job_live WHERE state = 'delayed' AND queue > found.queue)
         FROM found
        WHERE found.queue IS NOT NULL
)
SELECT queue
  FROM found
 WHERE queue IS NOT NULL
 ORDER BY (SELECT min(run_at) FROM job_live WHERE job_live.queue = found.queue AND state = 'delayed'), queue;

-- name: queues_parked
-- The queues that have parked jobs, by name.
WITH RECURSIVE found (queue) AS (
       SELECT (SELECT min(queue)
                 FROM job_live
                WHERE state = 'waiting' AND parked_under IS NOT NULL)
       UNION ALL
       SELECT (SELECT min(queue)
                 FROM job_live
                WHERE state = 'waiting' AND parked_under IS NOT NULL AND queue > found.queue)
         FROM found
        WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL;

-- name: queues_waiting
-- The queues that have waiting jobs, by name.
WITH RECURSIVE found (queue) AS (
       SELECT (SELECT min(queue) FROM job_live WHERE state = 'waiting')
       UNION ALL
       SELECT (SELECT min(queue) FROM job_live WHERE state = 'waiting' AND queue > found.queue)
         FROM found
        WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL;


-- name: unfinished
SELECT coalesce(sum(jobs), 0)::bigint FROM tally WHERE queue = :queue AND state IN ('delayed', 'waiting', 'active');

-- name: kept
-- How many completed jobs of a queue are under its retention rules.
SELECT coalesce(sum(CASE state WHEN 'completed' THEN jobs ELSE -jobs END), 0)::bigint
  FROM tally
 WHERE queue = :queue
   AND state IN ('completed', 'kept');

-- name: key
-- The same as `keys` for one key.
SELECT 0,
       coalesce(max("limit"), 0),
       coalesce(max(named), 0),
       (SELECT count(*) FROM slot WHERE slot.queue = :queue AND slot.key = :name),
       EXISTS (
              SELECT 1
                FROM job_live
               WHERE job_live.queue = :queue
                 AND job_live.state = 'waiting'
                 AND job_live.parked_under = :name
       )
  FROM key
 WHERE queue = :queue
   AND name = :name;

-- name: keys
-- Returns for each listed key its number in the list, its limit, how many unfinished jobs name it, how many of them are
-- active, and whether jobs are parked under it.
-- `keys`: a list of queue and name.
SELECT listed.place - 1,
       coalesce(key."limit", 0),
       coalesce(key.named, 0),
       (SELECT count(*) FROM slot WHERE slot.queue = listed.value ->> 0 AND slot.key = listed.value ->> 1),
       EXISTS (
              SELECT 1
                FROM job_live
               WHERE queue = listed.value ->> 0
                 AND state = 'waiting'
                 AND parked_under = listed.value ->> 1
       )
  FROM jsonb_array_elements(:keys::jsonb) WITH ORDINALITY AS listed (value, place)
  LEFT JOIN key
    ON key.queue = listed.value ->> 0
   AND key.name = listed.value ->> 1;

-- name: set_key
-- The same as `set_keys` for one key.
INSERT INTO key (queue, name, "limit", named) VALUES (:queue, :name, :limit, :named)
ON CONFLICT (queue, name) DO UPDATE
   SET "limit" = excluded."limit",
       named = excluded.named;

-- name: set_keys
-- `keys`: a list of queue, name, limit, and the number of unfinished jobs that name the key.
INSERT INTO key (queue, name, "limit", named)
SELECT value ->> 0, value ->> 1, (value ->> 2)::bigint, (value ->> 3)::bigint
  FROM jsonb_array_elements(:keys::jsonb) AS listed (value)
ON CONFLICT (queue, name) DO UPDATE
   SET "limit" = excluded."limit",
       named = excluded.named;

-- name: delete_keys
-- `keys`: a list of queue and name.
DELETE FROM key
 USING jsonb_array_elements(:keys::jsonb) AS listed (value)
 WHERE queue = listed.value ->> 0
   AND name = listed.value ->> 1;

-- name: recount
-- Returns the counters that differ from the jobs, with the difference; in a sound storage there are none. Discarded
-- jobs cannot be counted, because they are deleted.
SELECT queue, state, sum(jobs)::bigint
  FROM (
       SELECT queue, state, jobs FROM tally WHERE state <> 'discarded'
       UNION ALL
       SELECT queue, state, -count(*) FROM job GROUP BY queue, state
       UNION ALL
       SELECT queue, 'parked', -count(*) FROM job_live WHERE parked_under IS NOT NULL GROUP BY queue
       UNION ALL
       SELECT queue, 'kept', -count(*) FROM job WHERE state = 'completed' AND kept_until IS NOT NULL GROUP BY queue
       UNION ALL
       SELECT queue, 'ruled', -count(*) FROM job WHERE state = 'failed' AND redrive_at IS NOT NULL GROUP BY queue
 ) AS counted
 GROUP BY queue, state
HAVING sum(jobs) <> 0;

-- name: recount_calls
-- The same for merged calls: those whose job is gone, and those whose number differs from the job's counter.
SELECT queue, job, sum(calls)::bigint
  FROM (
       SELECT queue, job, count(payload) AS calls FROM call GROUP BY queue, job
       UNION ALL
       SELECT queue, id, -collected FROM job WHERE collected > 0
 ) AS counted
 GROUP BY queue, job
HAVING sum(calls) <> 0
UNION ALL
SELECT queue, job, 1
  FROM call
 WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.queue = call.queue AND job.id = call.job);

-- name: recount_keys
-- The same for keys and their slots: each active job holds exactly its own.
SELECT queue, name, sum(jobs)::bigint
  FROM (
       SELECT queue, name, named AS jobs FROM key
       UNION ALL
       SELECT queue, named.name, -1
         FROM job_live
        CROSS JOIN LATERAL key_names(keys) AS named (name)
        WHERE state IN ('delayed', 'waiting', 'active')
 ) AS counted
 GROUP BY queue, name
HAVING sum(jobs) <> 0
UNION ALL
SELECT queue, name, sum(jobs)::bigint
  FROM (
       SELECT queue, key AS name, id, 1 AS jobs FROM slot
       UNION ALL
       SELECT DISTINCT queue, named.name, id, -1
         FROM job_live
        CROSS JOIN LATERAL key_names(keys) AS named (name)
        WHERE state = 'active'
 ) AS counted
 GROUP BY queue, name, id
HAVING sum(jobs) <> 0;

-- name: figures
-- The cells of figures that queues have in one minute or hour: queue, task, and of `tasks` alone also the counts.
-- Parameters: length (of the cell in microseconds), start, queues and tasks (lists).
SELECT queue, task, CASE WHEN task = ANY (names_in(:tasks)) THEN counts END
  FROM figure
 WHERE length = :length
   AND start = :start
   AND queue = ANY (names_in(:queues));

-- name: set_figures
-- Stores cells of one minute or hour.
-- `cells`: a list of queue, task and counts.
INSERT INTO figure (length, start, queue, task, counts)
SELECT :length, :start, value ->> 0, value ->> 1, value ->> 2
  FROM jsonb_array_elements(:cells::jsonb) AS listed (value)
    ON CONFLICT (length, task, queue, start) DO UPDATE SET counts = excluded.counts;
