-- The outbox in PostgreSQL. `tenure` stands for the schema of the table.
--
-- A row is a call. `at`: when it was stored, in microseconds on this server's clock. `job`: the new job, encoded.
-- `answer`: NULL while the call waits for a relay; then, as JSON, what it did, which is kept `until` an instant. A refused
-- call is kept. The row with an empty queue contains the identity of the outbox.

-- name: tables
CREATE TABLE IF NOT EXISTS tenure.tenure_outbox (
    seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue  text   NOT NULL,
    id     text   NOT NULL,
    at     bigint NOT NULL,
    job    text,
    answer text,
    until  bigint
);
CREATE INDEX IF NOT EXISTS tenure_outbox_waiting ON tenure.tenure_outbox (queue, seq) WHERE answer IS NULL;
CREATE INDEX IF NOT EXISTS tenure_outbox_answered ON tenure.tenure_outbox (until) WHERE answer IS NOT NULL;
CREATE INDEX IF NOT EXISTS tenure_outbox_call ON tenure.tenure_outbox (queue, id);
CREATE UNIQUE INDEX IF NOT EXISTS tenure_outbox_identity ON tenure.tenure_outbox (queue) WHERE queue = '';
INSERT INTO tenure.tenure_outbox (queue, id, at, answer) VALUES ('', gen_random_uuid()::text, 0, '')
ON CONFLICT DO NOTHING;

-- name: schema_exists
SELECT to_regnamespace(:schema) IS NOT NULL;

-- name: create_schema
CREATE SCHEMA tenure_outbox_schema;

-- name: begin
SELECT set_config('statement_timeout', '10000', TRUE),
       set_config('lock_timeout', '5000', TRUE),
       set_config('idle_in_transaction_session_timeout', '10000', TRUE),
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit')
                      WHEN 'off' THEN 'on'
                      ELSE current_setting('synchronous_commit')
                  END, TRUE);

-- name: lock_tables
SELECT pg_advisory_xact_lock(7236838018562041);

-- name: exists
SELECT to_regclass(:name) IS NOT NULL;

-- name: identity
SELECT id FROM tenure.tenure_outbox WHERE queue = '';

-- name: insert
INSERT INTO tenure.tenure_outbox (queue, id, at, job)
SELECT value ->> 0, value ->> 1, CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint), value ->> 2
  FROM json_array_elements(CAST(CAST(:calls AS text) AS json)) AS calls (value)
 WHERE EXISTS (SELECT 1 FROM tenure.tenure_outbox WHERE queue = '' AND id = CAST(:identity AS text))
RETURNING seq;

-- name: queues
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM tenure.tenure_outbox WHERE answer IS NULL
     UNION ALL
    SELECT (SELECT min(o.queue) FROM tenure.tenure_outbox AS o WHERE o.answer IS NULL AND o.queue > queues.queue)
      FROM queues
     WHERE queues.queue IS NOT NULL
)
SELECT queue,
       CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)
       - (SELECT o.at
            FROM tenure.tenure_outbox AS o
           WHERE o.answer IS NULL AND o.queue = queues.queue
           ORDER BY o.seq
           LIMIT 1)
  FROM queues
 WHERE queue IS NOT NULL;

-- name: counts
SELECT (SELECT count(*)
          FROM (SELECT 1 FROM tenure.tenure_outbox WHERE answer IS NULL LIMIT CAST(:limit AS bigint)) AS waiting),
       (SELECT count(*)
          FROM (SELECT 1 FROM tenure.tenure_outbox
                 WHERE answer IS NOT NULL AND until IS NULL AND queue <> ''
                 LIMIT CAST(:limit AS bigint)) AS refused);

-- name: waiting
SELECT seq, id, at, job, CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)
  FROM (SELECT seq, id, at, job,
               sum(length(job)) OVER (ORDER BY seq) AS size, row_number() OVER (ORDER BY seq) AS number
          FROM (SELECT seq, id, at, job
                  FROM tenure.tenure_outbox
                 WHERE answer IS NULL AND queue = :queue
                 ORDER BY seq
                 LIMIT CAST(:limit AS bigint)) AS first) AS sized
 WHERE size <= CAST(:size AS bigint) OR number = 1
 ORDER BY seq;

-- name: delete
DELETE FROM tenure.tenure_outbox AS o
 USING json_array_elements(CAST(CAST(:calls AS text) AS json)) AS calls (value)
 WHERE o.queue = :queue AND o.seq = CAST(value ->> 0 AS bigint) AND o.id = value ->> 1;

-- name: answer
UPDATE tenure.tenure_outbox
   SET job = CASE WHEN CAST(:throttled AS bigint) = 1 THEN job END, answer = :answer,
       until = CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) + CAST(:keep AS bigint)
 WHERE queue = :queue AND seq = CAST(:seq AS bigint) AND id = :id;

-- name: refuse
UPDATE tenure.tenure_outbox SET answer = :answer WHERE queue = :queue AND seq = CAST(:seq AS bigint) AND id = :id;

-- name: forget
DELETE FROM tenure.tenure_outbox
 WHERE seq IN (SELECT seq
                 FROM tenure.tenure_outbox
                WHERE answer IS NOT NULL
                  AND until <= CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)
                ORDER BY until
                LIMIT 1000);

-- name: find
SELECT answer, job FROM tenure.tenure_outbox WHERE queue = :queue AND id = :id ORDER BY seq DESC LIMIT 1;
