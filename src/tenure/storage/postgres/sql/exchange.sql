-- exchange: settles runs that are current, then claims due jobs. Every guard is part of the statement itself. The guards of
-- a settlement are written with `coalesce`, so that no index matches them: the planner, without statistics, would read all
-- active jobs of the owner, and not the few that are named.

-- name: runs
-- Returns for each listed job that exists its number in the list, and what a settlement of its run needs.
-- `jobs`: a list of queue and id.
SELECT listed.place - 1, seq, state, fence, owner, cancel_at, keys, boost, failures, stalls, releases, score
  FROM jsonb_array_elements(:jobs::jsonb) WITH ORDINALITY AS listed (value, place)
 CROSS JOIN LATERAL job_named(listed.value ->> 0, listed.value ->> 1);

-- name: complete
-- Completes the given runs, each if it is the current one and only its result must be recorded: the job was not asked
-- to stop. Returns the jobs that it completed, with their seqs and concurrency keys.
-- Parameters: runs (a list of queue, id, fence, kept_until, start and length of the result in `results`), results,
-- ended, owner, now.
UPDATE job
   SET day = day_of(:now),
       state = 'completed',
       finished = :now,
       kept_until = run.kept_until,
       result = substr(:results, run.start, run.length),
       error = NULL,
       reason = NULL,
       quarantined = 0,
       put_back_used = 0,
       settled_fence = job.fence,
       owner = NULL,
       heard_at = NULL,
       lease_until = NULL,
       suspect_until = NULL,
       run_until = NULL,
       progress_until = NULL,
       run_end = :now,
       run_ended = :ended,
       run_trace = NULL
  FROM (
       SELECT value ->> 0 AS queue,
              value ->> 1 AS id,
              (value ->> 2)::bigint AS fence,
              (value ->> 3)::bigint AS kept_until,
              (value ->> 4)::integer AS start,
              (value ->> 5)::integer AS length
         FROM jsonb_array_elements(:runs::jsonb) AS listed (value)
 ) AS run
 WHERE job.day = 0
   AND job.queue = run.queue
   AND job.id = run.id
   AND coalesce(job.state, '') = 'active'
   AND job.fence = run.fence
   AND coalesce(job.owner, '') = :owner
   AND job.cancel_at IS NULL
RETURNING job.queue, job.id, job.seq, job.keys;

-- name: finish
-- Ends the given runs, each if it is the current one.
-- Parameters: runs (a list of seq, fence, state, kept_until, redrive_at, start and length of the result in `results`,
-- error, reason, fault, failures, stalls, releases, and how the run ended, why, and the detail), results, owner, now.
UPDATE job
   SET day = day_of(:now),
       state = run.state,
       finished = :now,
       kept_until = run.kept_until,
       redrive_at = run.redrive_at,
       result = substr(:results, run.start, run.length),
       error = run.error,
       reason = run.reason,
       fault = run.fault,
       failures = job.failures + run.failures,
       stalls = job.stalls + run.stalls,
       releases = job.releases + run.releases,
       quarantined = 0,
       put_back_used = 0,
       settled_fence = job.fence,
       owner = NULL,
       heard_at = NULL,
       lease_until = NULL,
       suspect_until = NULL,
       run_until = NULL,
       progress_until = NULL,
       run_end = :now,
       run_ended = run.ended,
       run_reason = run.why,
       run_detail = run.detail,
       run_trace = NULL
  FROM (
       SELECT (value ->> 0)::bigint AS seq,
              (value ->> 1)::bigint AS fence,
              value ->> 2 AS state,
              (value ->> 3)::bigint AS kept_until,
              (value ->> 4)::bigint AS redrive_at,
              (value ->> 5)::integer AS start,
              (value ->> 6)::integer AS length,
              value ->> 7 AS error,
              value ->> 8 AS reason,
              value ->> 9 AS fault,
              (value ->> 10)::bigint AS failures,
              (value ->> 11)::bigint AS stalls,
              (value ->> 12)::bigint AS releases,
              value ->> 13 AS ended,
              value ->> 14 AS why,
              value ->> 15 AS detail
         FROM jsonb_array_elements(:runs::jsonb) AS listed (value)
 ) AS run
 WHERE job.day = 0
   AND job.seq = run.seq
   AND coalesce(job.state, '') = 'active'
   AND job.fence = run.fence
   AND job.owner = :owner;

-- name: put_back
-- Puts the jobs of the given runs back, each if the run is the current one.
-- A job that runs again at once keeps its score, or gets the queue's virtual time (`reached`) if that is lower. A job
-- that was asked to stop is not put back. An error that begins with `unreadable` stays: because of it the job fails at
-- its next run, instead of running with neutral values.
-- Parameters: runs (a list of seq, fence, after, parked_under, reached, error, reason, failures, stalls, releases,
-- quarantine, put_back_used, and how the run ended, why, and the detail), unreadable, owner, now.
UPDATE job_live AS job
   SET state = CASE WHEN run.after = 0 THEN 'waiting' ELSE 'delayed' END,
       run_at = :now + run.after,
       parked_under = run.parked_under,
       score = CASE
               WHEN run.after > 0 THEN CASE WHEN job.lifo = 1 THEN -1 ELSE 1 END * (:now + run.after) - job.boost
               WHEN job.lifo = 1 THEN job.score
               ELSE least(job.score, run.reached - job.boost)
               END,
       error = CASE
               WHEN starts_with(job.error, :unreadable) THEN job.error
               ELSE coalesce(run.error, job.error)
               END,
       reason = run.reason,
       failures = job.failures + run.failures,
       stalls = job.stalls + run.stalls,
       releases = job.releases + run.releases,
       quarantined = run.quarantine,
       put_back_used = run.put_back_used,
       settled_fence = job.fence,
       owner = NULL,
       heard_at = NULL,
       lease_until = NULL,
       suspect_until = NULL,
       run_until = NULL,
       progress_until = NULL,
       run_end = :now,
       run_ended = run.ended,
       run_reason = run.why,
       run_detail = run.detail,
       run_trace = NULL
  FROM (
       SELECT (value ->> 0)::bigint AS seq,
              (value ->> 1)::bigint AS fence,
              (value ->> 2)::bigint AS after,
              value ->> 3 AS parked_under,
              (value ->> 4)::bigint AS reached,
              value ->> 5 AS error,
              value ->> 6 AS reason,
              (value ->> 7)::bigint AS failures,
              (value ->> 8)::bigint AS stalls,
              (value ->> 9)::bigint AS releases,
              (value ->> 10)::smallint AS quarantine,
              (value ->> 11)::smallint AS put_back_used,
              value ->> 12 AS ended,
              value ->> 13 AS why,
              value ->> 14 AS detail
         FROM jsonb_array_elements(:runs::jsonb) AS listed (value)
 ) AS run
 WHERE job.seq = run.seq
   AND coalesce(job.state, '') = 'active'
   AND job.fence = run.fence
   AND coalesce(job.owner, '') = :owner
   AND job.cancel_at IS NULL;

-- name: set_texts
-- Stores the texts of a settlement that contained a NUL, which a list cannot hold; the driver replaces it.
UPDATE job SET reason = :reason, run_reason = :why, run_detail = :detail WHERE seq = :seq;

-- name: due
-- Also returns when each job becomes too old to start, whether it has a fair key, and its score.
SELECT seq, expires_at, fair_key IS NOT NULL, score
  FROM job_live
 WHERE queue = :queue
   AND state = 'delayed'
   AND run_at <= :now
 ORDER BY run_at, id
 LIMIT :limit;

-- name: promote
UPDATE job_live
   SET state = 'waiting'
 WHERE seq IN (
       SELECT seq
         FROM job_live
        WHERE queue = :queue
          AND state = 'delayed'
          AND run_at <= :now
        ORDER BY run_at, id
        LIMIT :limit
 );

-- name: promote_one
-- Promotes one job whose score depends on the jobs that wait before it.
UPDATE job_live SET state = 'waiting', score = :score WHERE seq = :seq;

-- name: ready
-- Returns one row: a list of the first ready jobs, their payloads concatenated, each with the length in the list, and
-- whether there are more ready jobs. A job that is not `plain` has more data than the list shows.
SELECT json_agg(
              json_build_array(
                     seq, plain, octet_length(payload), id, task, headers, tags, score, priority, boost, run_at, timeout,
                     lease, max_stalls, start_grace, renewed, pinned, policy, created,
                     CASE WHEN coalesce(keys, rates) IS NULL THEN NULL ELSE json_build_array(keys, rates) END
              )
              ORDER BY score, id
       )::text,
       string_agg(payload, '' ORDER BY score, id),
       (
       SELECT TRUE
         FROM job_live
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under IS NULL
          AND score >= front_of(:queue, 'waiting')
        ORDER BY score, id
        LIMIT 1 OFFSET :limit
       ) IS NOT NULL
  FROM (
       SELECT seq, id, task, headers, tags, score, priority, boost, run_at, timeout, lease, max_stalls, start_grace,
              renewed, pinned, policy, created, keys, rates, payload,
              (
              starts = 0
              AND fence = 0
              AND settled_fence = 0
              AND failures = 0
              AND stalls = 0
              AND releases = 0
              AND redrives = 0
              AND quarantined = 0
              AND put_back_used = 0
              AND collected = 0
              AND lifo = 0
              AND weight = 1
              AND least(run_at, lease, max_stalls, start_grace, created, timeout) > -288230376151711744
              AND greatest(run_at, lease, max_stalls, start_grace, created, timeout) < 288230376151711744
              AND least(lease, max_stalls, start_grace) >= 0
              AND num_nonnulls(
                     fair_key, ttl, expires_at, deadline, heartbeat_timeout, merge_key, owner, heard_at, lease_until,
                     suspect_until, run_until, progress_until, cancel_at, cancel_reason, cancel_by, started, finished,
                     kept_until, redrive_at, error, reason, fault, progress, progress_note, schedule, tick, parent,
                     result
              ) = 0
              )::integer AS plain
         FROM job_live
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under IS NULL
          AND score >= front_of(:queue, 'waiting')
        ORDER BY score, id
        LIMIT :limit
 ) AS first;

-- name: first_ready
-- Returns scores, ids and seqs of the first ready jobs.
SELECT score, id, seq
  FROM job_live
 WHERE queue = :queue
   AND state = 'waiting'
   AND parked_under IS NULL
   AND score >= front_of(:queue, 'waiting')
 ORDER BY score, id
 LIMIT :limit;

-- name: first_parked
-- Returns scores, ids and seqs of the first jobs that are parked under a key, up to a score.
SELECT score, id, seq
  FROM job_live
 WHERE queue = :queue
   AND state = 'waiting'
   AND parked_under = :under
   AND score <= :score
 ORDER BY score, id
 LIMIT :limit;

-- name: heads
-- Returns the score, the id and the key of the first job under each of several keys.
-- `names`: a list.
SELECT job.score, job.id, listed.name
  FROM jsonb_array_elements_text(:names::jsonb) AS listed (name)
 CROSS JOIN LATERAL (
       SELECT score, id
         FROM job_live
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under = listed.name
        ORDER BY score, id
        LIMIT 1
       ) AS job;

-- name: parking_names_of
-- Returns those of several keys that jobs are parked under.
-- `names`: a list.
SELECT name
  FROM jsonb_array_elements_text(:names::jsonb) AS listed (name)
 WHERE EXISTS (
              SELECT 1
                FROM job_live
               WHERE queue = :queue
                 AND state = 'waiting'
                 AND parked_under = listed.name
       );

-- name: parking_names
-- Returns the keys that jobs are parked under, from one key up to another, with one index step per key.
WITH RECURSIVE place (name) AS (
     SELECT min(parked_under)
       FROM job_live
      WHERE queue = :queue
        AND state = 'waiting'
        AND parked_under >= :first
        AND parked_under < :end
      UNION ALL
     SELECT (
            SELECT min(parked_under)
              FROM job_live
             WHERE queue = :queue
               AND state = 'waiting'
               AND parked_under > place.name
               AND parked_under < :end
            )
       FROM place
      WHERE place.name IS NOT NULL
)
SELECT name FROM place WHERE name IS NOT NULL LIMIT :limit;

-- name: expire
UPDATE job
   SET day = day_of(:now),
       state = 'expired',
       parked_under = NULL,
       quarantined = 0,
       put_back_used = 0,
       finished = :now,
       error = :error,
       reason = NULL,
       redrive_at = NULL
 WHERE day = 0
   AND seq = :seq;

-- name: park
-- `under`: the key, or NULL to release the job.
UPDATE job_live SET parked_under = :under WHERE seq = :seq;

-- name: unpark
-- Releases the best jobs that are parked under each of several keys, and returns the queue and the score of each job.
-- Parameters: rooms (a list of queue, key, and how many jobs to release), most (the largest of these numbers).
WITH best AS MATERIALIZED (
     SELECT first.seq
       FROM jsonb_array_elements(:rooms::jsonb) AS listed (value)
      CROSS JOIN LATERAL (
            SELECT seq
              FROM job_live
             WHERE queue = listed.value ->> 0
               AND state = 'waiting'
               AND parked_under = listed.value ->> 1
             ORDER BY score, id
             LIMIT least((listed.value ->> 2)::bigint, :most)
      ) AS first
)
UPDATE job_live
   SET parked_under = NULL
  FROM best
 WHERE job_live.seq = best.seq
RETURNING queue, score;

-- name: insert_slots
-- `slots`: a list of a job's seq and a key's name.
INSERT INTO slot (queue, key, id)
SELECT job.queue, listed.value ->> 1, job.id
  FROM jsonb_array_elements(:slots::jsonb) AS listed (value)
  JOIN job_live AS job
    ON job.seq = (listed.value ->> 0)::bigint
ON CONFLICT DO NOTHING;

-- name: delete_slots
-- The jobs may have ended in this transaction.
-- `slots`: a list of a job's seq and a key's name.
DELETE FROM slot
 USING jsonb_array_elements(:slots::jsonb) AS listed (value)
 CROSS JOIN LATERAL job_numbered((listed.value ->> 0)::bigint) AS job
 WHERE slot.queue = job.queue
   AND slot.key = listed.value ->> 1
   AND slot.id = job.id;

-- name: delete_slot
DELETE FROM slot WHERE queue = :queue AND key = :key AND id = :id;

-- name: archive_runs
-- Copies the latest runs into `run`, to make room in the jobs' rows for the next ones. Existing history and missing
-- values, from any cause, must not block a claim.
-- `seqs`: a list.
INSERT INTO run (seq, number, fence, owner, worker, host, pid, start, "end", ended, reason, detail)
SELECT seq, starts, run_fence, coalesce(run_owner, ''), coalesce(run_worker, ''), coalesce(run_host, ''),
       coalesce(run_pid, 0), coalesce(started, created), run_end, run_ended, run_reason, run_detail
  FROM job_live
 WHERE seq = ANY (translate(:seqs, '[]', '{}')::bigint[])
   AND run_fence IS NOT NULL
    ON CONFLICT DO NOTHING;

-- name: start
-- Begins runs with equal values.
-- `seqs`: a list.
UPDATE job_live
   SET state = 'active',
       lease = :lease,
       max_stalls = :max_stalls,
       start_grace = :start_grace,
       renewed = :renewed,
       fence = :fence,
       owner = :owner,
       heard_at = :now,
       lease_until = :lease_until,
       run_until = :run_until,
       progress_until = :progress_until,
       starts = :starts,
       started = :now,
       run_fence = :fence,
       run_owner = :owner,
       run_worker = :worker,
       run_host = :host,
       run_pid = :pid,
       run_end = NULL,
       run_ended = NULL,
       run_reason = NULL,
       run_detail = NULL,
       run_trace = NULL
 WHERE seq = ANY (translate(:seqs, '[]', '{}')::bigint[]);

-- name: trim_runs
-- `number`: of the newest run to delete.
DELETE FROM run WHERE seq = :seq AND number <= :number;

-- name: queues
-- Returns what an exchange needs to know of several queues, one row for each: its number in the list, NULL, its
-- settings, the front of its fair order, whether it may have a limit of its own, how many of its completed jobs are
-- under its retention rules, when the next delayed job falls due, when the first rate with parked jobs opens, whether
-- jobs of unknown tasks are parked, the cursor before the oldest event in the log, and the last cursor ever given out.
-- Then the tasks that have settings, up to a limit: NULL, the task, and its settings.
-- Parameters: queues (a list), tasks (the limit).
WITH log AS MATERIALIZED (
     SELECT trimmed, greatest(trimmed, (SELECT max(id) FROM event)) AS last
       FROM (SELECT coalesce((SELECT value::bigint FROM meta WHERE key = 'events_deleted'), 0) AS trimmed) AS log
)
SELECT listed.place - 1,
       NULL::text,
       (SELECT body FROM setting WHERE kind = 'queue' AND name = listed.name),
       (SELECT front FROM fair_line WHERE queue = listed.name),
       EXISTS (SELECT 1 FROM rate WHERE queue = listed.name AND name = 'limit:queue'),
       (
       SELECT coalesce(sum(CASE state WHEN 'completed' THEN jobs ELSE -jobs END), 0)::bigint
         FROM tally
        WHERE queue = listed.name
          AND state IN ('completed', 'kept')
       ),
       (SELECT min(run_at) FROM job_live WHERE queue = listed.name AND state = 'delayed'),
       (SELECT min(opens_at) FROM rate WHERE queue = listed.name AND opens_at IS NOT NULL),
       EXISTS (
              SELECT 1
                FROM job_live
               WHERE queue = listed.name
                 AND state = 'waiting'
                 AND parked_under >= 'unknown:'
                 AND parked_under < 'unknown;'
       ),
       log.trimmed,
       log.last
  FROM jsonb_array_elements_text(:queues::jsonb) WITH ORDINALITY AS listed (name, place)
 CROSS JOIN log
 UNION ALL
SELECT NULL, name, body, NULL, FALSE, 0, NULL, NULL, FALSE, 0, 0
  FROM (SELECT name, body FROM setting WHERE kind = 'task' LIMIT :tasks) AS tasks;

-- name: due_queues
-- Returns for each queue with such work: when the next delayed job falls due, when the first rate with parked jobs
-- opens, and whether jobs of unknown tasks are parked. One statement serves all queues. It ends early if no queue at
-- all has such work.
-- `queues`: a list.
SELECT queue, falls_due, opening, unknown
  FROM (
       SELECT listed.name AS queue,
              (
              SELECT min(run_at)
                FROM job_live
               WHERE queue = listed.name
                 AND state = 'delayed'
              ) AS falls_due,
              (
              SELECT min(opens_at)
                FROM rate
               WHERE queue = listed.name
                 AND opens_at IS NOT NULL
              ) AS opening,
              EXISTS (
              SELECT 1
                FROM job_live
               WHERE queue = listed.name
                 AND state = 'waiting'
                 AND parked_under >= 'unknown:'
                 AND parked_under < 'unknown;'
              ) AS unknown
         FROM jsonb_array_elements_text(:queues::jsonb) AS listed (name)
        WHERE EXISTS (SELECT 1 FROM job_live WHERE state = 'delayed')
           OR EXISTS (SELECT 1 FROM rate WHERE opens_at IS NOT NULL)
           OR EXISTS (SELECT 1 FROM job_live WHERE state = 'waiting' AND parked_under IS NOT NULL)
 ) AS found
 WHERE falls_due IS NOT NULL
    OR opening IS NOT NULL
    OR unknown;

-- name: next_ready
-- Returns the number of the first queue, from a given number on, that has a ready job. The scalar sub-query (unlike
-- EXISTS) is never turned into a join, so the list is read in order, and only up to that queue. It names an order, so that
-- the index is used that has the front.
-- `queues`: a list.
SELECT place - 1
  FROM jsonb_array_elements_text(:queues::jsonb) WITH ORDINALITY AS listed (name, place)
 WHERE place > :number
   AND (
       SELECT TRUE
         FROM job_live
        WHERE queue = listed.name
          AND state = 'waiting'
          AND parked_under IS NULL
          AND score >= front_of(listed.name, 'waiting')
        ORDER BY score, id
        LIMIT 1
       )
 LIMIT 1;

-- name: queue_state
-- Returns whether a job of the queue is ready, when the next delayed job falls due, and when the first rate with parked
-- jobs opens.
SELECT (
       SELECT TRUE
         FROM job_live
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under IS NULL
          AND score >= front_of(:queue, 'waiting')
        ORDER BY score, id
        LIMIT 1
       ) IS NOT NULL,
       (SELECT min(run_at) FROM job_live WHERE queue = :queue AND state = 'delayed'),
       (SELECT min(opens_at) FROM rate WHERE queue = :queue AND opens_at IS NOT NULL);
