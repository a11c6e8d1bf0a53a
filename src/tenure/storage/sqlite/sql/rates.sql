-- rates: how far the time of each is taken, and when it lets the next of those start who are parked under it.

-- name: rate
-- Parameters: queue, name.
SELECT taken_until, reach, opens_at FROM rate WHERE queue = ? AND name = ?;

-- name: take
-- Parameters: queue, name, up to when its time is taken, how far ahead whoever took last could take any.
INSERT INTO rate (queue, name, taken_until, reach) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, name) DO UPDATE
   SET taken_until = excluded.taken_until,
       reach = excluded.reach;

-- name: note_opening
-- Parameters: queue, name, when it opens or NULL.
INSERT INTO rate (queue, name, taken_until, opens_at) VALUES (?, ?, 0, ?)
ON CONFLICT (queue, name) DO UPDATE SET opens_at = excluded.opens_at;

-- name: open
-- The rates that let somebody start by now, first those that have been open for the longest. Parameters: queue, now,
-- limit.
SELECT name
  FROM rate INDEXED BY rate_opening
 WHERE queue = ?
   AND opens_at IS NOT NULL
   AND opens_at <= ?
 ORDER BY opens_at, name
 LIMIT ?;

-- name: of_tasks
-- The rates that jobs of a queue are parked under and that are tasks' own, by the beginnings of their names. Parameters:
-- queue, the first that a name may be, the first that none may be any more.
SELECT name FROM rate WHERE queue = ? AND opens_at IS NOT NULL AND name >= ? AND name < ?;

-- name: retuned
-- The queues in which time of a rate is taken. Parameters: name.
SELECT queue FROM rate WHERE name = ? AND taken_until > 0;

-- name: first
-- What the first of those parked under a rate goes by. Parameters: queue, what it is parked under.
SELECT task, rates
  FROM job INDEXED BY job_parked
 WHERE queue = ?
   AND state = 'waiting'
   AND parked_under = ?
 ORDER BY score, id
 LIMIT 1;

-- name: opening_ahead
-- The queues of which a rate opens later than now. Parameters: now.
SELECT DISTINCT queue FROM rate WHERE opens_at IS NOT NULL AND opens_at > ?;

-- name: look_anew
-- Parameters: now.
UPDATE rate SET opens_at = 0 WHERE opens_at IS NOT NULL AND opens_at > ?;
