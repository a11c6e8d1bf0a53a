-- find: one page of a listing, newest first or (`due`) by due instant, as seqs. There is one statement for each index
-- that can answer. A job whose own lifetime is over counts as deleted, even before a sweep.
-- Parameters: queues (a list), sources (a list of queue and state), id; tasks, reasons, tags (each a JSON list or NULL); owner, schedule, fault, key;
-- created_after, created_before, ended_after, ended_before; now; before and floor (seqs; floor is included), limit.
-- `seq + 0` instead of `seq` where few jobs are sorted: an index that has this order would be read through all jobs.

-- fragment: conditions
   AND (:tasks::text IS NULL OR task = ANY (names_in(:tasks)))
   AND (:reasons::text IS NULL OR reason = ANY (names_in(:reasons)))
   AND (:tags::text IS NULL OR names_in(tags) @> names_in(:tags))
   AND (:owner::text IS NULL OR owner = :owner)
   AND (:schedule::text IS NULL OR schedule = :schedule)
   AND (:fault::text IS NULL OR fault = :fault)
   AND (:key::text IS NULL OR :key IN (SELECT key_names(keys)))
   AND (:created_after::bigint IS NULL OR created >= :created_after)
   AND (:created_before::bigint IS NULL OR created < :created_before)
   AND (:ended_after::bigint IS NULL OR finished >= :ended_after)
   AND (:ended_before::bigint IS NULL OR finished < :ended_before)
   AND (kept_until IS NULL OR kept_until > :now)

-- name: queues
SELECT queue FROM tally GROUP BY queue;

-- name: floor
-- The seq of the last one of `looks` jobs, from the newest on.
SELECT seq FROM job WHERE seq < :before ORDER BY seq DESC LIMIT 1 OFFSET :looks - 1;

-- name: floor_over
-- The greatest of these seqs: of each source, that of the last one of `looks` jobs.
SELECT max(last.seq)
  FROM jsonb_array_elements(:sources::jsonb) AS listed
 CROSS JOIN LATERAL (
       SELECT seq
         FROM job
        WHERE day >= 1
          AND queue = listed ->> 0
          AND state = listed ->> 1
          AND seq < :before
        ORDER BY seq DESC
        LIMIT 1 OFFSET :looks - 1
 ) AS last;

-- name: floor_fault
-- The greatest of these seqs: of each queue, that of the last one of `looks` jobs with the fault.
SELECT max(last.seq)
  FROM unnest(names_in(:queues)) AS listed
 CROSS JOIN LATERAL (
       SELECT seq
         FROM job
        WHERE day >= 1
          AND queue = listed
          AND fault = :fault
          AND seq < :before
        ORDER BY seq + 0 DESC
        LIMIT 1 OFFSET :looks - 1
 ) AS last;

-- name: all
SELECT seq
  FROM job
 WHERE seq < :before
   AND seq >= :floor
   AND CASE WHEN :queues::text IS NULL THEN NOT starts_with(queue, :internal) ELSE queue = ANY (names_in(:queues)) END
   AND (:states::text IS NULL OR state = ANY (names_in(:states)))
-- include: conditions
 ORDER BY seq DESC
 LIMIT :limit;

-- name: named
SELECT seq, state
  FROM unnest(names_in(:queues)) AS listed
 CROSS JOIN LATERAL job_named(listed, :id)
 WHERE seq < :before
-- include: conditions
;

-- name: merging
-- Unfinished jobs with a key, in the given states (a JSON list or NULL).
-- Parameters in addition to the others: merge, states.
SELECT seq
  FROM job_live
 WHERE queue = ANY (names_in(:queues))
   AND merge_key = :merge
   AND seq < :before
   AND (:id::text IS NULL OR id = :id)
   AND (:states::text IS NULL OR state = ANY (names_in(:states)))
-- include: conditions
 ORDER BY seq + 0 DESC
 LIMIT :limit;

-- name: waiting
SELECT seq
  FROM job_live
 WHERE queue = ANY (names_in(:queues))
   AND state = 'waiting'
   AND seq < :before
-- include: conditions
 ORDER BY seq + 0 DESC
 LIMIT :limit;

-- name: delayed
SELECT seq
  FROM job_live
 WHERE queue = ANY (names_in(:queues))
   AND state = 'delayed'
   AND seq < :before
-- include: conditions
 ORDER BY seq + 0 DESC
 LIMIT :limit;

-- name: active
SELECT seq
  FROM job_live
 WHERE queue = ANY (names_in(:queues))
   AND state = 'active'
   AND seq < :before
-- include: conditions
 ORDER BY seq + 0 DESC
 LIMIT :limit;

-- name: live
-- Many unfinished jobs, in the given states (a JSON list): they are read in order up to a page, and not sorted.
-- Parameter in addition to the others: unfinished.
SELECT seq
  FROM job_live
 WHERE queue = ANY (names_in(:queues))
   AND state = ANY (names_in(:unfinished))
   AND seq < :before
-- include: conditions
 ORDER BY seq DESC
 LIMIT :limit;

-- name: over
-- The newest ones of each source are found first, and those of all sources are merged.
SELECT newest.seq
  FROM jsonb_array_elements(:sources::jsonb) AS listed
 CROSS JOIN LATERAL (
       SELECT seq
         FROM job
        WHERE day >= 1
          AND queue = listed ->> 0
          AND state = listed ->> 1
          AND seq < :before
          AND seq >= :floor
-- include: conditions
        ORDER BY seq DESC
        LIMIT :limit
 ) AS newest
 ORDER BY newest.seq DESC
 LIMIT :limit;

-- name: of_fault
SELECT seq
  FROM job
 WHERE day >= 1
   AND queue = ANY (names_in(:queues))
   AND fault = :fault
   AND seq < :before
   AND seq >= :floor
-- include: conditions
 ORDER BY seq + 0 DESC
 LIMIT :limit;

-- name: due
-- The delayed jobs of a queue that fall due after the instant `at`, or then with a greater id, in this order, up to the
-- instant `to` and the id `last`.
SELECT run_at, id, seq
  FROM job_live
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
  FROM job_live
 WHERE queue = :queue
   AND state = 'delayed'
   AND (run_at, id) > (:at, :id)
 ORDER BY run_at, id
 LIMIT 1 OFFSET :looks - 1;
