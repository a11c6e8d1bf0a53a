-- acts: a page of the audit log, newest first. At most 100,000 rows are looked at, so the filters need no index.

-- name: page
SELECT number, body
  FROM act
 WHERE number < :before
   AND (:actor::text IS NULL OR actor = :actor)
   AND (:action::text IS NULL OR action = :action)
   AND (:target::text IS NULL OR target = :target)
 ORDER BY number DESC
 LIMIT :limit;
