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

-- name: delete
-- A value that is too high, because rows were changed without Tenure, would hide jobs. Without it the next query reads
-- from the end of the index, and the value rises from there again.
-- `began`: the latest to delete.
DELETE FROM front WHERE began <= :began;
