-- reclaim: takes the jobs of a dead owner for another owner. A sweep also uses it for owners whose processes have died.

-- name: held
-- Two indexes contain the owner: that of the leases and that of the suspects.
SELECT *
  FROM tenure_job NOT INDEXED
 WHERE seq IN (
       SELECT seq
         FROM tenure_job INDEXED BY tenure_job_lease
        WHERE state = 'active' AND suspect_until IS NULL AND owner = :owner
       UNION ALL
       SELECT seq
         FROM tenure_job INDEXED BY tenure_job_suspect
        WHERE state = 'active' AND suspect_until IS NOT NULL AND owner = :owner
 )
 ORDER BY lease_until, queue, id
 LIMIT :limit;

-- name: take
UPDATE tenure_job
   SET fence = :fence,
       owner = :owner,
       heard_at = :heard_at,
       lease_until = :lease_until,
       suspect_until = NULL,
       run_until = NULL,
       progress_until = NULL
 WHERE seq = :seq;

-- name: mark_dead
UPDATE tenure_worker SET died = 1 WHERE owner = :owner AND died = 0;
