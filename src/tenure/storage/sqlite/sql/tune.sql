-- tune: settings of a queue, a task or a worker that every worker must know.

-- name: setting
SELECT body FROM tenure_setting WHERE kind = :kind AND name = :name;

-- name: queue_settings
-- The settings of several queues, for those that have any.
-- `queues`: a list.
SELECT name, body FROM tenure_setting WHERE kind = 'queue' AND name IN (SELECT value FROM json_each(:queues));

-- name: set
INSERT INTO tenure_setting VALUES (:kind, :name, :body)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;
