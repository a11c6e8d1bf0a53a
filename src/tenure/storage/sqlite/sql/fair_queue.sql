-- fair_queue: the virtual time of fair queues: of the queue, of each priority, and of each tenant.

-- name: state
-- Returns the front of a queue, NULL if it is not fair, and whether a rate of the queue has an opening time.
SELECT (SELECT front FROM tenure_fair_line WHERE queue = :queue),
       EXISTS (SELECT 1 FROM tenure_rate WHERE queue = :queue AND opens_at IS NOT NULL);

-- name: has_waiting
-- Whether a job of the queue is ready or parked.
SELECT EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_waiting
               WHERE queue = :queue
                 AND state = 'waiting'
       );

-- name: tenant_has_waiting
-- The same for a tenant's jobs of one priority.
SELECT EXISTS (
              SELECT 1
                FROM tenure_job INDEXED BY tenure_job_tenant
               WHERE fair_key IS NOT NULL
                 AND queue = :queue
                 AND boost = :boost
                 AND fair_key = :key
                 AND state = 'waiting'
                 AND lifo = 0
       );

-- name: reached
SELECT at FROM tenure_fair_reached WHERE queue = :queue AND boost = :boost;

-- name: tag
SELECT tag FROM tenure_fair_tag WHERE queue = :queue AND boost = :boost AND key = :key;

-- name: set_front
INSERT INTO tenure_fair_line (queue, front) VALUES (:queue, :front)
ON CONFLICT (queue) DO UPDATE SET front = excluded.front;

-- name: set_reached
INSERT INTO tenure_fair_reached (queue, boost, at) VALUES (:queue, :boost, :at)
ON CONFLICT (queue, boost) DO UPDATE SET at = excluded.at;

-- name: set_tag
INSERT INTO tenure_fair_tag (queue, boost, key, tag) VALUES (:queue, :boost, :key, :tag)
ON CONFLICT (queue, boost, key) DO UPDATE SET tag = excluded.tag;

-- name: delete_front
DELETE FROM tenure_fair_line WHERE queue = :queue;

-- name: delete_reached
DELETE FROM tenure_fair_reached WHERE queue = :queue;

-- name: delete_tags
DELETE FROM tenure_fair_tag WHERE queue = :queue;
