-- events: the log, and the places that named readers keep in it.

-- name: record
-- Parameters: told (a list of at, queue, job, where in `bodies` the body begins and how long it is), bodies.
INSERT INTO event (at, queue, job, body)
SELECT value ->> 0, value ->> 1, value ->> 2, CAST(substr(:bodies, value ->> 3, value ->> 4) AS TEXT)
  FROM json_each(:told);

-- name: record_one
INSERT INTO event (at, queue, job, body) VALUES (?, ?, ?, ?);

-- name: bounds
-- Returns the cursor before the oldest event that is kept, and the last one ever given.
SELECT coalesce((SELECT min(id) - 1 FROM event), (SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0);

-- name: after
SELECT id, at, body FROM event WHERE id > ? ORDER BY id LIMIT ?;

-- name: of_job
-- Parameters: cursor, queue, id, limit. Without an index of its own, which every event would pay for.
SELECT id, at, body
  FROM event
 WHERE id > ?
   AND queue = ?
   AND job = ?
 ORDER BY id
 LIMIT ?;

-- name: reader
SELECT cursor, lent_to, until FROM reader WHERE name = ?;

-- name: keep
INSERT INTO reader (name, cursor, lent_to, until) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
   SET cursor = excluded.cursor,
       lent_to = excluded.lent_to,
       until = excluded.until;
