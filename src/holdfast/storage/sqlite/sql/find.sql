-- find: one page of a listing, newest first, as seqs. Parameters: queue, state, id, tasks (a JSON list or NULL),
-- before (a seq), limit. There is one statement for each index that can answer.

-- name: queues
SELECT queue FROM tally GROUP BY queue;

-- name: all
SELECT seq
  FROM job
 WHERE seq < :before
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
   AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
 ORDER BY seq DESC
 LIMIT :limit;

-- name: named
SELECT seq, state, task FROM job WHERE queue = :queue AND id = :id;

-- name: waiting
SELECT seq
  FROM job
 WHERE queue = :queue
   AND state = 'waiting'
   AND seq < :before
   AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
 ORDER BY seq DESC
 LIMIT :limit;

-- name: delayed
SELECT seq
  FROM job
 WHERE queue = :queue
   AND state = 'delayed'
   AND seq < :before
   AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
 ORDER BY seq DESC
 LIMIT :limit;

-- name: active
-- The plus sign keeps the planner from walking through the whole queue instead of the leases.
SELECT seq
  FROM job
 WHERE seq IN (
       SELECT seq FROM job WHERE state = 'active' AND suspect_until IS NULL
       UNION ALL
       SELECT seq FROM job WHERE state = 'active' AND suspect_until IS NOT NULL
 )
   AND +queue = :queue
   AND seq < :before
   AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
 ORDER BY seq DESC
 LIMIT :limit;

-- name: over
SELECT seq
  FROM job
 WHERE queue = :queue
   AND state = :state
   AND state IN ('completed', 'failed', 'cancelled', 'expired')
   AND seq < :before
   AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
 ORDER BY seq DESC
 LIMIT :limit;
