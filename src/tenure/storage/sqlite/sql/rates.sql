-- rates: up to when the time of each rate is taken, and when it lets its next parked job start.

-- name: rate
-- Parameters: queue, name.
SELECT taken_until, reach, opens_at FROM rate WHERE queue = ? AND name = ?;

-- name: take
-- Parameters: queue, name, up to when its time is taken, how far ahead the latest start could take time.
INSERT INTO rate (queue, name, taken_until, reach) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, name) DO UPDATE
   SET taken_until = excluded.taken_until,
       reach = excluded.reach;

-- name: note_opening
-- Parameters: queue, name, when it opens (or NULL).
INSERT INTO rate (queue, name, taken_until, opens_at) VALUES (?, ?, 0, ?)
ON CONFLICT (queue, name) DO UPDATE SET opens_at = excluded.opens_at;

-- name: open
-- The rates that let a parked job start by now, the earliest opened first.
-- Parameters: queue, now, limit.
SELECT name
  FROM rate INDEXED BY rate_opening
 WHERE queue = ?
   AND opens_at IS NOT NULL
   AND opens_at <= ?
 ORDER BY opens_at, name
 LIMIT ?;

-- name: of_tasks
-- The task rates that jobs of a queue are parked under, by the prefixes of their names.
-- Parameters: queue, the first possible name, the first name after all possible ones.
SELECT name FROM rate WHERE queue = ? AND opens_at IS NOT NULL AND name >= ? AND name < ?;

-- name: retuned
-- The queues in which time of a rate is taken. Parameters: name.
SELECT queue FROM rate WHERE name = ? AND taken_until > 0;

-- name: first
-- The task and rates of the first job that is parked under a rate.
-- Parameters: queue, the name that it is parked under.
SELECT task, rates
  FROM job INDEXED BY job_parked
 WHERE queue = ?
   AND state = 'waiting'
   AND parked_under = ?
 ORDER BY score, id
 LIMIT 1;

-- name: opening_ahead
-- The queues with a rate that opens later than now.
-- Parameters: now.
SELECT DISTINCT queue FROM rate WHERE opens_at IS NOT NULL AND opens_at > ?;

-- name: check_all
-- Parameters: now.
UPDATE rate SET opens_at = 0 WHERE opens_at IS NOT NULL AND opens_at > ?;
