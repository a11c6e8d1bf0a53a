-- rates: up to when the time of each is taken, and when it lets the next of those start who are parked under it.

-- name: rate
-- Parameters: queue, name.
SELECT taken_until, opens_at FROM rate WHERE queue = ? AND name = ?;

-- name: take
-- Parameters: queue, name, up to when its time is taken.
INSERT INTO rate (queue, name, taken_until) VALUES (?, ?, ?)
ON CONFLICT (queue, name) DO UPDATE SET taken_until = excluded.taken_until;

-- name: note_opening
-- Parameters: queue, name, when it opens or NULL.
INSERT INTO rate (queue, name, taken_until, opens_at) VALUES (?, ?, 0, ?)
ON CONFLICT (queue, name) DO UPDATE SET opens_at = excluded.opens_at;

-- name: open
-- The rates that let somebody start by now. Parameters: queue, now.
SELECT name FROM rate WHERE queue = ? AND opens_at IS NOT NULL AND opens_at <= ?;

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
-- Parameters: now, now.
UPDATE rate SET opens_at = ? WHERE opens_at IS NOT NULL AND opens_at > ?;
