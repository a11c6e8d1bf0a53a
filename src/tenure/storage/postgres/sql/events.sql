-- events: the event log, and the cursors of named readers.

-- name: record
-- Parameters: events (a list of at, queue, job, start and length of the body in `bodies`), bodies.
INSERT INTO event (at, queue, job, body)
SELECT (value ->> 0)::bigint, value ->> 1, value ->> 2,
       convert_from(substr(:bodies, (value ->> 3)::integer, (value ->> 4)::integer), 'UTF8')
  FROM jsonb_array_elements(:events::jsonb) WITH ORDINALITY AS listed (value, place)
 ORDER BY place;

-- name: record_one
INSERT INTO event (at, queue, job, body) VALUES (:at, :queue, :job, :body);

-- name: bounds
-- Returns the cursor before the oldest event in the log, and the last cursor ever given out. A rollback leaves a gap in
-- the numbers, so the lowest number in the log does not tell what was deleted.
SELECT trimmed, greatest(trimmed, (SELECT max(id) FROM event))
  FROM (SELECT coalesce((SELECT value::bigint FROM meta WHERE key = 'events_deleted'), 0) AS trimmed) AS log;

-- name: after
SELECT id, at, body FROM event WHERE id > :cursor ORDER BY id LIMIT :limit;

-- name: of_job
-- It has no index of its own, because every event would pay for that.
SELECT id, at, body
  FROM event
 WHERE id > :cursor
   AND queue = :queue
   AND job = :job
 ORDER BY id
 LIMIT :limit;

-- name: reader
SELECT cursor, lent_to, until, lent_upto FROM reader WHERE name = :name;

-- name: set_reader
INSERT INTO reader (name, cursor, lent_to, until, lent_upto) VALUES (:name, :cursor, :lent_to, :until, :lent_upto)
ON CONFLICT (name) DO UPDATE
   SET cursor = excluded.cursor,
       lent_to = excluded.lent_to,
       until = excluded.until,
       lent_upto = excluded.lent_upto;
