-- get: a record with its runs and its log.

-- name: job
SELECT * FROM job WHERE queue = ? AND id = ?;

-- name: by_seq
SELECT * FROM job WHERE seq = ?;

-- name: runs
SELECT number, fence, owner, worker, host, pid, start, "end", ended, reason, detail
  FROM run
 WHERE seq = ?
 ORDER BY number;

-- name: log
SELECT at, run, level, message, fields FROM log WHERE seq = ? ORDER BY line;
