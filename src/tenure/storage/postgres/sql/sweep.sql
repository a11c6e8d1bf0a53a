-- sweep: the leader's chores. The record's own state guards each step.

-- name: leader
SELECT owner, epoch, length, until, swept_at, resumed_at FROM leader WHERE scope = '*';

-- name: elect
UPDATE leader SET owner = :owner, epoch = :epoch, length = :length, until = :until WHERE scope = '*';

-- name: swept
UPDATE leader SET swept_at = :now, resumed_at = :resumed_at WHERE scope = '*';

-- name: holders
SELECT DISTINCT owner FROM job_live WHERE state = 'active' ORDER BY owner;

-- name: workers
SELECT owner FROM worker WHERE died = 0;

-- name: delete_workers
-- Workers that have been silent for long without signing off.
-- `until`: the latest beat to delete.
DELETE FROM worker WHERE seen_at <= :until;

-- name: delete_commands
-- The orders for these workers.
-- `until`: the latest beat to delete.
DELETE FROM setting
 WHERE kind = 'worker'
   AND name IN (SELECT owner FROM worker WHERE seen_at <= :until);

-- name: delete_windows
-- Key windows whose time is over, the earliest first.
DELETE FROM "window"
 WHERE (queue, name) IN (
       SELECT queue, name
         FROM "window"
        WHERE until <= :now
        ORDER BY until, queue, name
        LIMIT :limit
 );

-- name: delete_figures
-- Cells of figures that begin before an instant, the earliest first.
-- `length`: of the cells, in microseconds.
DELETE FROM figure
 WHERE (length, task, queue, start) IN (
       SELECT length, task, queue, start
         FROM figure
        WHERE length = :length
          AND start < :before
        ORDER BY start, queue, task
        LIMIT :limit
 );

-- name: reset_rates
-- Taken rate time that has passed, the earliest first.
UPDATE rate
   SET taken_until = 0
 WHERE (queue, name) IN (
       SELECT queue, name
         FROM rate
        WHERE taken_until > 0
          AND taken_until <= :now
        ORDER BY taken_until, queue, name
        LIMIT :limit
 );

-- name: delete_rates
-- Rates without taken time and without parked jobs.
DELETE FROM rate
 WHERE (queue, name) IN (
       SELECT queue, name FROM rate WHERE opens_at IS NULL AND taken_until = 0 LIMIT :limit
 );

-- name: delete_tags
-- Virtual instants of tenants that are below their queue's virtual time.
DELETE FROM fair_tag
 WHERE (queue, boost, key) IN (
       SELECT fair_tag.queue, fair_tag.boost, fair_tag.key
         FROM fair_line
         JOIN fair_reached ON fair_reached.queue = fair_line.queue
         JOIN fair_tag
           ON fair_tag.queue = fair_reached.queue
          AND fair_tag.boost = fair_reached.boost
          AND fair_tag.tag <= greatest(fair_line.front, fair_reached.at)
        LIMIT :limit
 );

-- name: idle_fair_queues
-- Fair queues that have no unfinished jobs.
SELECT queue
  FROM fair_line
 WHERE NOT EXISTS (
       SELECT 1
         FROM tally
        WHERE tally.queue = fair_line.queue
          AND state IN ('delayed', 'waiting', 'active')
          AND jobs > 0
 )
 LIMIT :limit;

-- name: delete_idle_tags
DELETE FROM fair_tag
 WHERE (queue, boost, key) IN (SELECT queue, boost, key FROM fair_tag WHERE queue = :queue LIMIT :limit);

-- name: leases
-- Returns whether a lease is suspect, whether one may have to become so, and when the first active job started. With one
-- look at the active jobs, most sweeps need none of the next statements, each of which reads them all.
SELECT coalesce(bool_or(suspect_until IS NOT NULL), FALSE),
       coalesce(bool_or(suspect_until IS NULL
                        AND (lease_until IS NULL
                             OR lease_until <= :now
                             OR lease_until > :now + least(greatest(lease, start_grace, 5000000), 1000000000000000000))),
                FALSE),
       min(started)
  FROM (SELECT started, suspect_until, lease_until, lease, start_grace
          FROM job_live
         WHERE state = 'active'
           AND started >= front_of('', 'active')
         UNION ALL
        SELECT started, suspect_until, lease_until, lease, start_grace
          FROM job_live
         WHERE state = 'active'
           AND started IS NULL) AS active;

-- name: overdue
SELECT *
  FROM job_live
 WHERE state = 'active'
   AND suspect_until IS NOT NULL
   AND suspect_until <= :now
 ORDER BY suspect_until, queue, id
 LIMIT :limit;

-- name: lengths
-- The lengths of the current leases, each once.
SELECT DISTINCT greatest(lease, start_grace, 5000000) AS length
  FROM job_live
 WHERE state = 'active'
   AND suspect_until IS NULL
 ORDER BY length;

-- name: expired
-- Leases of one length that have run out.
SELECT lease_until, queue, id, seq
  FROM job_live
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND greatest(lease, start_grace, 5000000) = :length
   AND lease_until <= :now
 ORDER BY lease_until, queue, id
 LIMIT :limit;

-- name: endless
-- The same for leases without an end, which a damaged record can have.
SELECT 0, queue, id, seq
  FROM job_live
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND greatest(lease, start_grace, 5000000) = :length
   AND lease_until IS NULL
 LIMIT :limit;

-- name: unreachable
-- Delayed jobs of a queue that would never be due. Only a damaged record can be so.
SELECT seq
  FROM job_live
 WHERE queue = :queue
   AND state = 'delayed'
   AND run_at >= 288230376151711744
 LIMIT :limit;

-- name: invalid_state
-- Jobs whose state is not valid. Only a damaged record can be so.
SELECT seq
  FROM job_live
 WHERE state NOT IN ('waiting', 'active', 'delayed')
 ORDER BY seq
 LIMIT :limit;

-- name: misnamed_waiting
-- None: PostgreSQL refuses texts that are not UTF-8.
SELECT queue, seq FROM job_live WHERE FALSE;

-- name: misnamed_delayed
-- None: PostgreSQL refuses texts that are not UTF-8.
SELECT queue, seq FROM job_live WHERE FALSE;

-- name: ahead
-- Leases of one length that end further ahead than their length.
SELECT lease_until, queue, id, seq
  FROM job_live
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND greatest(lease, start_grace, 5000000) = :length
   AND lease_until > :until
 ORDER BY lease_until, queue, id
 LIMIT :limit;

-- name: suspect
UPDATE job_live SET suspect_until = :until WHERE seq = :seq;

-- name: shorten_suspicions
-- Shortens suspicions from before the clock was set back.
UPDATE job_live
   SET suspect_until = :now + lease / 2
 WHERE state = 'active'
   AND suspect_until IS NOT NULL
   AND suspect_until > :now + :grace
   AND suspect_until > :now + lease / 2;

-- name: expirable
-- Jobs that are too old to start.
SELECT seq
  FROM job_live
 WHERE state IN ('delayed', 'waiting')
   AND expires_at IS NOT NULL
   AND expires_at <= :now
 ORDER BY expires_at, queue, id
 LIMIT :limit;

-- name: parked_cursor
SELECT value FROM meta WHERE key = 'looked_at';

-- name: set_parked_cursor
-- `value`: the queue and key after which the next sweep continues.
INSERT INTO meta VALUES ('looked_at', :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: parked_under
-- The next keys of a queue that jobs are parked under, each once, with one index step per key. Paused and unknown tasks
-- are left out.
-- `after`: a name. `paused`, `unknown`: the prefixes of paused and of unknown tasks.
WITH RECURSIVE parked (name) AS (
       SELECT (SELECT min(parked_under)
                 FROM job_live
                WHERE queue = :queue AND state = 'waiting' AND parked_under > :after)
       UNION ALL
       SELECT (SELECT min(parked_under)
                 FROM job_live
                WHERE queue = :queue AND state = 'waiting' AND parked_under > parked.name)
         FROM parked
        WHERE parked.name IS NOT NULL
)
SELECT name
  FROM parked
 WHERE name IS NOT NULL
   AND NOT starts_with(name, :paused)
   AND NOT starts_with(name, :unknown)
 LIMIT :limit;

-- name: first_parked_after
-- The first job of a queue that is parked under a later name than the given one.
SELECT seq
  FROM job_live
 WHERE queue = :queue
   AND state = 'waiting'
   AND parked_under > :after
 ORDER BY parked_under
 LIMIT 1;

-- name: redrivable
-- Failed jobs that a rule redrives.
SELECT seq
  FROM job
 WHERE day >= 1
   AND state = 'failed'
   AND redrive_at IS NOT NULL
   AND redrive_at <= :now
 ORDER BY redrive_at, queue, id
 LIMIT :limit;

-- name: end_redrives
-- Only an operator can redrive this failed job from now on.
UPDATE job SET redrive_at = NULL WHERE day >= 1 AND seq = :seq;

-- name: past_lifetime
-- Completed jobs whose own lifetime is over.
SELECT seq
  FROM job
 WHERE day >= 1
   AND state = 'completed'
   AND kept_until IS NOT NULL
   AND kept_until <= :now
 ORDER BY kept_until, queue, id
 LIMIT :limit;

-- name: to_trim
-- The counters whose jobs the sweep checks now, with the number of their jobs that are under their queue's retention.
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
         FROM tally
        WHERE trim_at IS NOT NULL
          AND trim_at <= :now
        ORDER BY trim_at
        LIMIT :limit
 ) AS due
 ORDER BY queue, state;

-- name: set_trim_at
-- Sets the sweep's next check to the time when the earliest ended job will be too old.
UPDATE tally
   SET trim_at = (
       SELECT min(finished)
         FROM job
        WHERE day >= 1
          AND queue = :queue
          AND state = :state
          AND (kept_until IS NULL OR state <> 'completed')
          AND redrive_at IS NULL
          AND finished >= front_of(:queue, :state)
       ) + :age
 WHERE queue = :queue
   AND state = :state;

-- name: delete_counters
-- Deletes the counters and the fronts of a queue that has no jobs.
WITH deleted AS (
     DELETE FROM tally
      WHERE queue = :queue
        AND NOT EXISTS (SELECT 1 FROM tally AS other WHERE other.queue = :queue AND other.jobs <> 0)
     RETURNING queue
)
DELETE FROM front WHERE queue IN (SELECT queue FROM deleted);

-- name: delete_jobs
-- `seqs`: a list.
DELETE FROM job WHERE day >= 1 AND seq = ANY (translate(:seqs, '[]', '{}')::bigint[]);

-- name: delete_runs
-- `seqs`: a list.
DELETE FROM run WHERE seq = ANY (translate(:seqs, '[]', '{}')::bigint[]);

-- name: delete_logs
-- `seqs`: a list.
DELETE FROM log WHERE seq = ANY (translate(:seqs, '[]', '{}')::bigint[]);

-- name: ended
-- A queue's jobs with one end state, the earliest ended first, whether each may have merged calls, and when it ended.
SELECT seq, merge_key IS NOT NULL AND NOT starts_with(merge_key, 'unique:'), finished
  FROM job
 WHERE day >= 1
   AND queue = :queue
   AND state = :state
   AND (kept_until IS NULL OR state <> 'completed')
   AND redrive_at IS NULL
   AND finished <= :until
   AND finished >= front_of(:queue, :state)
 ORDER BY finished, id
 LIMIT :limit;

-- name: longest_completed
-- A queue's completed jobs, the earliest first. Returns none if a job ends later than now: the clock was set back, and
-- such jobs would not come first although they are old.
SELECT seq, merge_key IS NOT NULL AND NOT starts_with(merge_key, 'unique:'), finished
  FROM job
 WHERE day >= 1
   AND queue = :queue
   AND state = 'completed'
   AND kept_until IS NULL
   AND redrive_at IS NULL
   AND finished >= front_of(:queue, 'completed')
   AND NOT EXISTS (
              SELECT 1
                FROM job
               WHERE day >= 1
                 AND queue = :queue
                 AND state = 'completed'
                 AND finished > :now
                 AND kept_until IS NULL
                 AND redrive_at IS NULL
       )
 ORDER BY finished, id
 LIMIT :limit;

-- name: ended_ahead
-- The same for jobs that ended later than now, which is before the clock was set back.
SELECT seq, merge_key IS NOT NULL AND NOT starts_with(merge_key, 'unique:'), finished
  FROM job
 WHERE day >= 1
   AND queue = :queue
   AND state = :state
   AND (kept_until IS NULL OR state <> 'completed')
   AND redrive_at IS NULL
   AND finished > :now
 ORDER BY finished, id
 LIMIT :limit;

-- name: has_ready
-- Whether a job of the queue is ready.
SELECT (
       SELECT TRUE
         FROM job_live
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under IS NULL
          AND score >= front_of(:queue, 'waiting')
        ORDER BY score, id
        LIMIT 1
       ) IS NOT NULL;

-- name: first_kept_event
-- The first of the oldest events that is still to be kept.
-- `first`, `last`: the events to examine. `at`: the latest instant to delete.
SELECT id FROM event WHERE id >= :first AND id <= :last AND at > :at ORDER BY id LIMIT 1;

-- name: delete_events
-- `first`, `last`: the events to delete.
WITH noted AS (
     INSERT INTO meta VALUES ('events_deleted', :last::bigint::text)
     ON CONFLICT (key) DO UPDATE SET value = excluded.value
)
DELETE FROM event WHERE id >= :first AND id <= :last;
