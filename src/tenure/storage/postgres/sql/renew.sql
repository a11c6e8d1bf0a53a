-- renew: extends leases that the owner still holds, stores log lines, and updates the worker's record.

-- name: run
-- Returns the values that a renewal needs of the run, if it is the current one.
SELECT seq, starts, started, lease, start_grace, timeout, deadline, heartbeat_timeout, run_until, progress_until,
       cancel_at, cancel_reason
  FROM job_live
 WHERE queue = :queue
   AND id = :id
   AND state = 'active'
   AND fence = :fence
   AND owner = :owner;

-- name: extend
UPDATE job_live
   SET heard_at = :now,
       lease_until = :lease_until,
       suspect_until = CASE WHEN :lease_until > :now THEN NULL ELSE suspect_until END,
       run_until = :run_until,
       progress_until = :progress_until,
       progress = coalesce(:progress::text::json, progress),
       progress_note = CASE WHEN :progress::text IS NULL THEN progress_note ELSE :note END,
       data = CASE WHEN :data_number > data_number THEN :data ELSE data END,
       data_number = greatest(:data_number, data_number)
 WHERE seq = :seq;

-- name: trace
-- `trace`: the handler's position.
UPDATE job_live SET run_trace = :trace WHERE seq = :seq;

-- name: logged
-- Returns the run of a log's last line, that line's number in the run, and how many lines the log has had.
SELECT run, number, line FROM log WHERE seq = :seq ORDER BY line DESC LIMIT 1;

-- name: trim_log
-- Deletes all but the newest lines of a log.
DELETE FROM log
 WHERE seq = :seq
   AND line <= (SELECT line FROM log WHERE seq = :seq ORDER BY line DESC LIMIT 1 OFFSET :kept);

-- name: log
INSERT INTO log (seq, line, at, run, level, message, fields, number)
VALUES (:seq, :line, :at, :run, :level, :message, :fields, :number);

-- name: announced
-- The number of the last event that an owner has reported.
SELECT announced FROM worker WHERE owner = :owner;

-- name: update_worker
INSERT INTO worker (owner, name, host, pid, info, started, seen_at, announced)
VALUES (:owner, :name, :host, :pid, :info, :now, :now, :announced)
ON CONFLICT (owner) DO UPDATE
   SET name = excluded.name,
       host = excluded.host,
       pid = excluded.pid,
       info = excluded.info,
       seen_at = excluded.seen_at,
       announced = greatest(worker.announced, excluded.announced),
       died = 0;

-- name: delete_worker
DELETE FROM worker WHERE owner = :owner;

-- name: delete_commands
DELETE FROM setting WHERE kind = 'worker' AND name = :owner;

-- name: partition
-- Returns the identity of this database, when it was created, and the instants of two events; NULL for a missing value.
-- `last` and `seen`: the numbers of both events.
SELECT (SELECT value FROM meta WHERE key = 'identity'),
       (SELECT value::bigint FROM meta WHERE key = 'created'),
       (SELECT at FROM event WHERE id = :last),
       (SELECT at FROM event WHERE id = :seen);

-- name: identify
-- Writes a lost part of the identity again.
-- `value`: NULL for a random one.
INSERT INTO meta VALUES (:key, coalesce(:value::text, substr(md5(gen_random_uuid()::text), 1, 16)))
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: cancelling
-- The runs of an owner that were asked to stop.
SELECT seq, fence
  FROM job_live
 WHERE state = 'active'
   AND cancel_at IS NOT NULL
   AND owner = :owner;
