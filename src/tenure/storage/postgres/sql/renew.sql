-- renew: extends leases that the owner still holds, stores log lines, and updates the worker's record.

-- name: runs
-- Returns for each listed run that is the current one its number in the list, and the values that a renewal needs of it.
-- Because of `coalesce` no index of the active jobs matches, which would read them all.
-- Parameters: runs (a list of queue, id and fence), owner.
SELECT listed.place - 1, seq, starts, started, lease, start_grace, timeout, deadline, heartbeat_timeout, run_until,
       progress_until, cancel_at, cancel_reason
  FROM jsonb_array_elements(:runs::jsonb) WITH ORDINALITY AS listed (value, place)
  JOIN job_live AS job
    ON job.queue = listed.value ->> 0
   AND job.id = listed.value ->> 1
   AND coalesce(job.state, '') = 'active'
   AND job.fence = (listed.value ->> 2)::bigint
   AND coalesce(job.owner, '') = :owner;

-- name: extend
-- Parameters: runs (a list of seq, lease_until, run_until and progress_until), now.
UPDATE job_live AS job
   SET heard_at = :now,
       lease_until = run.lease_until,
       suspect_until = CASE WHEN run.lease_until > :now THEN NULL ELSE job.suspect_until END,
       run_until = run.run_until,
       progress_until = run.progress_until
  FROM (
       SELECT (value ->> 0)::bigint AS seq,
              (value ->> 1)::bigint AS lease_until,
              (value ->> 2)::bigint AS run_until,
              (value ->> 3)::bigint AS progress_until
         FROM jsonb_array_elements(:runs::jsonb) AS listed (value)
 ) AS run
 WHERE job.seq = run.seq;

-- name: report
-- Stores the progress and the data that a handler has reported.
UPDATE job_live
   SET progress = coalesce(:progress::text::json, progress),
       progress_note = CASE WHEN :progress::text IS NULL THEN progress_note ELSE :note END,
       data = CASE WHEN :data_number > data_number THEN :data ELSE data END,
       data_number = greatest(:data_number, data_number)
 WHERE seq = :seq;

-- name: trace
-- `traces`: a list of seq and the handler's position.
UPDATE job_live AS job
   SET run_trace = listed.value ->> 1
  FROM jsonb_array_elements(:traces::jsonb) AS listed (value)
 WHERE job.seq = (listed.value ->> 0)::bigint;

-- name: trace_one
-- The same for one job.
UPDATE job_live SET run_trace = :trace WHERE seq = :seq;

-- name: logged
-- Returns for each listed job that has a log its seq, the run of the log's last line, that line's number in the run, and
-- how many lines the log has had.
-- `seqs`: a list.
SELECT last.seq, last.run, last.number, last.line
  FROM jsonb_array_elements_text(:seqs::jsonb) AS listed (seq)
 CROSS JOIN LATERAL (
       SELECT seq, run, number, line FROM log WHERE log.seq = listed.seq::bigint ORDER BY line DESC LIMIT 1
 ) AS last;

-- name: trim_log
-- Deletes all but the newest lines of a log.
DELETE FROM log
 WHERE seq = :seq
   AND line <= (SELECT line FROM log WHERE seq = :seq ORDER BY line DESC LIMIT 1 OFFSET :kept);

-- name: log
-- `lines`: a list of seq, line, at, run, level, message, fields and number.
INSERT INTO log (seq, line, at, run, level, message, fields, number)
SELECT (value ->> 0)::bigint, (value ->> 1)::bigint, (value ->> 2)::bigint, (value ->> 3)::bigint, value ->> 4,
       value ->> 5, value ->> 6, (value ->> 7)::bigint
  FROM jsonb_array_elements(:lines::jsonb) AS listed (value);

-- name: log_one
-- The same for one line.
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
