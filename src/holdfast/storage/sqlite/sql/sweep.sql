-- sweep: the leader's turn. Each step is guarded by the record's own state.

-- name: leader
SELECT owner, epoch, length, until, swept_at, resumed_at FROM leader WHERE scope = '*';

-- name: elect
UPDATE leader SET owner = ?, epoch = ?, length = ?, until = ? WHERE scope = '*';

-- name: swept
UPDATE leader SET swept_at = ?, resumed_at = ? WHERE scope = '*';

-- name: holders
SELECT owner FROM job WHERE state = 'active' AND suspect_until IS NULL
UNION
SELECT owner FROM job WHERE state = 'active' AND suspect_until IS NOT NULL
 ORDER BY owner;

-- name: workers
SELECT owner FROM worker;

-- name: overdue
-- Parameters: now, limit.
SELECT *
  FROM job
 WHERE state = 'active'
   AND suspect_until IS NOT NULL
   AND suspect_until <= ?
 ORDER BY suspect_until, queue, id
 LIMIT ?;

-- name: lengths
-- How long the leases are that are held now, each length once: a leap through the index, not a walk.
WITH RECURSIVE length (value) AS (
       SELECT (SELECT max(lease, start_grace, 5000000)
                 FROM job
                WHERE state = 'active' AND suspect_until IS NULL
                ORDER BY max(lease, start_grace, 5000000)
                LIMIT 1)
       UNION ALL
       SELECT (SELECT max(lease, start_grace, 5000000)
                 FROM job
                WHERE state = 'active' AND suspect_until IS NULL
                  AND max(lease, start_grace, 5000000) > length.value
                ORDER BY max(lease, start_grace, 5000000)
                LIMIT 1)
         FROM length
        WHERE length.value IS NOT NULL
)
SELECT value FROM length WHERE value IS NOT NULL;

-- name: out
-- Leases of one length that have run out. Parameters: length, now, limit.
SELECT lease_until, queue, id, seq
  FROM job
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND max(lease, start_grace, 5000000) = ?
   AND lease_until <= ?
 ORDER BY lease_until, queue, id
 LIMIT ?;

-- name: ahead
-- Leases of one length that end further ahead than they are long. Parameters: length, now + length, limit.
SELECT lease_until, queue, id, seq
  FROM job
 WHERE state = 'active'
   AND suspect_until IS NULL
   AND max(lease, start_grace, 5000000) = ?
   AND lease_until > ?
 ORDER BY lease_until, queue, id
 LIMIT ?;

-- name: suspect
UPDATE job SET suspect_until = ? WHERE seq = ?;

-- name: recall
-- Suspicions from before the clock was set back.
UPDATE job
   SET suspect_until = :now + lease / 2
 WHERE state = 'active'
   AND suspect_until IS NOT NULL
   AND suspect_until > :now + :grace
   AND suspect_until > :now + lease / 2;

-- name: delayed_queues
SELECT queue
  FROM tally
 GROUP BY queue
HAVING sum(iif(state = 'delayed', jobs, 0)) > 0
 ORDER BY min(seq);
