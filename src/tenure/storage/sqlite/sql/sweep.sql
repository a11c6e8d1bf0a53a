-- sweep: the leader's chores. The record's own state guards each step.

-- name: leader
SELECT owner, epoch, length, until, swept_at, resumed_at FROM tenure_leader WHERE scope = '*';

-- name: elect
UPDATE tenure_leader SET owner = :owner, epoch = :epoch, length = :length, until = :until WHERE scope = '*';

-- name: swept
UPDATE tenure_leader SET swept_at = :now, resumed_at = :resumed_at WHERE scope = '*';

-- name: holders
SELECT owner FROM tenure_job INDEXED BY tenure_job_lease WHERE state = 'active' AND suspect_until IS NULL
UNION
SELECT owner FROM tenure_job INDEXED BY tenure_job_suspect WHERE state = 'active' AND suspect_until IS NOT NULL
 ORDER BY owner;

-- name: workers
SELECT owner FROM tenure_worker WHERE died = 0;

-- name: delete_workers
-- Workers that have been silent for long without signing off.
-- `until`: the latest beat to delete.
DELETE FROM tenure_worker WHERE seen_at <= :until;

-- name: delete_commands
-- The orders for these workers.
-- `until`: the latest beat to delete.
DELETE FROM tenure_setting
 WHERE kind = 'worker'
   AND name IN (SELECT owner FROM tenure_worker WHERE seen_at <= :until);

-- name: delete_windows
-- Key windows whose time is over, the earliest first.
DELETE FROM tenure_window
 WHERE (queue, name) IN (
       SELECT queue, name
         FROM tenure_window INDEXED BY tenure_window_over
        WHERE until <= :now
        ORDER BY until, queue, name
        LIMIT :limit
 );

-- name: delete_figures
-- Cells of figures that begin before an instant, the earliest first.
-- `length`: of the cells, in microseconds.
DELETE FROM tenure_figure
 WHERE (length, task, queue, start) IN (
       SELECT length, task, queue, start
         FROM tenure_figure INDEXED BY tenure_figure_start
        WHERE length = :length
          AND start < :before
        ORDER BY start, queue, task
        LIMIT :limit
 );

-- name: reset_rates
-- Taken rate time that has passed, the earliest first.
UPDATE tenure_rate
   SET taken_until = 0
 WHERE (queue, name) IN (
       SELECT queue, name
         FROM tenure_rate INDEXED BY tenure_rate_over
        WHERE taken_until > 0
          AND taken_until <= :now
        ORDER BY taken_until, queue, name
        LIMIT :limit
 );

-- name: delete_rates
-- Rates without taken time and without parked jobs.
DELETE FROM tenure_rate
 WHERE (queue, name) IN (
       SELECT queue, name
         FROM tenure_rate INDEXED BY tenure_rate_idle
        WHERE opens_at IS NULL AND taken_until = 0
        LIMIT :limit
 );

-- name: delete_tags
-- Virtual instants of tenants that are below their queue's virtual time.
DELETE FROM tenure_fair_tag
 WHERE (queue, boost, key) IN (
       SELECT tenure_fair_tag.queue, tenure_fair_tag.boost, tenure_fair_tag.key
         FROM tenure_fair_line
        CROSS JOIN tenure_fair_reached ON tenure_fair_reached.queue = tenure_fair_line.queue
        CROSS JOIN tenure_fair_tag INDEXED BY tenure_fair_tag_passed
           ON tenure_fair_tag.queue = tenure_fair_reached.queue
          AND tenure_fair_tag.boost = tenure_fair_reached.boost
          AND tenure_fair_tag.tag <= max(tenure_fair_line.front, tenure_fair_reached.at)
        LIMIT :limit
 );

-- name: idle_fair_queues
-- Fair queues that have no unfinished jobs.
SELECT queue
  FROM tenure_fair_line
 WHERE NOT EXISTS (
       SELECT 1
         FROM tenure_tally INDEXED BY sqlite_autoindex_tenure_tally_1
        WHERE tenure_tally.queue = tenure_fair_line.queue
          AND state IN ('delayed', 'waiting', 'active')
          AND jobs > 0
 )
 LIMIT :limit;

-- name: delete_idle_tags
DELETE FROM tenure_fair_tag
 WHERE (queue, boost, key) IN (SELECT queue, boost, key FROM tenure_fair_tag WHERE queue = :queue LIMIT :limit);

-- name: leases
-- Returns whether a lease is suspect, whether one may have to become so, and NULL. The next statements each take one step in an
-- index here, so they need no look before.
SELECT 1, 1, NULL;

-- name: overdue
SELECT *
  FROM tenure_job
 WHERE state = 'active'
   AND suspect_until IS NOT NULL
   AND suspect_until <= :now
 ORDER BY suspect_until, queue, id
 LIMIT :limit;

-- name: lengths
-- The lengths of the current leases, each once, with one index step per length.
WITH RECURSIVE length (value) AS (
       SELECT (SELECT max(lease, start_grace, 5000000)
                 FROM tenure_job
                WHERE state = 'active' AND suspect_until IS NULL
                ORDER BY max(lease, start_grace, 5000000)
                LIMIT 1)
       UNION ALL
       SELECT (SELECT max(lease, start_grace, 5000000)
                 FROM tenure_job
                WHERE state = 'active' AND suspect_until IS NULL
                  AND max(lease, start_grace, 5000000) > length.value
                ORDER BY max(lease, start_grace, 5000000)
                LIMIT 1)
         FROM length
        WHERE length.value IS NOT NULL
)
SELECT value FROM length WHERE value IS NOT NULL;

-- name: expired
-- Leases of one length that have run out.
SELECT lease_until, queue, id, seq
  FROM tenure_job
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND max(lease, start_grace, 5000000) = :length
   AND lease_until <= :now
 ORDER BY lease_until, queue, id
 LIMIT :limit;

-- name: endless
-- The same for leases without an end, which a damaged record can have.
SELECT 0, queue, id, seq
  FROM tenure_job
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND max(lease, start_grace, 5000000) = :length
   AND lease_until IS NULL
 LIMIT :limit;

-- name: unreachable
-- Delayed jobs of a queue that would never be due. Only a damaged record can be so.
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_delayed
 WHERE queue = :queue
   AND state = 'delayed'
   AND run_at >= 288230376151711744
 LIMIT :limit;

-- name: invalid_state
-- Jobs whose state is not valid. Only a damaged record can be so.
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_stateless
 WHERE state <> 'waiting'
   AND state <> 'active'
   AND state <> 'completed'
   AND state <> 'delayed'
   AND state <> 'failed'
   AND state <> 'cancelled'
   AND state <> 'expired'
 ORDER BY seq
 LIMIT :limit;

-- name: misnamed_waiting
-- The queues that have waiting jobs and whose names are not plain ASCII, each with one of these jobs.
WITH RECURSIVE found (queue) AS (
       SELECT (SELECT min(queue) FROM tenure_job INDEXED BY tenure_job_waiting WHERE state = 'waiting')
       UNION ALL
       SELECT (SELECT min(queue)
                 FROM tenure_job INDEXED BY tenure_job_waiting
                WHERE state = 'waiting' AND queue > found.queue)
         FROM found
        WHERE found.queue IS NOT NULL
)
SELECT queue,
       (SELECT seq
          FROM tenure_job INDEXED BY tenure_job_waiting
         WHERE state = 'waiting' AND tenure_job.queue = found.queue
         LIMIT 1)
  FROM found
 WHERE queue GLOB '*[^ -~]*';

-- name: misnamed_delayed
-- The queues that have delayed jobs and whose names are not plain ASCII, each with one of these jobs.
WITH RECURSIVE found (queue) AS (
       SELECT (SELECT min(queue) FROM tenure_job INDEXED BY tenure_job_delayed WHERE state = 'delayed')
       UNION ALL
       SELECT (SELECT min(queue)
                 FROM tenure_job INDEXED BY tenure_job_delayed
                WHERE state = 'delayed' AND queue > found.queue)
         FROM found
        WHERE found.queue IS NOT NULL
)
SELECT queue,
       (SELECT seq
          FROM tenure_job INDEXED BY tenure_job_delayed
         WHERE state = 'delayed' AND tenure_job.queue = found.queue
         LIMIT 1)
  FROM found
 WHERE queue GLOB '*[^ -~]*';

-- name: ahead
-- Leases of one length that end further ahead than their length.
SELECT lease_until, queue, id, seq
  FROM tenure_job
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND max(lease, start_grace, 5000000) = :length
   AND lease_until > :until
 ORDER BY lease_until, queue, id
 LIMIT :limit;

-- name: suspect
UPDATE tenure_job SET suspect_until = :until WHERE seq = :seq;

-- name: shorten_suspicions
-- Shortens suspicions from before the clock was set back.
UPDATE tenure_job
   SET suspect_until = :now + lease / 2
 WHERE state = 'active'
   AND suspect_until IS NOT NULL
   AND suspect_until > :now + :grace
   AND suspect_until > :now + lease / 2;

-- name: expirable
-- Jobs that are too old to start.
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_ttl
 WHERE state IN ('delayed', 'waiting')
   AND expires_at IS NOT NULL
   AND expires_at <= :now
 ORDER BY expires_at, queue, id
 LIMIT :limit;

-- name: parked_cursor
SELECT value FROM tenure_meta WHERE key = 'looked_at';

-- name: set_parked_cursor
-- `value`: the queue and key after which the next sweep continues.
INSERT INTO tenure_meta VALUES ('looked_at', :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: parked_under
-- The next keys of a queue that jobs are parked under, each once, with one index step per key. Paused and unknown tasks
-- are left out.
-- `after`: a name. `paused`, `unknown`: the prefixes of paused and of unknown tasks.
WITH RECURSIVE parked (name) AS (
       SELECT (SELECT min(parked_under)
                 FROM tenure_job INDEXED BY tenure_job_parked
                WHERE queue = :queue AND state = 'waiting' AND parked_under > :after)
       UNION ALL
       SELECT (SELECT min(parked_under)
                 FROM tenure_job INDEXED BY tenure_job_parked
                WHERE queue = :queue AND state = 'waiting' AND parked_under > parked.name)
         FROM parked
        WHERE parked.name IS NOT NULL
)
SELECT name
  FROM parked
 WHERE name IS NOT NULL
   AND substr(name, 1, length(:paused)) <> :paused
   AND substr(name, 1, length(:unknown)) <> :unknown
 LIMIT :limit;

-- name: first_parked_after
-- The first job of a queue that is parked under a later name than the given one.
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_parked
 WHERE queue = :queue
   AND state = 'waiting'
   AND parked_under > :after
 ORDER BY parked_under
 LIMIT 1;

-- name: redrivable
-- Failed jobs that a rule redrives.
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_redrive
 WHERE state = 'failed'
   AND redrive_at IS NOT NULL
   AND redrive_at <= :now
 ORDER BY redrive_at, queue, id
 LIMIT :limit;

-- name: end_redrives
-- Only an operator can redrive this failed job from now on.
UPDATE tenure_job SET redrive_at = NULL WHERE seq = :seq;

-- name: past_lifetime
-- Completed jobs whose own lifetime is over.
SELECT seq
  FROM tenure_job INDEXED BY tenure_job_kept
 WHERE state = 'completed'
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
                       FROM tenure_tally AS spared
                      WHERE spared.queue = tenure_tally.queue
                        AND spared.state = CASE tenure_tally.state
                                           WHEN 'completed' THEN 'kept'
                                           WHEN 'failed' THEN 'ruled'
                                           END
                     ),
                     0
              ) AS jobs
         FROM tenure_tally INDEXED BY tenure_tally_trim
        WHERE trim_at IS NOT NULL
          AND trim_at <= :now
        ORDER BY trim_at
        LIMIT :limit
 )
 ORDER BY queue, state;

-- name: set_trim_at
-- Sets the sweep's next check to the time when the earliest ended job will be too old.
UPDATE tenure_tally
   SET trim_at = (
       SELECT min(finished)
         FROM tenure_job INDEXED BY tenure_job_ended
        WHERE queue = :queue
          AND state = :state
          AND finished IS NOT NULL
          AND (kept_until IS NULL OR state <> 'completed')
          AND redrive_at IS NULL
       ) + :age
 WHERE queue = :queue
   AND state = :state;

-- name: delete_counters
-- Deletes the counters of a queue that has no jobs.
DELETE FROM tenure_tally INDEXED BY sqlite_autoindex_tenure_tally_1
 WHERE queue = :queue
   AND NOT EXISTS (
              SELECT 1
                FROM tenure_tally AS other INDEXED BY sqlite_autoindex_tenure_tally_1
               WHERE other.queue = :queue
                 AND other.jobs <> 0
       );

-- name: delete_jobs
-- `seqs`: a list.
DELETE FROM tenure_job WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: delete_runs
-- `seqs`: a list.
DELETE FROM tenure_run WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: delete_logs
-- `seqs`: a list.
DELETE FROM tenure_log WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: ended
-- A queue's jobs with one end state, the earliest ended first, whether each may have merged calls, and when it ended.
SELECT seq, merge_key IS NOT NULL AND merge_key NOT GLOB 'unique:*', finished
  FROM tenure_job INDEXED BY tenure_job_ended
 WHERE queue = :queue
   AND state = :state
   AND finished IS NOT NULL
   AND (kept_until IS NULL OR state <> 'completed')
   AND redrive_at IS NULL
   AND finished <= :until
 ORDER BY finished, id
 LIMIT :limit;

-- name: longest_completed
-- A queue's completed jobs, the earliest first. Returns none if a job ends later than now: the clock was set back, and
-- such jobs would not come first although they are old.
SELECT seq, merge_key IS NOT NULL AND merge_key NOT GLOB 'unique:*', finished
  FROM tenure_job INDEXED BY tenure_job_ended
 WHERE queue = :queue
   AND state = 'completed'
   AND finished IS NOT NULL
   AND kept_until IS NULL
   AND redrive_at IS NULL
   AND NOT EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_ended
               WHERE queue = :queue
                 AND state = 'completed'
                 AND finished > :now
                 AND kept_until IS NULL
                 AND redrive_at IS NULL
       )
 ORDER BY finished, id
 LIMIT :limit;

-- name: ended_ahead
-- The same for jobs that ended later than now, which is before the clock was set back.
SELECT seq, merge_key IS NOT NULL AND merge_key NOT GLOB 'unique:*', finished
  FROM tenure_job INDEXED BY tenure_job_ended
 WHERE queue = :queue
   AND state = :state
   AND finished IS NOT NULL
   AND (kept_until IS NULL OR state <> 'completed')
   AND redrive_at IS NULL
   AND finished > :now
 ORDER BY finished, id
 LIMIT :limit;

-- name: has_ready
-- Whether a job of the queue is ready.
SELECT EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_ready
               WHERE queue = :queue
                 AND state = 'waiting'
                 AND parked_under IS NULL
       );

-- name: first_kept_event
-- The first of the oldest events that is still to be kept.
-- `first`, `last`: the events to examine. `at`: the latest instant to delete.
SELECT id FROM tenure_event WHERE id >= :first AND id <= :last AND at > :at ORDER BY id LIMIT 1;

-- name: delete_events
-- `first`, `last`: the events to delete.
DELETE FROM tenure_event WHERE id >= :first AND id <= :last;
