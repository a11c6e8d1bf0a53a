-- tune: what every worker must know of a queue, a task or a worker.

-- name: setting
SELECT body FROM setting WHERE kind = ? AND name = ?;

-- name: set
INSERT INTO setting VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;
