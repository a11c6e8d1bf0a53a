-- repair: writes neutral values into unreadable records, and corrects the counters of their queues.

-- name: repair
UPDATE job
   SET task = :task,
       state = :state,
       headers = :headers,
       tags = :tags,
       score = :score,
       priority = :priority,
       boost = :boost,
       lifo = :lifo,
       fair_key = :fair_key,
       weight = :weight,
       run_at = :run_at,
       ttl = :ttl,
       expires_at = :expires_at,
       timeout = :timeout,
       deadline = :deadline,
       heartbeat_timeout = :heartbeat_timeout,
       keys = :keys,
       rates = :rates,
       merge_key = :merge_key,
       merge = :merge,
       collected = :collected,
       collected_bytes = :collected_bytes,
       parked_under = :parked_under,
       lease = :lease,
       max_stalls = :max_stalls,
       start_grace = :start_grace,
       renewed = :renewed,
       pinned = :pinned,
       policy = :policy,
       fence = :fence,
       settled_fence = :settled_fence,
       owner = :owner,
       heard_at = :heard_at,
       lease_until = :lease_until,
       suspect_until = :suspect_until,
       run_until = :run_until,
       progress_until = :progress_until,
       starts = :starts,
       failures = :failures,
       stalls = :stalls,
       releases = :releases,
       cancel_at = :cancel_at,
       cancel_reason = :cancel_reason,
       cancel_by = :cancel_by,
       created = :created,
       started = :started,
       finished = :finished,
       kept_until = :kept_until,
       redrive_at = :redrive_at,
       redrives = :redrives,
       error = :error,
       reason = :reason,
       fault = :fault,
       progress = :progress::text::json,
       progress_note = :progress_note,
       schedule = :schedule,
       tick = :tick,
       parent = :parent,
       quarantined = :quarantined
 WHERE seq = :seq;

-- name: fail
-- Ends a job with an unreadable state.
UPDATE job
   SET day = day_of(:now),
       state = 'failed',
       reason = 'undecodable',
       finished = :now,
       parked_under = NULL,
       owner = NULL,
       lease_until = NULL,
       suspect_until = NULL,
       kept_until = NULL,
       redrive_at = NULL
 WHERE seq = :seq;

-- name: rename
UPDATE job SET queue = :queue, id = :id WHERE seq = :seq;

-- name: exists
SELECT 1 FROM job_named(:queue, :id);

-- name: orphaned_slots
-- The slots of jobs that do not exist.
SELECT queue, key, id
  FROM slot
 WHERE NOT EXISTS (SELECT 1 FROM job_live AS job WHERE job.queue = slot.queue AND job.id = slot.id);

-- name: orphaned_calls
-- The merged calls whose job does not exist: one row of each such job.
SELECT min(number), queue, job
  FROM call
 WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.queue = call.queue AND job.id = call.job)
 GROUP BY queue, job;

-- name: move_calls
-- Moves merged calls to another job.
-- `row`: of one of the calls.
UPDATE call SET queue = :queue, job = :id WHERE (queue, job) = (SELECT queue, job FROM call WHERE number = :row);

-- name: slots
-- The keys that a job holds.
SELECT key FROM slot WHERE queue = :queue AND id = :id;

-- name: wrong_counters
-- Returns the counters of a queue that differ from its jobs, with the difference.
SELECT state, sum(jobs)::bigint
  FROM (
       SELECT state, jobs FROM tally WHERE queue = :queue AND state <> 'discarded'
       UNION ALL
       SELECT state, -count(*) FROM job WHERE queue = :queue GROUP BY state
       UNION ALL
       SELECT 'parked', -count(*) FROM job_live WHERE queue = :queue AND state = 'waiting' AND parked_under IS NOT NULL
       UNION ALL
       SELECT 'kept', -count(*) FROM job WHERE queue = :queue AND state = 'completed' AND kept_until IS NOT NULL
       UNION ALL
       SELECT 'ruled', -count(*) FROM job WHERE queue = :queue AND state = 'failed' AND redrive_at IS NOT NULL
 ) AS counted
 GROUP BY state
HAVING sum(jobs) <> 0;

-- name: recount_keys
UPDATE key
   SET named = counted.jobs
  FROM (
       SELECT named.name, count(*) AS jobs
         FROM job_live
        CROSS JOIN LATERAL key_names(keys) AS named (name)
        WHERE queue = :queue
          AND state IN ('delayed', 'waiting', 'active')
          AND keys IS NOT NULL
        GROUP BY named.name
 ) AS counted
 WHERE key.queue = :queue
   AND key.name = counted.name
   AND key.named <> counted.jobs;

-- name: delete_keys
DELETE FROM key
 WHERE queue = :queue
   AND name NOT IN (
       SELECT named.name
         FROM job_live
        CROSS JOIN LATERAL key_names(keys) AS named (name)
        WHERE queue = :queue
          AND state IN ('delayed', 'waiting', 'active')
          AND keys IS NOT NULL
 );
