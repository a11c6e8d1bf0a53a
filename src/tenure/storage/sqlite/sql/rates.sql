-- rates: up to when the time of each rate is taken, and when it lets its next parked job start.

-- name: rate
SELECT taken_until, reach, opens_at FROM tenure_rate WHERE queue = :queue AND name = :name;

-- name: set_taken
-- `taken_until`: up to when its time is taken. `reach`: how far ahead the latest start could take time.
INSERT INTO tenure_rate (queue, name, taken_until, reach) VALUES (:queue, :name, :taken_until, :reach)
ON CONFLICT (queue, name) DO UPDATE
   SET taken_until = excluded.taken_until,
       reach = excluded.reach;

-- name: set_opening
-- `opens_at`: when it opens, or NULL.
INSERT INTO tenure_rate (queue, name, taken_until, opens_at) VALUES (:queue, :name, 0, :opens_at)
ON CONFLICT (queue, name) DO UPDATE SET opens_at = excluded.opens_at;

-- name: limited_queues
-- The queues that may have a limit of their own.
SELECT queue FROM tenure_rate INDEXED BY tenure_rate_limited WHERE name = 'limit:queue';

-- name: limits
-- The limits of the given queues (a list) that may be in force.
-- `first`: the first possible name. `end`: the first name after all possible ones.
SELECT queue, name
  FROM tenure_rate
 WHERE queue IN (SELECT value FROM json_each(:queues))
   AND name >= :first
   AND name < :end
   AND taken_until > :now
 ORDER BY name;

-- name: opened
-- The rates that let a parked job start by now, the earliest opened first.
SELECT name
  FROM tenure_rate INDEXED BY tenure_rate_opening
 WHERE queue = :queue
   AND opens_at IS NOT NULL
   AND opens_at <= :now
 ORDER BY opens_at, name
 LIMIT :limit;

-- name: parked_rates
-- The task rates that jobs of a queue are parked under, by the prefixes of their names.
-- `first`: the first possible name. `end`: the first name after all possible ones.
SELECT name FROM tenure_rate WHERE queue = :queue AND opens_at IS NOT NULL AND name >= :first AND name < :end;

-- name: queues
-- The queues in which time of a rate is taken.
SELECT queue FROM tenure_rate WHERE name = :name AND taken_until > 0;

-- name: first_parked
-- The task and rates of the first job that is parked under a rate.
SELECT task, rates
  FROM tenure_job INDEXED BY tenure_job_parked
 WHERE queue = :queue
   AND state = 'waiting'
   AND parked_under = :under
 ORDER BY score, id
 LIMIT 1;

-- name: opening_ahead
-- The queues with a rate that opens later than now.
SELECT DISTINCT queue FROM tenure_rate WHERE opens_at IS NOT NULL AND opens_at > :now;

-- name: check_all
UPDATE tenure_rate SET opens_at = 0 WHERE opens_at IS NOT NULL AND opens_at > :now;
