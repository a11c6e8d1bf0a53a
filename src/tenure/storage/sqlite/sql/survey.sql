-- survey: job counts, queues and workers, from counters and indexes.

-- name: counts
-- Counts by state, and the additional counters of tally.
SELECT queue, state, jobs FROM tenure_tally WHERE jobs > 0;

-- name: settings
SELECT name, body FROM tenure_setting WHERE kind = :kind;

-- name: oldest
SELECT min(run_at) FROM tenure_job WHERE queue = :queue AND state = 'waiting';

-- name: since
-- Since when the longest-waiting of the first jobs that are parked under a key has waited.
SELECT min(run_at)
  FROM (
       SELECT run_at
         FROM tenure_job INDEXED BY tenure_job_parked
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under = :under
        ORDER BY score, id
        LIMIT :limit
 );

-- name: schedules
SELECT body FROM tenure_schedule ORDER BY name;

-- name: workers
SELECT owner, name, host, pid, info, started, seen_at, died FROM tenure_worker ORDER BY seq;
