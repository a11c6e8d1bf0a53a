-- tune: settings of a queue, a task or a worker that every worker must know.

-- name: setting
SELECT body FROM setting WHERE kind = ? AND name = ?;

-- name: queue_settings
-- The settings of several queues, for those that have any.
-- Parameters: queues (a list).
SELECT name, body FROM setting WHERE kind = 'queue' AND name IN (SELECT value FROM json_each(?));

-- name: set
INSERT INTO setting VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;
