-- reclaim: takes the jobs of a dead owner for another owner. A sweep also uses it for owners whose processes have died.

-- name: held
SELECT *
  FROM job_live
 WHERE state = 'active'
   AND owner = :owner
 ORDER BY lease_until NULLS FIRST, queue, id
 LIMIT :limit;

-- name: take
UPDATE job_live
   SET fence = :fence,
       owner = :owner,
       heard_at = :heard_at,
       lease_until = :lease_until,
       suspect_until = NULL,
       run_until = NULL,
       progress_until = NULL
 WHERE seq = :seq;

-- name: mark_dead
UPDATE worker SET died = 1 WHERE owner = :owner AND died = 0;
