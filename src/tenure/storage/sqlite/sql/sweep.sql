-- sweep: the leader's turn. Each step is guarded by the record's own state.

-- name: leader
SELECT owner, epoch, length, until, swept_at, resumed_at FROM leader WHERE scope = '*';

-- name: elect
UPDATE leader SET owner = ?, epoch = ?, length = ?, until = ? WHERE scope = '*';

-- name: swept
UPDATE leader SET swept_at = ?, resumed_at = ? WHERE scope = '*';

-- name: holders
SELECT owner FROM job WHERE state = 'active' AND suspect_until IS NULL
UNION
SELECT owner FROM job WHERE state = 'active' AND suspect_until IS NOT NULL
 ORDER BY owner;

-- name: workers
SELECT owner FROM worker WHERE died = 0;

-- name: forget_workers
-- Those who took no leave and have been silent for so long. Parameters: the last beat that is forgotten.
DELETE FROM worker WHERE seen_at <= ?;

-- name: forget_orders
-- What those were told. Parameters: the last beat that is forgotten.
DELETE FROM setting
 WHERE kind = 'worker'
   AND name IN (SELECT owner FROM worker WHERE seen_at <= ?);

-- name: forget_windows
-- The keys whose time is over, the longest over first. Parameters: now, limit.
DELETE FROM window
 WHERE (queue, name) IN (
       SELECT queue, name
         FROM window INDEXED BY window_over
        WHERE until <= ?
        ORDER BY until, queue, name
        LIMIT ?
 );

-- name: forget_time
-- Time of rates that has gone by since it was taken, the longest ago first. Parameters: now, limit.
UPDATE rate
   SET taken_until = 0
 WHERE (queue, name) IN (
       SELECT queue, name
         FROM rate INDEXED BY rate_over
        WHERE taken_until > 0
          AND taken_until <= ?
        ORDER BY taken_until, queue, name
        LIMIT ?
 );

-- name: forget_rates
-- Those of which no time is taken, and that nobody is parked under. Parameters: limit.
DELETE FROM rate
 WHERE (queue, name) IN (
       SELECT queue, name FROM rate INDEXED BY rate_idle WHERE opens_at IS NULL AND taken_until = 0 LIMIT ?
 );

-- name: forget_tags
-- Virtual instants of tenants that their lines have passed. Parameters: limit.
DELETE FROM fair_tag
 WHERE (queue, boost, key) IN (
       SELECT fair_tag.queue, fair_tag.boost, fair_tag.key
         FROM fair_line
        CROSS JOIN fair_reached ON fair_reached.queue = fair_line.queue
        CROSS JOIN fair_tag INDEXED BY fair_tag_passed
           ON fair_tag.queue = fair_reached.queue
          AND fair_tag.boost = fair_reached.boost
          AND fair_tag.tag <= max(fair_line.front, fair_reached.at)
        LIMIT ?
 );

-- name: idle_lines
-- Lines that are fair, though their queues have nothing unfinished. Parameters: limit.
SELECT queue
  FROM fair_line
 WHERE NOT EXISTS (
       SELECT 1
         FROM tally
        WHERE tally.queue = fair_line.queue
          AND state IN ('delayed', 'waiting', 'active')
          AND jobs > 0
 )
 LIMIT ?;

-- name: forget_idle_tags
-- Parameters: queue, limit.
DELETE FROM fair_tag
 WHERE (queue, boost, key) IN (SELECT queue, boost, key FROM fair_tag WHERE queue = ? LIMIT ?);

-- name: overdue
-- Parameters: now, limit.
SELECT *
  FROM job
 WHERE state = 'active'
   AND suspect_until IS NOT NULL
   AND suspect_until <= ?
 ORDER BY suspect_until, queue, id
 LIMIT ?;

-- name: lengths
-- How long the leases are that are held now, each length once: a leap through the index, not a walk.
WITH RECURSIVE length (value) AS (
       SELECT (SELECT max(lease, start_grace, 5000000)
                 FROM job
                WHERE state = 'active' AND suspect_until IS NULL
                ORDER BY max(lease, start_grace, 5000000)
                LIMIT 1)
       UNION ALL
       SELECT (SELECT max(lease, start_grace, 5000000)
                 FROM job
                WHERE state = 'active' AND suspect_until IS NULL
                  AND max(lease, start_grace, 5000000) > length.value
                ORDER BY max(lease, start_grace, 5000000)
                LIMIT 1)
         FROM length
        WHERE length.value IS NOT NULL
)
SELECT value FROM length WHERE value IS NOT NULL;

-- name: out
-- Leases of one length that have run out. Parameters: length, now, limit.
SELECT lease_until, queue, id, seq
  FROM job
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND max(lease, start_grace, 5000000) = ?
   AND lease_until <= ?
 ORDER BY lease_until, queue, id
 LIMIT ?;

-- name: endless
-- The same of those that have no end, which a damaged record can lack. Parameters: length, limit.
SELECT 0, queue, id, seq
  FROM job
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND max(lease, start_grace, 5000000) = ?
   AND lease_until IS NULL
 LIMIT ?;

-- name: unreachable
-- Delayed jobs of a queue that would never be due: no job is made so. Parameters: queue, limit.
SELECT seq
  FROM job INDEXED BY job_delayed
 WHERE queue = ?
   AND state = 'delayed'
   AND run_at >= 288230376151711744
 LIMIT ?;

-- name: ahead
-- Leases of one length that end further ahead than they are long. Parameters: length, now + length, limit.
SELECT lease_until, queue, id, seq
  FROM job
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND max(lease, start_grace, 5000000) = ?
   AND lease_until > ?
 ORDER BY lease_until, queue, id
 LIMIT ?;

-- name: suspect
UPDATE job SET suspect_until = ? WHERE seq = ?;

-- name: recall
-- Suspicions from before the clock was set back.
UPDATE job
   SET suspect_until = :now + lease / 2
 WHERE state = 'active'
   AND suspect_until IS NOT NULL
   AND suspect_until > :now + :grace
   AND suspect_until > :now + lease / 2;

-- name: aged
-- Jobs that are too old to start. Parameters: now, limit.
SELECT seq
  FROM job INDEXED BY job_ttl
 WHERE state IN ('delayed', 'waiting')
   AND expires_at IS NOT NULL
   AND expires_at <= ?
 ORDER BY expires_at, queue, id
 LIMIT ?;

-- name: looked_at
SELECT value FROM meta WHERE key = 'looked_at';

-- name: look_on
-- Parameters: the queue and key behind which the next sweep looks.
INSERT INTO meta VALUES ('looked_at', ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: parked_under
-- The next keys of a queue that jobs are parked under, each once: a leap through the index, not a walk. Parameters:
-- queue, after (a name), limit, and what the names begin with that are no keys but paused tasks.
WITH RECURSIVE parked (name) AS (
       SELECT (SELECT min(parked_under)
                 FROM job INDEXED BY job_parked
                WHERE queue = :queue AND state = 'waiting' AND parked_under > :after)
       UNION ALL
       SELECT (SELECT min(parked_under)
                 FROM job INDEXED BY job_parked
                WHERE queue = :queue AND state = 'waiting' AND parked_under > parked.name)
         FROM parked
        WHERE parked.name IS NOT NULL
)
SELECT name
  FROM parked
 WHERE name IS NOT NULL
   AND substr(name, 1, length(:paused)) <> :paused
 LIMIT :limit;

-- name: parked_behind
-- The first job of a queue that is parked under a name behind another. Parameters: queue, that name.
SELECT seq
  FROM job INDEXED BY job_parked
 WHERE queue = ?
   AND state = 'waiting'
   AND parked_under > ?
 ORDER BY parked_under
 LIMIT 1;

-- name: redrivable
-- Failed jobs that a rule puts back in line. Parameters: now, limit.
SELECT seq
  FROM job INDEXED BY job_redrive
 WHERE state = 'failed'
   AND redrive_at IS NOT NULL
   AND redrive_at <= ?
 ORDER BY redrive_at, queue, id
 LIMIT ?;

-- name: give_up
-- Nobody puts this failed job back in line but a person.
UPDATE job SET redrive_at = NULL WHERE seq = ?;

-- name: outlived
-- Completed jobs whose own lifetime is over. Parameters: now, limit.
SELECT seq
  FROM job INDEXED BY job_kept
 WHERE state = 'completed'
   AND kept_until IS NOT NULL
   AND kept_until <= ?
 ORDER BY kept_until, queue, id
 LIMIT ?;

-- name: to_trim
-- The counters whose jobs the sweep looks at by now, with how many of these are under their queue's retention. Parameters:
-- now, limit.
SELECT queue, state, jobs
  FROM (
       SELECT queue,
              state,
              jobs - coalesce(
                     (
                     SELECT jobs
                       FROM tally AS spared
                      WHERE spared.queue = tally.queue
                        AND spared.state = CASE tally.state WHEN 'completed' THEN 'kept' WHEN 'failed' THEN 'ruled' END
                     ),
                     0
              ) AS jobs
         FROM tally INDEXED BY tally_trim
        WHERE trim_at IS NOT NULL
          AND trim_at <= ?
        ORDER BY trim_at
        LIMIT ?
 )
 ORDER BY queue, state;

-- name: trimmed
-- The sweep has looked: it looks again when the longest ended job is too old. Parameters: queue, state, age.
UPDATE tally
   SET trim_at = (
       SELECT min(finished)
         FROM job INDEXED BY job_ended
        WHERE queue = :queue
          AND state = :state
          AND finished IS NOT NULL
          AND (kept_until IS NULL OR state <> 'completed')
          AND redrive_at IS NULL
       ) + :age
 WHERE queue = :queue
   AND state = :state;

-- name: forget_queue
-- Forgets the counters of a queue that has no jobs. Parameters: queue.
DELETE FROM tally
 WHERE queue = ?1
   AND NOT EXISTS (SELECT 1 FROM tally AS other WHERE other.queue = ?1 AND other.jobs <> 0);

-- name: forget_jobs
-- Parameters: seqs (a list).
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(?));

-- name: forget_runs
-- Parameters: seqs (a list).
DELETE FROM run WHERE seq IN (SELECT value FROM json_each(?));

-- name: forget_logs
-- Parameters: seqs (a list).
DELETE FROM log WHERE seq IN (SELECT value FROM json_each(?));

-- name: ended
-- Those of a queue that came to one end, the longest ended first, and whether each may have taken in other calls. Parameters:
-- queue, state, until when, limit.
SELECT seq, merge_key IS NOT NULL AND merge_key NOT GLOB 'unique:*'
  FROM job INDEXED BY job_ended
 WHERE queue = ?
   AND state = ?
   AND finished IS NOT NULL
   AND (kept_until IS NULL OR state <> 'completed')
   AND redrive_at IS NULL
   AND finished <= ?
 ORDER BY finished, id
 LIMIT ?;

-- name: longest_completed
-- Completed jobs of a queue, the longest completed first; none where the clock was set back, for then these do not come
-- first. Parameters: queue, now, limit.
SELECT seq, merge_key IS NOT NULL AND merge_key NOT GLOB 'unique:*'
  FROM job INDEXED BY job_ended
 WHERE queue = :queue
   AND state = 'completed'
   AND finished IS NOT NULL
   AND kept_until IS NULL
   AND redrive_at IS NULL
   AND NOT EXISTS (
              SELECT 1
                FROM job INDEXED BY job_ended
               WHERE queue = :queue
                 AND state = 'completed'
                 AND finished > :now
                 AND kept_until IS NULL
                 AND redrive_at IS NULL
       )
 ORDER BY finished, id
 LIMIT :limit;

-- name: ended_ahead
-- The same of those that ended later than now, so before the clock was set back. Parameters: queue, state, now, limit.
SELECT seq, merge_key IS NOT NULL AND merge_key NOT GLOB 'unique:*'
  FROM job INDEXED BY job_ended
 WHERE queue = ?
   AND state = ?
   AND finished IS NOT NULL
   AND (kept_until IS NULL OR state <> 'completed')
   AND redrive_at IS NULL
   AND finished > ?
 ORDER BY finished, id
 LIMIT ?;

-- name: lined
-- Whether anybody stands in line. Parameters: queue.
SELECT EXISTS (
              SELECT 1
                FROM job INDEXED BY job_ready
               WHERE queue = ?
                 AND state = 'waiting'
                 AND parked_under IS NULL
       );

-- name: young
-- The first of the oldest events that is still to be kept. Parameters: the last one to look at, until when they go.
SELECT id FROM event WHERE id <= ? AND at > ? ORDER BY id LIMIT 1;

-- name: forget
-- Parameters: the last event to forget.
DELETE FROM event WHERE id <= ?;
