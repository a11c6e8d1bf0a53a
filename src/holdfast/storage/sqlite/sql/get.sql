-- get: a record with its runs, its log, and what it has gathered.

-- name: job
SELECT * FROM job WHERE queue = ? AND id = ?;

-- name: by_seq
SELECT * FROM job WHERE seq = ?;

-- name: taken_in
-- The job that answers for a call. Parameters: queue, the call's id.
SELECT job FROM call WHERE queue = ? AND id = ?;

-- name: gathered
-- The arguments that a job has gathered, each in its frame. Parameters: queue, the job's id.
SELECT payload FROM call INDEXED BY call_of_job WHERE queue = ? AND job = ? ORDER BY place;

-- name: runs
SELECT number, fence, owner, worker, host, pid, start, "end", ended, reason, detail, trace
  FROM run
 WHERE seq = ?
 ORDER BY number;

-- name: log
SELECT at, run, level, message, fields FROM log WHERE seq = ? ORDER BY line;
