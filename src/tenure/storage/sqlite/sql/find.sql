-- find: one page of a listing, newest first or (`due`) by due instant, as seqs. There is one statement for each index
-- that can answer. A job whose own lifetime is over counts as deleted, even before a sweep.
-- Parameters: queues (a list), sources (a list of queue and state), id; tasks, reasons, tags (each a JSON list or NULL); owner, schedule, fault, key;
-- created_after, created_before, ended_after, ended_before; now; before and floor (seqs; floor is included), limit.

-- fragment: conditions
   AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
   AND (:reasons IS NULL OR reason IN (SELECT value FROM json_each(:reasons)))
   AND (
       :tags IS NULL
       OR NOT EXISTS (
              SELECT 1
                FROM json_each(:tags) AS listed
               WHERE listed.value NOT IN (SELECT value FROM json_each(iif(json_valid(tags), tags, '[]')))
       )
   )
   AND (:owner IS NULL OR owner = :owner)
   AND (:schedule IS NULL OR schedule = :schedule)
   AND (:fault IS NULL OR fault = :fault)
   AND (
       :key IS NULL
       OR EXISTS (
              SELECT 1
                FROM json_each(iif(json_valid(keys), keys, '[]')) AS named
               WHERE named.value ->> 'name' = :key
       )
   )
   AND (:created_after IS NULL OR created >= :created_after)
   AND (:created_before IS NULL OR created < :created_before)
   AND (:ended_after IS NULL OR finished >= :ended_after)
   AND (:ended_before IS NULL OR finished < :ended_before)
   AND (kept_until IS NULL OR kept_until > :now)

-- name: queues
SELECT queue FROM tenure_tally GROUP BY queue;

-- name: floor
-- The seq of the last one of `looks` jobs, from the newest on.
SELECT seq FROM tenure_job NOT INDEXED WHERE seq < :before ORDER BY seq DESC LIMIT 1 OFFSET :looks - 1;

-- name: floor_over
-- The greatest of these seqs: of each source, that of the last one of `looks` jobs.
SELECT max(
           (
           SELECT seq
             FROM tenure_job INDEXED BY tenure_job_over
            WHERE queue = listed.value ->> 0
              AND state = listed.value ->> 1
              AND finished IS NOT NULL
              AND seq < :before
            ORDER BY seq DESC
            LIMIT 1 OFFSET :looks - 1
           )
       )
  FROM json_each(:sources) AS listed;

-- name: floor_fault
-- The greatest of these seqs: of each queue, that of the last one of `looks` jobs with the fault.
SELECT max(
           (
           SELECT seq
             FROM tenure_job INDEXED BY tenure_job_fault
            WHERE queue = listed.value
              AND fault = :fault
              AND seq < :before
            ORDER BY seq DESC
            LIMIT 1 OFFSET :looks - 1
           )
       )
  FROM json_each(:queues) AS listed;

-- name: all
SELECT seq
  FROM tenure_job NOT INDEXED
 WHERE seq < :before
   AND seq >= :floor
   AND iif(
       :queues IS NULL,
       substr(queue, 1, length(:internal)) <> :internal,
       queue IN (SELECT value FROM json_each(:queues))
   )
   AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
-- include: conditions
 ORDER BY seq DESC
 LIMIT :limit;

-- name: named
SELECT seq, state
  FROM tenure_job
 WHERE queue IN (SELECT value FROM json_each(:queues))
   AND id = :id
   AND seq < :before
-- include: conditions
;

-- name: merging
-- Unfinished jobs with a key, in the given states (a JSON list or NULL).
-- Parameters in addition to the others: merge, states.
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_merge
 WHERE queue IN (SELECT value FROM json_each(:queues))
   AND merge_key = :merge
   AND finished IS NULL
   AND seq < :before
   AND (:id IS NULL OR id = :id)
   AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
-- include: conditions
 ORDER BY seq DESC
 LIMIT :limit;

-- name: waiting
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_waiting
 WHERE queue IN (SELECT value FROM json_each(:queues))
   AND state = 'waiting'
   AND seq < :before
-- include: conditions
 ORDER BY seq DESC
 LIMIT :limit;

-- name: delayed
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_delayed
 WHERE queue IN (SELECT value FROM json_each(:queues))
   AND state = 'delayed'
   AND seq < :before
-- include: conditions
 ORDER BY seq DESC
 LIMIT :limit;

-- name: active
SELECT seq
  FROM tenure_job NOT INDEXED
 WHERE seq IN (
       SELECT seq FROM tenure_job INDEXED BY tenure_job_lease WHERE state = 'active' AND suspect_until IS NULL
       UNION ALL
       SELECT seq FROM tenure_job INDEXED BY tenure_job_suspect WHERE state = 'active' AND suspect_until IS NOT NULL
 )
   AND queue IN (SELECT value FROM json_each(:queues))
   AND seq < :before
-- include: conditions
 ORDER BY seq DESC
 LIMIT :limit;

-- name: live
-- Many unfinished jobs, in the given states (a JSON list): they are read in order up to a page, and not sorted.
-- Parameter in addition to the others: unfinished.
SELECT seq
  FROM tenure_job NOT INDEXED
 WHERE queue IN (SELECT value FROM json_each(:queues))
   AND state IN (SELECT value FROM json_each(:unfinished))
   AND seq < :before
-- include: conditions
 ORDER BY seq DESC
 LIMIT :limit;

-- name: over
-- The newest ones of each source are found first, and those of all sources are merged.
SELECT tenure_job.seq
  FROM json_each(:sources) AS listed
 CROSS JOIN tenure_job NOT INDEXED
    ON tenure_job.seq IN (
       SELECT seq
         FROM tenure_job INDEXED BY tenure_job_over
        WHERE queue = listed.value ->> 0
          AND state = listed.value ->> 1
          AND finished IS NOT NULL
          AND seq < :before
          AND seq >= :floor
-- include: conditions
        ORDER BY seq DESC
        LIMIT :limit
 )
 ORDER BY tenure_job.seq DESC
 LIMIT :limit;

-- name: of_fault
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_fault
 WHERE queue IN (SELECT value FROM json_each(:queues))
   AND fault = :fault
   AND seq < :before
   AND seq >= :floor
-- include: conditions
 ORDER BY seq DESC
 LIMIT :limit;

-- name: due
-- The delayed jobs of a queue that fall due after the instant `at`, or then with a greater id, in this order, up to the
-- instant `to` and the id `last`.
SELECT run_at, id, seq
  FROM tenure_job INDEXED BY tenure_job_delayed
 WHERE queue = :queue
   AND state = 'delayed'
   AND (run_at, id) > (:at, :id)
   AND (run_at, id) <= (:to, :last)
-- include: conditions
 ORDER BY run_at, id
 LIMIT :limit;

-- name: due_bound
-- The last one of `looks` such jobs, without other conditions; nothing if there are fewer.
SELECT run_at, id
  FROM tenure_job INDEXED BY tenure_job_delayed
 WHERE queue = :queue
   AND state = 'delayed'
   AND (run_at, id) > (:at, :id)
 ORDER BY run_at, id
 LIMIT 1 OFFSET :looks - 1;
