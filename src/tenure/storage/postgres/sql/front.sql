-- front: where the queries of a queue that read from one end of an index begin. `tally` lowers them, too.

-- name: advance
-- `reached`: no ready job of the queue has a lower score; of an end state, no job that retention may delete ended earlier.
INSERT INTO front (queue, state, reached, began) VALUES (:queue, :state, :reached, :now)
ON CONFLICT (queue, state) DO UPDATE SET reached = excluded.reached;

-- name: lower
-- Lowers fronts before a statement of the same transaction reads from there.
-- `fronts`: a list of queue, state, and the value that the front may have at most.
UPDATE front
   SET reached = (value ->> 2)::bigint
  FROM jsonb_array_elements(:fronts::jsonb) AS listed (value)
 WHERE queue = value ->> 0
   AND state = value ->> 1
   AND reached > (value ->> 2)::bigint;

-- name: reset
-- Makes all fronts unknown, and old enough that the next sweeps compute them.
UPDATE front SET reached = -9223372036854775808, began = 0;

-- name: compute
-- Computes the oldest fronts from all jobs, also from those before the front: a value that is too high, because rows were
-- changed without Tenure, would hide jobs. Without a job the front is at the end: the next one lowers it.
-- `began`: the latest to compute. `margin`: how far the clock may have been set back unnoticed.
UPDATE front
   SET began = :now,
       reached = CASE front.state
       WHEN 'waiting' THEN
           coalesce(
               (
               SELECT score
                 FROM job_live
                WHERE queue = front.queue
                  AND state = 'waiting'
                  AND parked_under IS NULL
                ORDER BY score, id
                LIMIT 1
               ),
               9223372036854775807
           )
       WHEN 'active' THEN
           least((SELECT min(started) FROM job_live WHERE state = 'active'), :now::bigint) - :margin::bigint
       ELSE
           coalesce(
               (
               SELECT min(finished)
                 FROM job
                WHERE day >= 1
                  AND queue = front.queue
                  AND state = front.state
                  AND (kept_until IS NULL OR state <> 'completed')
                  AND redrive_at IS NULL
               ),
               9223372036854775807
           )
       END
 WHERE (queue, state) IN (SELECT queue, state FROM front WHERE began <= :began ORDER BY began LIMIT :limit);
