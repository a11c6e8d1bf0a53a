-- exchange: settles runs that are the current ones, then claims what is due. Every guard stands in the statement itself.

-- name: standing
-- Parameters: queue, id.
SELECT seq, state, fence, owner, starts, cancel_at, keys, boost FROM job WHERE queue = ? AND id = ?;

-- name: finish
-- Parameters: state, now, kept_until, redrive_at, result, error, reason, failures, stalls, releases, seq, fence, owner.
UPDATE job
   SET state = ?,
       finished = ?,
       kept_until = ?,
       redrive_at = ?,
       result = ?,
       error = ?,
       reason = ?,
       failures = failures + ?,
       stalls = stalls + ?,
       releases = releases + ?,
       quarantined = 0,
       settled_fence = fence,
       owner = NULL,
       heard_at = NULL,
       lease_until = NULL,
       suspect_until = NULL,
       run_until = NULL,
       progress_until = NULL
 WHERE seq = ?
   AND state = 'active'
   AND fence = ?
   AND owner = ?;

-- name: put_back
-- A job that runs again at once keeps its score, but stands no further back than where the line has got to (`reached`);
-- one that was asked to stop is not put back.
UPDATE job
   SET state = iif(:after = 0, 'waiting', 'delayed'),
       run_at = :now + :after,
       score = CASE
               WHEN :after > 0 THEN iif(lifo, -1, 1) * (:now + :after) - boost
               WHEN lifo THEN score
               ELSE min(score, :reached - boost)
               END,
       error = coalesce(:error, error),
       reason = :reason,
       failures = failures + :failures,
       stalls = stalls + :stalls,
       releases = releases + :releases,
       quarantined = :quarantine,
       settled_fence = fence,
       owner = NULL,
       heard_at = NULL,
       lease_until = NULL,
       suspect_until = NULL,
       run_until = NULL,
       progress_until = NULL
 WHERE seq = :seq
   AND state = 'active'
   AND fence = :fence
   AND owner = :owner
   AND cancel_at IS NULL;

-- name: close_run
UPDATE run SET "end" = ?, ended = ?, reason = ?, detail = ?, trace = NULL WHERE seq = ? AND number = ?;

-- name: due
-- Parameters: queue, now, limit. Returns when each is too old to start, too, and whether it has a fair key.
SELECT seq, expires_at, fair_key IS NOT NULL
  FROM job
 WHERE queue = ?
   AND state = 'delayed'
   AND run_at <= ?
 ORDER BY run_at, id
 LIMIT ?;

-- name: promote
-- Parameters: queue, now, limit.
UPDATE job
   SET state = 'waiting'
 WHERE seq IN (
       SELECT seq
         FROM job
        WHERE queue = ?
          AND state = 'delayed'
          AND run_at <= ?
        ORDER BY run_at, id
        LIMIT ?
 );

-- name: come_in
-- One of them, where its score depends on who stands in line before it. Parameters: score, seq.
UPDATE job SET state = 'waiting', score = ? WHERE seq = ?;

-- name: ready
-- Parameters: queue, limit.
SELECT *
  FROM job INDEXED BY job_ready
 WHERE queue = ?
   AND state = 'waiting'
   AND parked_under IS NULL
 ORDER BY score, id
 LIMIT ?;

-- name: expire
UPDATE job
   SET state = 'expired',
       parked_under = NULL,
       quarantined = 0,
       finished = :now,
       error = :error,
       reason = NULL,
       redrive_at = NULL
 WHERE seq = :seq;

-- name: park
-- Parameters: the key, seq.
UPDATE job SET parked_under = ? WHERE seq = ?;

-- name: unpark
-- Lets the best of those parked under a key back in line. Parameters: queue, key, limit.
UPDATE job
   SET parked_under = NULL
 WHERE seq IN (
       SELECT seq
         FROM job INDEXED BY job_parked
        WHERE queue = ?
          AND state = 'waiting'
          AND parked_under = ?
        ORDER BY score, id
        LIMIT ?
 );

-- name: take_slot
-- Parameters: queue, key, id.
INSERT INTO slot (queue, key, id) VALUES (?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: leave_slot
-- Parameters: queue, key, id.
DELETE FROM slot WHERE queue = ? AND key = ? AND id = ?;

-- name: start
-- Parameters: the values as listed, seq.
UPDATE job
   SET state = 'active',
       lease = ?,
       max_stalls = ?,
       start_grace = ?,
       renewed = ?,
       fence = ?,
       owner = ?,
       heard_at = ?,
       lease_until = ?,
       run_until = ?,
       progress_until = ?,
       starts = ?,
       started = ?
 WHERE seq = ?;

-- name: open_run
INSERT INTO run (seq, number, fence, owner, worker, host, pid, start) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: trim_runs
-- Parameters: seq, the number of the newest run to forget.
DELETE FROM run WHERE seq = ? AND number <= ?;

-- name: glance
-- Returns whether a job of the queue is ready, when the next delayed one falls due, and when the first rate opens that
-- anybody is parked under. Parameters: queue.
SELECT EXISTS (
              SELECT 1
                FROM job INDEXED BY job_ready
               WHERE queue = :queue
                 AND state = 'waiting'
                 AND parked_under IS NULL
       ),
       (SELECT min(run_at) FROM job WHERE queue = :queue AND state = 'delayed'),
       (SELECT min(opens_at) FROM rate INDEXED BY rate_opening WHERE queue = :queue AND opens_at IS NOT NULL);
