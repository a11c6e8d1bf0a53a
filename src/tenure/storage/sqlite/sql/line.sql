-- line: the virtual time of fair queues: of the queue, of each priority, and of each tenant.

-- name: line
-- Returns the front of a queue, NULL if it is not fair, and whether a rate of the queue has an opening time.
-- Parameters: queue.
SELECT (SELECT front FROM fair_line WHERE queue = :queue),
       EXISTS (SELECT 1 FROM rate WHERE queue = :queue AND opens_at IS NOT NULL);

-- name: waits
-- Whether a job of the queue is ready or parked.
-- Parameters: queue.
SELECT EXISTS (
              SELECT 1
                FROM job INDEXED BY job_waiting
               WHERE queue = ?
                 AND state = 'waiting'
       );

-- name: tenant_waits
-- The same for a tenant's jobs of one priority.
-- Parameters: queue, boost, key.
SELECT EXISTS (
              SELECT 1
                FROM job INDEXED BY job_tenant
               WHERE fair_key IS NOT NULL
                 AND queue = ?
                 AND boost = ?
                 AND fair_key = ?
                 AND state = 'waiting'
                 AND lifo = 0
       );

-- name: reached
-- Parameters: queue, boost.
SELECT at FROM fair_reached WHERE queue = ? AND boost = ?;

-- name: tag
-- Parameters: queue, boost, key.
SELECT tag FROM fair_tag WHERE queue = ? AND boost = ? AND key = ?;

-- name: keep_front
-- Parameters: queue, front.
INSERT INTO fair_line (queue, front) VALUES (?, ?)
ON CONFLICT (queue) DO UPDATE SET front = excluded.front;

-- name: keep_reached
-- Parameters: queue, boost, at.
INSERT INTO fair_reached (queue, boost, at) VALUES (?, ?, ?)
ON CONFLICT (queue, boost) DO UPDATE SET at = excluded.at;

-- name: keep_tag
-- Parameters: queue, boost, key, tag.
INSERT INTO fair_tag (queue, boost, key, tag) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, boost, key) DO UPDATE SET tag = excluded.tag;

-- name: forget_front
DELETE FROM fair_line WHERE queue = ?;

-- name: forget_reached
DELETE FROM fair_reached WHERE queue = ?;

-- name: forget_tags
DELETE FROM fair_tag WHERE queue = ?;
