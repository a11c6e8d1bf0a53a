-- intake: the calls of users' transactions.

-- name: insert
-- Runs in a user's transaction, on a connection whose settings are unknown. `tenure` stands for the schema. It inserts
-- nothing where the schema belongs to another storage. `calls`: a list of [queue, id, job in base64, format]. `now`: replaces
-- the server's clock, if it is not NULL. No colon may follow another one here, or another parameter.
INSERT INTO tenure.intake (queue, id, at, job, format)
SELECT value ->> 0, value ->> 1,
       coalesce(CAST(:now AS bigint), CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)),
       decode(value ->> 2, 'base64'), CAST(value ->> 3 AS integer)
  FROM json_array_elements(CAST(CAST(:calls AS text) AS json)) AS calls (value)
 WHERE EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'identity' AND value = CAST(:identity AS text))
RETURNING seq;

-- name: identity
SELECT value FROM meta WHERE key = 'identity';

-- name: waiting
-- Returns the oldest calls that wait and can be read, at most `limit`, and none after the first `bytes`.
SELECT seq, at, job
  FROM (SELECT seq, at, job, sum(octet_length(job)) OVER (ORDER BY seq) - octet_length(job) AS before
          FROM (SELECT seq, at, job
                  FROM intake
                 WHERE refused IS NULL
                   AND format <= :format
                 ORDER BY seq
                 LIMIT :limit) AS oldest) AS summed
 WHERE before < :bytes
 ORDER BY seq;

-- name: held
-- As `waiting`, of one queue, with the calls that were refused because the queue's jobs were moved.
SELECT seq, at, job
  FROM (SELECT seq, at, job, sum(octet_length(job)) OVER (ORDER BY seq) - octet_length(job) AS before
          FROM (SELECT seq, at, job
                  FROM intake
                 WHERE queue = :queue
                   AND (refused IS NULL OR starts_with(refused, :moved))
                   AND format <= :format
                 ORDER BY seq
                 LIMIT :limit) AS oldest) AS summed
 WHERE before < :bytes
 ORDER BY seq;

-- name: delete
DELETE FROM intake WHERE seq IN (SELECT value::bigint FROM json_array_elements_text(:seqs::json));

-- name: refuse
UPDATE intake SET refused = :why WHERE seq = :seq;

-- name: refused
SELECT refused FROM intake WHERE queue = :queue AND id = :id AND refused IS NOT NULL LIMIT 1;

-- name: answer
INSERT INTO answered VALUES (:queue, :id, :job, :until)
ON CONFLICT (queue, id) DO UPDATE SET job = excluded.job, until = excluded.until;

-- name: forget_answers
DELETE FROM answered WHERE until <= :now;

-- name: answered
SELECT job FROM answered WHERE queue = :queue AND id = :id;
