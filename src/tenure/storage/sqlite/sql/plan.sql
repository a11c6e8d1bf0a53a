-- plan: creates, pauses, removes and advances schedules. A row is the schedule as JSON, and the columns that find due
-- schedules.

-- name: known
SELECT body FROM tenure_schedule WHERE name = :name;

-- name: put
INSERT INTO tenure_schedule (name, body, last_tick, next_tick, paused)
VALUES (:name, :body, :last_tick, :next_tick, :paused)
ON CONFLICT (name) DO UPDATE
   SET body = excluded.body,
       last_tick = excluded.last_tick,
       next_tick = excluded.next_tick,
       paused = excluded.paused;

-- name: remove
DELETE FROM tenure_schedule WHERE name = :name;

-- name: unfinished_states
-- The states of a schedule's unfinished jobs, each once, with one index step per state.
WITH RECURSIVE standing (state) AS (
       SELECT (SELECT min(state)
                 FROM tenure_job INDEXED BY tenure_job_scheduled
                WHERE schedule = :name AND finished IS NULL)
       UNION ALL
       SELECT (SELECT min(state)
                 FROM tenure_job INDEXED BY tenure_job_scheduled
                WHERE schedule = :name AND finished IS NULL AND state > standing.state)
         FROM standing
        WHERE standing.state IS NOT NULL
)
SELECT state FROM standing WHERE state IS NOT NULL;

-- name: due
-- Schedules with a due tick, the earliest first.
SELECT body
  FROM tenure_schedule INDEXED BY tenure_schedule_due
 WHERE next_tick IS NOT NULL
   AND paused = 0
   AND next_tick <= :now
 ORDER BY next_tick, name
 LIMIT :limit;

-- name: ahead
-- Schedules whose last tick lies ahead of the clock, which was set back since.
SELECT body
  FROM tenure_schedule INDEXED BY tenure_schedule_reached
 WHERE paused = 0
   AND last_tick > :until
   AND (next_tick IS NULL OR next_tick > :now)
 ORDER BY name
 LIMIT :limit;

-- name: next_tick
-- The next tick of any schedule that is not due yet.
SELECT min(next_tick)
  FROM tenure_schedule INDEXED BY tenure_schedule_due
 WHERE next_tick IS NOT NULL
   AND paused = 0
   AND next_tick > :now;
