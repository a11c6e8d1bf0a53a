-- events: the event log, and the cursors of named readers.

-- name: record
-- Parameters: events (a list of at, queue, job, start and length of the body in `bodies`), bodies.
INSERT INTO tenure_event (at, queue, job, body)
SELECT value ->> 0, value ->> 1, value ->> 2, CAST(substr(:bodies, value ->> 3, value ->> 4) AS TEXT)
  FROM json_each(:events);

-- name: record_one
INSERT INTO tenure_event (at, queue, job, body) VALUES (:at, :queue, :job, :body);

-- name: bounds
-- Returns the cursor before the oldest event in the log, and the last cursor ever given out.
SELECT coalesce(
              (SELECT min(id) - 1 FROM tenure_event),
              (SELECT seq FROM sqlite_sequence WHERE name = 'tenure_event'),
              0
       ),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_event'), 0);

-- name: after
SELECT id, at, body FROM tenure_event WHERE id > :cursor ORDER BY id LIMIT :limit;

-- name: of_job
-- It has no index of its own, because every event would pay for that.
SELECT id, at, body
  FROM tenure_event
 WHERE id > :cursor
   AND queue = :queue
   AND job = :job
 ORDER BY id
 LIMIT :limit;

-- name: reader
SELECT cursor, lent_to, until, lent_upto FROM tenure_reader WHERE name = :name;

-- name: set_reader
INSERT INTO tenure_reader (name, cursor, lent_to, until, lent_upto)
VALUES (:name, :cursor, :lent_to, :until, :lent_upto)
ON CONFLICT (name) DO UPDATE
   SET cursor = excluded.cursor,
       lent_to = excluded.lent_to,
       until = excluded.until,
       lent_upto = excluded.lent_upto;
