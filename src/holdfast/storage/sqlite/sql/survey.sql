-- survey: counts and workers at a glance, from counters and indexes.

-- name: counts
-- States, and what tally counts beside them.
SELECT queue, state, jobs FROM tally WHERE jobs > 0;

-- name: settings
-- Parameters: kind.
SELECT name, body FROM setting WHERE kind = ?;

-- name: oldest
SELECT min(run_at) FROM job WHERE queue = ? AND state = 'waiting';

-- name: schedules
SELECT body FROM schedule ORDER BY name;

-- name: workers
SELECT owner, name, host, pid, info, started, seen_at, died FROM worker ORDER BY seq;
