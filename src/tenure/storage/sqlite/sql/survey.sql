-- survey: job counts, queues and workers, from counters and indexes.

-- name: counts
-- Counts by state, and the additional counters of tally.
SELECT queue, state, jobs FROM tally WHERE jobs > 0;

-- name: settings
-- Parameters: kind.
SELECT name, body FROM setting WHERE kind = ?;

-- name: oldest
SELECT min(run_at) FROM job WHERE queue = ? AND state = 'waiting';

-- name: since
-- Since when the longest-waiting of the first jobs that are parked under a key has waited.
-- Parameters: queue, key, limit.
SELECT min(run_at)
  FROM (
       SELECT run_at
         FROM job INDEXED BY job_parked
        WHERE queue = ?
          AND state = 'waiting'
          AND parked_under = ?
        ORDER BY score, id
        LIMIT ?
 );

-- name: schedules
SELECT body FROM schedule ORDER BY name;

-- name: workers
SELECT owner, name, host, pid, info, started, seen_at, died FROM worker ORDER BY seq;
