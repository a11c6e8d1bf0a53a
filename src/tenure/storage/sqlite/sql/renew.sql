-- renew: extends leases that the owner still holds, stores log lines, and updates the worker's record.

-- name: runs
-- Returns for each listed run that is the current one its number in the list, and the values that a renewal needs of it.
-- Parameters: runs (a list of queue, id and fence), owner.
SELECT listed.key, seq, starts, started, lease, start_grace, timeout, deadline, heartbeat_timeout, run_until,
       progress_until, cancel_at, cancel_reason
  FROM json_each(:runs) AS listed
 CROSS JOIN tenure_job
    ON tenure_job.queue = listed.value ->> 0
   AND tenure_job.id = listed.value ->> 1
   AND tenure_job.state = 'active'
   AND tenure_job.fence = listed.value ->> 2
   AND tenure_job.owner = :owner;

-- name: extend
-- Parameters: runs (a list of seq, lease_until, run_until and progress_until), now.
UPDATE tenure_job
   SET heard_at = :now,
       lease_until = run.lease_until,
       suspect_until = iif(run.lease_until > :now, NULL, tenure_job.suspect_until),
       run_until = run.run_until,
       progress_until = run.progress_until
  FROM (
       SELECT value ->> 0 AS seq,
              value ->> 1 AS lease_until,
              value ->> 2 AS run_until,
              value ->> 3 AS progress_until
         FROM json_each(:runs)
 ) AS run
 WHERE tenure_job.seq = run.seq;

-- name: report
-- Stores the progress and the data that a handler has reported. (As a list, numbers would lose their last digits.)
UPDATE tenure_job
   SET progress = coalesce(:progress, progress),
       progress_note = iif(:progress IS NULL, progress_note, :note),
       data = iif(:data_number > data_number, :data, data),
       data_number = max(:data_number, data_number)
 WHERE seq = :seq;

-- name: trace
-- `traces`: a list of seq and the handler's position.
UPDATE tenure_job NOT INDEXED
   SET run_trace = listed.trace
  FROM (SELECT value ->> 0 AS seq, value ->> 1 AS trace FROM json_each(:traces)) AS listed
 WHERE tenure_job.seq = listed.seq;

-- name: trace_one
UPDATE tenure_job SET run_trace = :trace WHERE seq = :seq;

-- name: logged
-- Returns for each listed job that has a log its seq, the run of the log's last line, that line's number in the run, and
-- how many lines the log has had.
-- `seqs`: a list.
SELECT tenure_log.seq, tenure_log.run, tenure_log.number, tenure_log.line
  FROM json_each(:seqs) AS listed
 CROSS JOIN tenure_log
    ON tenure_log.seq = listed.value
   AND tenure_log.line = (SELECT max(line) FROM tenure_log AS last WHERE last.seq = listed.value);

-- name: trim_log
-- Deletes all but the newest lines of a log.
DELETE FROM tenure_log
 WHERE seq = :seq
   AND line <= (SELECT line FROM tenure_log WHERE seq = :seq ORDER BY line DESC LIMIT 1 OFFSET :kept);

-- name: log
-- `lines`: a list of seq, line, at, run, level, message, fields and number.
INSERT INTO tenure_log (seq, line, at, run, level, message, fields, number)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7
  FROM json_each(:lines);

-- name: log_one
INSERT INTO tenure_log (seq, line, at, run, level, message, fields, number)
VALUES (:seq, :line, :at, :run, :level, :message, :fields, :number);

-- name: announced
-- The number of the last event that an owner has reported.
SELECT announced FROM tenure_worker WHERE owner = :owner;

-- name: update_worker
INSERT INTO tenure_worker (owner, name, host, pid, info, started, seen_at, announced)
VALUES (:owner, :name, :host, :pid, :info, :now, :now, :announced)
ON CONFLICT (owner) DO UPDATE
   SET name = excluded.name,
       host = excluded.host,
       pid = excluded.pid,
       info = excluded.info,
       seen_at = excluded.seen_at,
       announced = max(tenure_worker.announced, excluded.announced),
       died = 0;

-- name: delete_worker
DELETE FROM tenure_worker WHERE owner = :owner;

-- name: delete_commands
DELETE FROM tenure_setting WHERE kind = 'worker' AND name = :owner;

-- name: partition
-- Returns the identity of this database, when it was created, and the instants of two events; NULL for a missing value.
-- `last` and `seen`: the numbers of both events.
SELECT (SELECT value FROM tenure_meta WHERE key = 'identity'),
       (SELECT value FROM tenure_meta WHERE key = 'created'),
       (SELECT at FROM tenure_event WHERE id = :last),
       (SELECT at FROM tenure_event WHERE id = :seen);

-- name: identify
-- Writes a lost part of the identity again.
-- `value`: NULL for a random one.
INSERT INTO tenure_meta VALUES (:key, coalesce(:value, lower(hex(randomblob(8)))))
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: cancelling
-- The runs of an owner that were asked to stop.
SELECT seq, fence
  FROM tenure_job INDEXED BY tenure_job_cancelling
 WHERE state = 'active'
   AND cancel_at IS NOT NULL
   AND owner = :owner;
