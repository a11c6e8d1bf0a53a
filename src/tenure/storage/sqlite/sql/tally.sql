-- tally: the counters and keys that a transaction writes at its end.

-- name: count_one
-- Adds to one counter.
-- `trim_at`: 0 if the next sweep must check whether jobs are past retention, else NULL. There are no fronts here.
INSERT INTO tenure_tally (queue, state, jobs, trim_at) VALUES (:queue, :state, :jobs, :trim_at)
ON CONFLICT (queue, state) DO UPDATE
   SET jobs = jobs + excluded.jobs,
       trim_at = coalesce(excluded.trim_at, trim_at);

-- name: count
-- Adds to counters. No counter is listed twice.
-- `counts`: a list of queue, state, number of jobs, 0 if the next sweep must check whether jobs are past retention, else
-- NULL, and a value for fronts, which are not needed here.
INSERT INTO tenure_tally (queue, state, jobs, trim_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3
  FROM json_each(:counts)
 WHERE TRUE
ON CONFLICT (queue, state) DO UPDATE
   SET jobs = jobs + excluded.jobs,
       trim_at = coalesce(excluded.trim_at, trim_at);

-- name: trim_now
-- Makes the next sweep check whether jobs of a queue are past retention.
UPDATE tenure_tally INDEXED BY sqlite_autoindex_tenure_tally_1
   SET trim_at = 0
 WHERE queue = :queue
   AND state IN ('completed', 'failed', 'cancelled', 'expired');

-- name: queues_delayed
-- The queues that have delayed jobs, with a few index steps per queue: the one whose first job falls due first is the first.
WITH RECURSIVE found (queue) AS (
       SELECT (SELECT min(queue) FROM tenure_job INDEXED BY tenure_job_delayed WHERE state = 'delayed')
       UNION ALL
       SELECT (SELECT min(queue)
                 FROM tenure_job INDEXED BY tenure_job_delayed
                WHERE state = 'delayed' AND queue > found.queue)
         FROM found
        WHERE found.queue IS NOT NULL
)
SELECT queue
  FROM found
 WHERE queue IS NOT NULL
 ORDER BY (
          SELECT min(run_at)
            FROM tenure_job INDEXED BY tenure_job_delayed
           WHERE tenure_job.queue = found.queue
             AND state = 'delayed'
          ),
          queue;

-- name: queues_parked
-- The queues that have parked jobs, by name.
WITH RECURSIVE found (queue) AS (
       SELECT (SELECT min(queue)
                 FROM tenure_job INDEXED BY tenure_job_parked
                WHERE state = 'waiting' AND parked_under IS NOT NULL)
       UNION ALL
       SELECT (SELECT min(queue)
                 FROM tenure_job INDEXED BY tenure_job_parked
                WHERE state = 'waiting' AND parked_under IS NOT NULL AND queue > found.queue)
         FROM found
        WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL;

-- name: queues_waiting
-- The queues that have waiting jobs, by name.
WITH RECURSIVE found (queue) AS (
       SELECT (SELECT min(queue) FROM tenure_job INDEXED BY tenure_job_waiting WHERE state = 'waiting')
       UNION ALL
       SELECT (SELECT min(queue)
                 FROM tenure_job INDEXED BY tenure_job_waiting
                WHERE state = 'waiting' AND queue > found.queue)
         FROM found
        WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL;


-- name: unfinished
SELECT coalesce(sum(jobs), 0)
  FROM tenure_tally INDEXED BY sqlite_autoindex_tenure_tally_1
 WHERE queue = :queue
   AND state IN ('delayed', 'waiting', 'active');

-- name: kept
-- How many completed jobs of a queue are under its retention rules.
SELECT coalesce(sum(iif(state = 'completed', jobs, -jobs)), 0)
  FROM tenure_tally INDEXED BY sqlite_autoindex_tenure_tally_1
 WHERE queue = :queue
   AND state IN ('completed', 'kept');

-- name: key
-- The same as `keys` for one key.
SELECT 0,
       coalesce(max("limit"), 0),
       coalesce(max(named), 0),
       (SELECT count(*) FROM tenure_slot WHERE tenure_slot.queue = :queue AND tenure_slot.key = :name),
       EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_parked
               WHERE tenure_job.queue = :queue
                 AND tenure_job.state = 'waiting'
                 AND tenure_job.parked_under = :name
       )
  FROM tenure_key
 WHERE queue = :queue
   AND name = :name;

-- name: keys
-- Returns for each listed key its number in the list, its limit, how many unfinished jobs name it, how many of them are
-- active, and whether jobs are parked under it.
-- `keys`: a list of queue and name.
SELECT listed.key,
       coalesce(tenure_key."limit", 0),
       coalesce(tenure_key.named, 0),
       (
              SELECT count(*)
                FROM tenure_slot
               WHERE tenure_slot.queue = listed.value ->> 0
                 AND tenure_slot.key = listed.value ->> 1
       ),
       EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_parked
               WHERE tenure_job.queue = listed.value ->> 0
                 AND tenure_job.state = 'waiting'
                 AND tenure_job.parked_under = listed.value ->> 1
       )
  FROM json_each(:keys) AS listed
  LEFT JOIN tenure_key
    ON tenure_key.queue = listed.value ->> 0
   AND tenure_key.name = listed.value ->> 1;

-- name: set_key
-- The same as `set_keys` for one key.
INSERT INTO tenure_key (queue, name, "limit", named) VALUES (:queue, :name, :limit, :named)
ON CONFLICT (queue, name) DO UPDATE
   SET "limit" = excluded."limit",
       named = excluded.named;

-- name: set_keys
-- `keys`: a list of queue, name, limit, and the number of unfinished jobs that name the key.
INSERT INTO tenure_key (queue, name, "limit", named)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3
  FROM json_each(:keys)
 WHERE TRUE
ON CONFLICT (queue, name) DO UPDATE
   SET "limit" = excluded."limit",
       named = excluded.named;

-- name: delete_keys
-- `keys`: a list of queue and name.
DELETE FROM tenure_key WHERE (queue, name) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:keys));

-- name: recount
-- Returns the counters that differ from the jobs, with the difference; in a sound storage there are none. Discarded
-- jobs cannot be counted, because they are deleted.
SELECT queue, state, sum(jobs)
  FROM (
       SELECT queue, state, jobs FROM tenure_tally WHERE state <> 'discarded'
       UNION ALL
       SELECT queue, state, -count(*) FROM tenure_job GROUP BY queue, state
       UNION ALL
       SELECT queue, 'parked', -count(*) FROM tenure_job WHERE parked_under IS NOT NULL GROUP BY queue
       UNION ALL
       SELECT queue, 'kept', -count(*)
         FROM tenure_job
        WHERE state = 'completed' AND kept_until IS NOT NULL
        GROUP BY queue
       UNION ALL
       SELECT queue, 'ruled', -count(*) FROM tenure_job WHERE state = 'failed' AND redrive_at IS NOT NULL GROUP BY queue
 )
 GROUP BY queue, state
HAVING sum(jobs) <> 0;

-- name: recount_calls
-- The same for merged calls: those whose job is gone, and those whose number differs from the job's counter.
SELECT queue, job, sum(calls)
  FROM (
       SELECT queue, job, count(payload) AS calls FROM tenure_call GROUP BY queue, job
       UNION ALL
       SELECT queue, id, -collected FROM tenure_job WHERE collected > 0
 )
 GROUP BY queue, job
HAVING sum(calls) <> 0
UNION ALL
SELECT queue, job, 1
  FROM tenure_call
 WHERE NOT EXISTS (
              SELECT 1 FROM tenure_job WHERE tenure_job.queue = tenure_call.queue AND tenure_job.id = tenure_call.job
       );

-- name: recount_keys
-- The same for keys and their slots: each active job holds exactly its own.
SELECT queue, name, sum(jobs)
  FROM (
       SELECT queue, name, named AS jobs FROM tenure_key
       UNION ALL
       SELECT queue, json_extract(value, '$.name'), -1
         FROM tenure_job, json_each(iif(json_valid(keys), keys, '[]'))
        WHERE state IN ('delayed', 'waiting', 'active')
 )
 GROUP BY queue, name
HAVING sum(jobs) <> 0
UNION ALL
SELECT queue, name, sum(jobs)
  FROM (
       SELECT queue, key AS name, id, 1 AS jobs FROM tenure_slot
       UNION ALL
       SELECT DISTINCT queue, json_extract(value, '$.name'), tenure_job.id, -1
         FROM tenure_job, json_each(iif(json_valid(keys), keys, '[]'))
        WHERE state = 'active'
 )
 GROUP BY queue, name, id
HAVING sum(jobs) <> 0;

-- name: figures
-- The cells of figures that queues have in one minute or hour: queue, task, and of `tasks` alone also the counts.
-- Parameters: length (of the cell in microseconds), start, queues and tasks (lists).
SELECT queue, task, CASE WHEN task IN (SELECT value FROM json_each(:tasks)) THEN counts END
  FROM tenure_figure INDEXED BY tenure_figure_start
 WHERE length = :length
   AND start = :start
   AND queue IN (SELECT value FROM json_each(:queues));

-- name: set_figures
-- Stores cells of one minute or hour.
-- `cells`: a list of queue, task and counts.
INSERT INTO tenure_figure (length, start, queue, task, counts)
SELECT :length, :start, value ->> 0, value ->> 1, value ->> 2
  FROM json_each(:cells)
 WHERE TRUE
    ON CONFLICT (length, task, queue, start) DO UPDATE SET counts = excluded.counts;
