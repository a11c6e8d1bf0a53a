-- reclaim: takes what a dead owner held, in another's name; a sweep does so with those whose life has ended.

-- name: held
-- Parameters: owner, limit. Two indexes know the owner: that of the leases and that of the suspects.
SELECT *
  FROM job
 WHERE seq IN (
       SELECT seq FROM job WHERE state = 'active' AND suspect_until IS NULL AND owner = :owner
       UNION ALL
       SELECT seq FROM job WHERE state = 'active' AND suspect_until IS NOT NULL AND owner = :owner
 )
 ORDER BY lease_until, queue, id
 LIMIT :limit;

-- name: take
UPDATE job
   SET fence = ?,
       owner = ?,
       heard_at = ?,
       lease_until = ?,
       suspect_until = NULL,
       run_until = NULL,
       progress_until = NULL
 WHERE seq = ?;

-- name: bury_worker
UPDATE worker SET died = 1 WHERE owner = ? AND died = 0;
