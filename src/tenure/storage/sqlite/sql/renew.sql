-- renew: extends leases that the owner still holds, stores log lines, and updates the worker's record.

-- name: run
-- Returns the values that a renewal needs of the run, if it is the current one.
SELECT seq, starts, started, lease, start_grace, timeout, deadline, heartbeat_timeout, run_until, progress_until,
       cancel_at, cancel_reason
  FROM job
 WHERE queue = :queue
   AND id = :id
   AND state = 'active'
   AND fence = :fence
   AND owner = :owner;

-- name: extend
UPDATE job
   SET heard_at = :now,
       lease_until = :lease_until,
       suspect_until = iif(:lease_until > :now, NULL, suspect_until),
       run_until = :run_until,
       progress_until = :progress_until,
       progress = coalesce(:progress, progress),
       progress_note = iif(:progress IS NULL, progress_note, :note),
       data = iif(:data_number > data_number, :data, data),
       data_number = max(:data_number, data_number)
 WHERE seq = :seq;

-- name: trace
-- `trace`: the handler's position.
UPDATE job SET run_trace = :trace WHERE seq = :seq;

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
       announced = max(worker.announced, excluded.announced),
       died = 0;

-- name: delete_worker
DELETE FROM worker WHERE owner = :owner;

-- name: delete_commands
DELETE FROM setting WHERE kind = 'worker' AND name = :owner;

-- name: partition
-- Returns the identity of this database, when it was created, and the instants of two events; NULL for a missing value.
-- `last` and `seen`: the numbers of both events.
SELECT (SELECT value FROM meta WHERE key = 'identity'),
       (SELECT value FROM meta WHERE key = 'created'),
       (SELECT at FROM event WHERE id = :last),
       (SELECT at FROM event WHERE id = :seen);

-- name: identify
-- Writes a lost part of the identity again.
-- `value`: NULL for a random one.
INSERT INTO meta VALUES (:key, coalesce(:value, lower(hex(randomblob(8)))))
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: cancelling
-- The runs of an owner that were asked to stop.
SELECT seq, fence
  FROM job INDEXED BY job_cancelling
 WHERE state = 'active'
   AND cancel_at IS NOT NULL
   AND owner = :owner;
