-- tune: what every worker must know of a queue, a task or a worker.

-- name: setting
SELECT body FROM setting WHERE kind = ? AND name = ?;

-- name: queue_settings
-- Those of many queues that are told anything. Parameters: queues (a list).
SELECT name, body FROM setting WHERE kind = 'queue' AND name IN (SELECT value FROM json_each(?));

-- name: set
INSERT INTO setting VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;
