-- revise: operator actions on jobs that are not active, and the deletion of jobs.

-- name: ask_to_stop
UPDATE job_live SET cancel_at = :now, cancel_reason = :reason, cancel_by = :by WHERE seq = :seq;

-- name: cancel
UPDATE job
   SET day = day_of(:now),
       state = 'cancelled',
       parked_under = NULL,
       quarantined = 0,
       put_back_used = 0,
       cancel_at = :now,
       cancel_reason = :reason,
       cancel_by = :by,
       finished = :now,
       reason = :reason
 WHERE day = 0
   AND seq = :seq;

-- name: redrive
-- Budgets and time to live start again; fence and starts continue to rise.
UPDATE job
   SET day = 0,
       state = :state,
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
       fault = NULL,
       progress = NULL,
       progress_note = NULL
 WHERE day >= 1
   AND seq = :seq;

-- name: reschedule
UPDATE job_live
   SET state = :state,
       parked_under = :parked_under,
       run_at = :run_at,
       priority = :priority,
       boost = :boost,
       score = :score
 WHERE seq = :seq;

-- name: retain
UPDATE job SET kept_until = :kept_until WHERE day >= 1 AND seq = :seq;

-- name: delete
DELETE FROM job WHERE seq = :seq;

-- name: delete_runs
DELETE FROM run WHERE seq = :seq;

-- name: delete_log
DELETE FROM log WHERE seq = :seq;

-- name: delete_calls
DELETE FROM call WHERE queue = :queue AND job = :job;

-- name: free_window
-- Only the job that a key window names can free it.
DELETE FROM "window" WHERE queue = :queue AND name = :name AND id = :id;
