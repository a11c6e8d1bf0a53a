-- revise: operator actions on jobs that are not active, and the deletion of jobs.

-- name: ask_to_stop
UPDATE job SET cancel_at = ?, cancel_reason = ?, cancel_by = ? WHERE seq = ?;

-- name: cancel
UPDATE job
   SET state = 'cancelled',
       parked_under = NULL,
       quarantined = 0,
       put_back_used = 0,
       cancel_at = :now,
       cancel_reason = :reason,
       cancel_by = :by,
       finished = :now,
       reason = :reason
 WHERE seq = :seq;

-- name: redrive
-- Budgets and time to live start again; fence and starts continue to rise.
UPDATE job
   SET state = :state,
       run_at = :run_at,
       score = :score,
       expires_at = :expires_at,
       failures = 0,
       stalls = 0,
       releases = 0,
       redrives = :redrives,
       redrive_at = NULL,
       cancel_at = NULL,
       cancel_reason = NULL,
       cancel_by = NULL,
       finished = NULL,
       kept_until = NULL,
       error = :error,
       reason = NULL,
       progress = NULL,
       progress_note = NULL
 WHERE seq = :seq;

-- name: reschedule
UPDATE job SET state = ?, parked_under = ?, run_at = ?, priority = ?, boost = ?, score = ? WHERE seq = ?;

-- name: retain
-- Parameters: kept_until, seq.
UPDATE job SET kept_until = ? WHERE seq = ?;

-- name: delete
DELETE FROM job WHERE seq = ?;

-- name: delete_runs
DELETE FROM run WHERE seq = ?;

-- name: delete_log
DELETE FROM log WHERE seq = ?;

-- name: delete_calls
-- Parameters: queue, the job's id.
DELETE FROM call WHERE queue = ? AND job = ?;

-- name: free_window
-- Only the job that a key window names can free it.
-- Parameters: queue, name, id.
DELETE FROM window WHERE queue = ? AND name = ? AND id = ?;
