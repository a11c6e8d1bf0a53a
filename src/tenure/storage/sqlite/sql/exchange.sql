-- exchange: settles runs that are current, then claims due jobs. Every guard is part of the statement itself.

-- name: queues
-- Returns what an exchange needs to know of several queues, one row for each: its number in the list, NULL, its
-- settings, the front of its fair order, whether it may have a limit of its own, how many of its completed jobs are
-- under its retention rules, when the next delayed job falls due, when the first rate with parked jobs opens, whether
-- jobs of unknown tasks are parked, the cursor before the oldest event in the log, and the last cursor ever given out.
-- Then the tasks that have settings, up to a limit: NULL, the task, and its settings.
-- Parameters: queues (a list), tasks (the limit).
SELECT listed.key,
       NULL,
       (SELECT body FROM tenure_setting WHERE kind = 'queue' AND name = listed.value),
       (SELECT front FROM tenure_fair_line WHERE queue = listed.value),
       EXISTS (SELECT 1 FROM tenure_rate WHERE queue = listed.value AND name = 'limit:queue'),
       coalesce((SELECT jobs FROM tenure_tally WHERE queue = listed.value AND state = 'completed'), 0)
       - coalesce((SELECT jobs FROM tenure_tally WHERE queue = listed.value AND state = 'kept'), 0),
       (
              SELECT min(run_at)
                FROM tenure_job INDEXED BY tenure_job_delayed
               WHERE queue = listed.value
                 AND state = 'delayed'
       ),
       (
              SELECT min(opens_at)
                FROM tenure_rate INDEXED BY tenure_rate_opening
               WHERE queue = listed.value
                 AND opens_at IS NOT NULL
       ),
       EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_parked
               WHERE queue = listed.value
                 AND state = 'waiting'
                 AND parked_under >= 'unknown:'
                 AND parked_under < 'unknown;'
       ),
       coalesce(
              (SELECT min(id) - 1 FROM tenure_event),
              (SELECT seq FROM sqlite_sequence WHERE name = 'tenure_event'),
              0
       ),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_event'), 0)
  FROM json_each(:queues) AS listed
 UNION ALL
SELECT NULL, name, body, NULL, 0, 0, NULL, NULL, 0, 0, 0
  FROM (SELECT name, body FROM tenure_setting WHERE kind = 'task' LIMIT :tasks);

-- name: runs
-- Returns for each listed job that exists its number in the list, and what a settlement of its run needs.
-- `jobs`: a list of queue and id.
SELECT listed.key, seq, state, fence, owner, cancel_at, keys, boost, failures, stalls, releases, score
  FROM json_each(:jobs) AS listed
 CROSS JOIN tenure_job
    ON tenure_job.queue = listed.value ->> 0
   AND tenure_job.id = listed.value ->> 1;

-- name: complete
-- Completes the given runs, each if it is the current one and only its result must be recorded: the job was not asked
-- to stop. Returns the jobs that it completed, with their seqs and concurrency keys (as bytes: they may not be text).
-- Parameters: runs (a list of queue, id, fence, kept_until, start and length of the result in `results`), results,
-- ended, owner, now.
UPDATE tenure_job
   SET state = 'completed',
       finished = :now,
       kept_until = run.kept_until,
       result = substr(:results, run.start, run.length),
       error = NULL,
       reason = NULL,
       quarantined = 0,
       put_back_used = 0,
       settled_fence = tenure_job.fence,
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
              value ->> 2 AS fence,
              value ->> 3 AS kept_until,
              value ->> 4 AS start,
              value ->> 5 AS length
         FROM json_each(:runs)
 ) AS run
 WHERE tenure_job.queue = run.queue
   AND tenure_job.id = run.id
   AND tenure_job.state = 'active'
   AND tenure_job.fence = run.fence
   AND tenure_job.owner = :owner
   AND tenure_job.cancel_at IS NULL
RETURNING queue, id, seq, CAST(keys AS BLOB);

-- name: finish
-- Ends the given runs, each if it is the current one.
-- Parameters: runs (a list of seq, fence, state, kept_until, redrive_at, start and length of the result in `results`,
-- error, reason, fault, failures, stalls, releases, and how the run ended, why, and the detail), results, owner, now.
UPDATE tenure_job
   SET state = run.state,
       finished = :now,
       kept_until = run.kept_until,
       redrive_at = run.redrive_at,
       result = substr(:results, run.start, run.length),
       error = run.error,
       reason = run.reason,
       fault = run.fault,
       failures = tenure_job.failures + run.failures,
       stalls = tenure_job.stalls + run.stalls,
       releases = tenure_job.releases + run.releases,
       quarantined = 0,
       put_back_used = 0,
       settled_fence = tenure_job.fence,
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
       SELECT value ->> 0 AS seq,
              value ->> 1 AS fence,
              value ->> 2 AS state,
              value ->> 3 AS kept_until,
              value ->> 4 AS redrive_at,
              value ->> 5 AS start,
              value ->> 6 AS length,
              value ->> 7 AS error,
              value ->> 8 AS reason,
              value ->> 9 AS fault,
              value ->> 10 AS failures,
              value ->> 11 AS stalls,
              value ->> 12 AS releases,
              value ->> 13 AS ended,
              value ->> 14 AS why,
              value ->> 15 AS detail
         FROM json_each(:runs)
 ) AS run
 WHERE tenure_job.seq = run.seq
   AND tenure_job.state = 'active'
   AND tenure_job.fence = run.fence
   AND tenure_job.owner = :owner;

-- name: put_back
-- Puts the jobs of the given runs back, each if the run is the current one.
-- A job that runs again at once keeps its score, or gets the queue's virtual time (`reached`) if that is lower. A job
-- that was asked to stop is not put back. An error that begins with `unreadable` stays: because of it the job fails at
-- its next run, instead of running with neutral values.
-- Parameters: runs (a list of seq, fence, after, parked_under, reached, error, reason, failures, stalls, releases,
-- quarantine, put_back_used, and how the run ended, why, and the detail), unreadable, owner, now.
UPDATE tenure_job
   SET state = iif(run.after = 0, 'waiting', 'delayed'),
       run_at = :now + run.after,
       parked_under = run.parked_under,
       score = CASE
               WHEN run.after > 0 THEN iif(tenure_job.lifo, -1, 1) * (:now + run.after) - tenure_job.boost
               WHEN tenure_job.lifo THEN tenure_job.score
               ELSE min(tenure_job.score, run.reached - tenure_job.boost)
               END,
       error = CASE
               WHEN substr(tenure_job.error, 1, length(:unreadable)) = :unreadable THEN tenure_job.error
               ELSE coalesce(run.error, tenure_job.error)
               END,
       reason = run.reason,
       failures = tenure_job.failures + run.failures,
       stalls = tenure_job.stalls + run.stalls,
       releases = tenure_job.releases + run.releases,
       quarantined = run.quarantine,
       put_back_used = run.put_back_used,
       settled_fence = tenure_job.fence,
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
       SELECT value ->> 0 AS seq,
              value ->> 1 AS fence,
              value ->> 2 AS after,
              value ->> 3 AS parked_under,
              value ->> 4 AS reached,
              value ->> 5 AS error,
              value ->> 6 AS reason,
              value ->> 7 AS failures,
              value ->> 8 AS stalls,
              value ->> 9 AS releases,
              value ->> 10 AS quarantine,
              value ->> 11 AS put_back_used,
              value ->> 12 AS ended,
              value ->> 13 AS why,
              value ->> 14 AS detail
         FROM json_each(:runs)
 ) AS run
 WHERE tenure_job.seq = run.seq
   AND tenure_job.state = 'active'
   AND tenure_job.fence = run.fence
   AND tenure_job.owner = :owner
   AND tenure_job.cancel_at IS NULL;

-- name: set_texts
-- Writes the reason of a job's end, and why and how in detail its last run ended.
UPDATE tenure_job SET reason = :reason, run_reason = :why, run_detail = :detail WHERE seq = :seq;

-- name: due
-- Also returns when each job becomes too old to start, whether it has a fair key, and its score.
SELECT seq, expires_at, fair_key IS NOT NULL, score
  FROM tenure_job
 WHERE queue = :queue
   AND state = 'delayed'
   AND run_at <= :now
 ORDER BY run_at, id
 LIMIT :limit;

-- name: promote
UPDATE tenure_job
   SET state = 'waiting'
 WHERE seq IN (
       SELECT seq
         FROM tenure_job
        WHERE queue = :queue
          AND state = 'delayed'
          AND run_at <= :now
        ORDER BY run_at, id
        LIMIT :limit
 );

-- name: promote_one
-- Promotes one job whose score depends on the jobs that wait before it.
UPDATE tenure_job SET state = 'waiting', score = :score WHERE seq = :seq;

-- name: ready
-- Returns one row: a list of the first ready jobs, their payloads concatenated, each with the length in the list, and
-- whether there are more ready jobs. The last value of a job is a list of its keys and rates, NULL if it has neither.
-- (Row by row, each fetch would switch between the threads.) A job that is not `plain` has more data than the list
-- shows.
SELECT json_group_array(
              json_array(
                     seq, plain, length(payload), id, task, headers, tags, score, priority, boost, run_at, timeout,
                     lease, max_stalls, start_grace, renewed, pinned, policy, created,
                     CASE WHEN coalesce(keys, rates) IS NULL THEN NULL ELSE json_array(keys, rates) END
              )
       ),
       CAST(group_concat(payload, '') AS BLOB),
       (
       SELECT 1
         FROM tenure_job INDEXED BY tenure_job_ready
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under IS NULL
        LIMIT 1 OFFSET :limit
       ) IS NOT NULL
  FROM (
       SELECT seq, id, task, headers, tags, score, priority, boost, run_at, timeout, lease, max_stalls, start_grace,
              renewed, pinned, policy, created, keys, rates, payload,
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
              AND min(run_at, lease, max_stalls, start_grace, created, coalesce(timeout, 0)) > -288230376151711744
              AND max(run_at, lease, max_stalls, start_grace, created, coalesce(timeout, 0)) < 288230376151711744
              AND min(lease, max_stalls, start_grace) >= 0
              AND coalesce(
                     fair_key, ttl, expires_at, deadline, heartbeat_timeout, merge_key, owner, heard_at, lease_until,
                     suspect_until, run_until, progress_until, cancel_at, cancel_reason, cancel_by, started, finished,
                     kept_until, redrive_at, error, reason, fault, progress, progress_note, schedule, tick, parent,
                     result
              ) IS NULL AS plain
         FROM tenure_job INDEXED BY tenure_job_ready
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under IS NULL
        ORDER BY score, id
        LIMIT :limit
 );

-- name: first_ready
-- Returns scores, ids and seqs of the first ready jobs.
SELECT score, id, seq
  FROM tenure_job INDEXED BY tenure_job_ready
 WHERE queue = :queue
   AND state = 'waiting'
   AND parked_under IS NULL
 ORDER BY score, id
 LIMIT :limit;

-- name: first_parked
-- Returns scores, ids and seqs of the first jobs that are parked under a key, up to a score.
SELECT score, id, seq
  FROM tenure_job INDEXED BY tenure_job_parked
 WHERE queue = :queue
   AND state = 'waiting'
   AND parked_under = :under
   AND score <= :score
 ORDER BY score, id
 LIMIT :limit;

-- name: heads
-- Returns the score, the id and the key of the first job under each of several keys.
-- `names`: a list.
SELECT tenure_job.score, tenure_job.id, listed.value
  FROM json_each(:names) AS listed
  JOIN tenure_job
    ON tenure_job.seq = (
       SELECT seq
         FROM tenure_job AS parked INDEXED BY tenure_job_parked
        WHERE parked.queue = :queue
          AND parked.state = 'waiting'
          AND parked.parked_under = listed.value
        ORDER BY parked.score, parked.id
        LIMIT 1
       );

-- name: parking_names_of
-- Returns those of several keys that jobs are parked under.
-- `names`: a list.
SELECT value
  FROM json_each(:names) AS listed
 WHERE EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_parked
               WHERE queue = :queue
                 AND state = 'waiting'
                 AND parked_under = listed.value
       );

-- name: parking_names
-- Returns the keys that jobs are parked under, from one key up to another, with one index step per key.
WITH RECURSIVE place (name) AS (
     SELECT min(parked_under)
       FROM tenure_job INDEXED BY tenure_job_parked
      WHERE queue = :queue
        AND state = 'waiting'
        AND parked_under >= :first
        AND parked_under < :end
      UNION ALL
     SELECT (
            SELECT min(parked_under)
              FROM tenure_job INDEXED BY tenure_job_parked
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
UPDATE tenure_job
   SET state = 'expired',
       parked_under = NULL,
       quarantined = 0,
       put_back_used = 0,
       finished = :now,
       error = :error,
       reason = NULL,
       redrive_at = NULL
 WHERE seq = :seq;

-- name: park
-- `under`: the key, or NULL to release the job.
UPDATE tenure_job SET parked_under = :under WHERE seq = :seq;

-- name: unpark
-- Releases the best jobs that are parked under each of several keys, and returns the queue and the score of each job.
-- Parameters: rooms (a list of queue, key, and how many jobs to release), most (the largest of these numbers).
UPDATE tenure_job
   SET parked_under = NULL
 WHERE seq IN (
       SELECT tenure_job.seq
         FROM json_each(:rooms) AS listed
        CROSS JOIN tenure_job NOT INDEXED
           ON tenure_job.seq IN (
              SELECT seq
                FROM (
                     SELECT seq, row_number() OVER (ORDER BY score, id) AS place
                       FROM (
                            SELECT seq, score, id
                              FROM tenure_job AS parked INDEXED BY tenure_job_parked
                             WHERE parked.queue = listed.value ->> 0
                               AND parked.state = 'waiting'
                               AND parked.parked_under = listed.value ->> 1
                             ORDER BY score, id
                             LIMIT :most
                       )
                )
               WHERE place <= listed.value ->> 2
           )
 )
RETURNING queue, score;

-- name: insert_slots
-- `slots`: a list of a job's seq and a key's name.
INSERT INTO tenure_slot (queue, key, id)
SELECT tenure_job.queue, listed.value ->> 1, tenure_job.id
  FROM json_each(:slots) AS listed
 CROSS JOIN tenure_job NOT INDEXED
    ON tenure_job.seq = listed.value ->> 0
 WHERE TRUE
ON CONFLICT DO NOTHING;

-- name: delete_slots
-- `slots`: a list of a job's seq and a key's name.
DELETE FROM tenure_slot
 WHERE (queue, key, id) IN (
       SELECT tenure_job.queue, listed.value ->> 1, tenure_job.id
         FROM json_each(:slots) AS listed
        CROSS JOIN tenure_job NOT INDEXED
           ON tenure_job.seq = listed.value ->> 0
 );

-- name: delete_slot
DELETE FROM tenure_slot WHERE queue = :queue AND key = :key AND id = :id;

-- name: archive_runs
-- Copies the latest runs into `tenure_run`, to make room in the jobs' rows for the next ones. Existing history and
-- missing values, from any cause, must not block a claim.
-- `seqs`: a list.
INSERT INTO tenure_run (seq, number, fence, owner, worker, host, pid, start, "end", ended, reason, detail)
SELECT seq, starts, run_fence, coalesce(run_owner, ''), coalesce(run_worker, ''), coalesce(run_host, ''),
       coalesce(run_pid, 0), coalesce(started, created), run_end, run_ended, run_reason, run_detail
  FROM tenure_job
 WHERE seq IN (SELECT value FROM json_each(:seqs))
   AND run_fence IS NOT NULL
    ON CONFLICT DO NOTHING;

-- name: start
-- Begins runs with equal values.
-- `seqs`: a list.
UPDATE tenure_job
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
 WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: trim_runs
-- `number`: of the newest run to delete.
DELETE FROM tenure_run WHERE seq = :seq AND number <= :number;

-- name: due_queues
-- Returns for each queue with such work: when the next delayed job falls due, when the first rate with parked jobs
-- opens, and whether jobs of unknown tasks are parked. One statement serves all queues. It ends early if no queue at
-- all has such work.
-- `queues`: a list.
SELECT queue, falls_due, opening, unknown
  FROM (
       SELECT listed.value AS queue,
              (
              SELECT min(run_at)
                FROM tenure_job INDEXED BY tenure_job_delayed
               WHERE queue = listed.value
                 AND state = 'delayed'
              ) AS falls_due,
              (
              SELECT min(opens_at)
                FROM tenure_rate INDEXED BY tenure_rate_opening
               WHERE queue = listed.value
                 AND opens_at IS NOT NULL
              ) AS opening,
              EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_parked
               WHERE queue = listed.value
                 AND state = 'waiting'
                 AND parked_under >= 'unknown:'
                 AND parked_under < 'unknown;'
              ) AS unknown
         FROM json_each(:queues) AS listed
        WHERE EXISTS (SELECT 1 FROM tenure_job INDEXED BY tenure_job_delayed WHERE state = 'delayed')
           OR EXISTS (SELECT 1 FROM tenure_rate INDEXED BY tenure_rate_opening WHERE opens_at IS NOT NULL)
           OR EXISTS (
                     SELECT 1
                       FROM tenure_job INDEXED BY tenure_job_parked
                      WHERE state = 'waiting'
                        AND parked_under IS NOT NULL
              )
 )
 WHERE falls_due IS NOT NULL
    OR opening IS NOT NULL
    OR unknown;

-- name: next_ready
-- Returns the number of the first queue, from a given number on, that has a ready job. SQLite reads the list in order,
-- and stops there.
-- `queues`: a list.
SELECT key
  FROM json_each(:queues) AS listed
 WHERE key >= :number
   AND EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_ready
               WHERE queue = listed.value
                 AND state = 'waiting'
                 AND parked_under IS NULL
       )
 LIMIT 1;

-- name: queue_state
-- Returns whether a job of the queue is ready, when the next delayed job falls due, and when the first rate with parked
-- jobs opens.
SELECT EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_ready
               WHERE queue = :queue
                 AND state = 'waiting'
                 AND parked_under IS NULL
       ),
       (SELECT min(run_at) FROM tenure_job INDEXED BY tenure_job_delayed WHERE queue = :queue AND state = 'delayed'),
       (
              SELECT min(opens_at)
                FROM tenure_rate INDEXED BY tenure_rate_opening
               WHERE queue = :queue
                 AND opens_at IS NOT NULL
       );
