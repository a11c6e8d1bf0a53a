-- get: a record with its runs, its log and its collected calls.

-- name: job
SELECT * FROM tenure_job WHERE queue = :queue AND id = :id;

-- name: by_seq
SELECT * FROM tenure_job WHERE seq = :seq;

-- name: merged_into
-- The job that a call was merged into.
SELECT job FROM tenure_call WHERE queue = :queue AND id = :id;

-- name: calls
-- The arguments that a job has collected, each in its frame.
SELECT payload FROM tenure_call INDEXED BY tenure_call_of_job WHERE queue = :queue AND job = :job ORDER BY place;

-- name: numbered
-- `seqs`: a list.
SELECT * FROM tenure_job WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: by_seqs
-- `seqs`: a list.
SELECT * FROM tenure_job WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: runs
-- The latest run is in the job's row.
SELECT number, fence, owner, worker, host, pid, start, "end", ended, reason, detail, trace
  FROM tenure_run
 WHERE seq = :seq
UNION ALL
SELECT starts, run_fence, coalesce(run_owner, ''), coalesce(run_worker, ''), coalesce(run_host, ''),
       coalesce(run_pid, 0), coalesce(started, created), run_end, run_ended, run_reason, run_detail, run_trace
  FROM tenure_job
 WHERE seq = :seq
   AND run_fence IS NOT NULL
 ORDER BY number;

-- name: log
-- The last column is the number of the line among all lines that the log has had.
SELECT at, run, level, message, fields, line FROM tenure_log WHERE seq = :seq ORDER BY line;
