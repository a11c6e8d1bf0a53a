-- tune: settings of a queue, a task or a worker that every worker must know.

-- name: setting
SELECT body FROM setting WHERE kind = :kind AND name = :name;

-- name: queue_settings
-- The settings of several queues, for those that have any.
-- `queues`: a list.
SELECT name, body FROM setting WHERE kind = 'queue' AND name = ANY (names_in(:queues));

-- name: set
INSERT INTO setting VALUES (:kind, :name, :body)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;
