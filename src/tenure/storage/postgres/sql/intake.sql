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
-- Returns the oldest calls that wait and can be read, at most `limit`, and none after the first `bytes`. It reads the oldest
-- of each format, and none of a newer one.
WITH RECURSIVE known (format) AS (
       SELECT (SELECT min(format) FROM intake WHERE refused IS NULL AND format <= :format)
       UNION ALL
       SELECT (SELECT min(format)
                 FROM intake
                WHERE refused IS NULL AND format <= :format AND format > known.format)
         FROM known
        WHERE known.format IS NOT NULL
)
SELECT seq, at, job
  FROM (SELECT seq, at, job, sum(octet_length(job)) OVER (ORDER BY seq) - octet_length(job) AS before
          FROM (SELECT oldest_of_format.seq, at, job
                  FROM known
                 CROSS JOIN LATERAL (
                       SELECT seq, at, job
                         FROM intake
                        WHERE refused IS NULL
                          AND intake.format = known.format
                        ORDER BY seq
                        LIMIT :limit
                       ) AS oldest_of_format
                 ORDER BY oldest_of_format.seq
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

-- name: newer
-- Returns how many calls wait, or were refused because their queue's jobs were moved, that only a program of a newer format
-- can read.
SELECT (SELECT count(*) FROM intake WHERE refused IS NULL AND format > :format)
       + (SELECT count(*)
            FROM intake
           WHERE refused IS NOT NULL
             AND starts_with(refused, :moved)
             AND format > :format);

-- name: delete
-- `seqs`: a list. As an array, so that the plan never reads all rows.
DELETE FROM intake WHERE seq = ANY (translate(:seqs, '[]', '{}')::bigint[]);

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
