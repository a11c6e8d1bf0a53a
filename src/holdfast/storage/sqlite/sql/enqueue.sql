-- enqueue: remembers a new job once.

-- name: remember
-- Parameters: the columns as listed. Changes one row, or none where the queue knows the id.
INSERT INTO job (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, fair_key, weight, run_at, ttl, expires_at,
    timeout, deadline, heartbeat_timeout, keys, rates, merge_key, merge, gathered, lease, max_stalls, start_grace,
    renewed, pinned, policy, created, schedule, tick, parent, payload
)
VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
)
ON CONFLICT (queue, id) DO NOTHING;

-- name: go_on
-- An id's next job goes on from the fences of the one before it. Parameters: fence, settled_fence, queue, id.
UPDATE job SET fence = ?, settled_fence = ? WHERE queue = ? AND id = ?;
