-- The outbox in SQLite; see postgresql.sql. The clock is this machine's, in microseconds, exact to a millisecond.

-- name: tables
CREATE TABLE IF NOT EXISTS tenure_outbox (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    queue  TEXT    NOT NULL,
    id     TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    job    TEXT,
    answer TEXT,
    until  INTEGER
);
CREATE INDEX IF NOT EXISTS tenure_outbox_waiting ON tenure_outbox (queue, seq) WHERE answer IS NULL;
CREATE INDEX IF NOT EXISTS tenure_outbox_answered ON tenure_outbox (until) WHERE answer IS NOT NULL;
CREATE INDEX IF NOT EXISTS tenure_outbox_call ON tenure_outbox (queue, id);
CREATE UNIQUE INDEX IF NOT EXISTS tenure_outbox_identity ON tenure_outbox (queue) WHERE queue = '';
INSERT OR IGNORE INTO tenure_outbox (queue, id, at, answer) VALUES ('', lower(hex(randomblob(16))), 0, '');

-- name: no_checkpoint
PRAGMA wal_autocheckpoint = 0;

-- name: begin_read
BEGIN;

-- name: begin
BEGIN IMMEDIATE;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: exists
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = :name;

-- name: identity
SELECT id FROM tenure_outbox WHERE queue = '';

-- name: insert
INSERT INTO tenure_outbox (queue, id, at, job)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
       (CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000),
       json_extract(value, '$[2]')
  FROM json_each(:calls);

-- name: queues
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM tenure_outbox WHERE answer IS NULL
     UNION ALL
    SELECT (SELECT min(o.queue) FROM tenure_outbox AS o WHERE o.answer IS NULL AND o.queue > queues.queue)
      FROM queues
     WHERE queues.queue IS NOT NULL
)
SELECT queue,
       (CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)
       - (SELECT o.at
            FROM tenure_outbox AS o
           WHERE o.answer IS NULL AND o.queue = queues.queue
           ORDER BY o.seq
           LIMIT 1)
  FROM queues
 WHERE queue IS NOT NULL;

-- name: counts
SELECT (SELECT count(*) FROM (SELECT 1 FROM tenure_outbox WHERE answer IS NULL LIMIT :limit)),
       (SELECT count(*)
          FROM (SELECT 1 FROM tenure_outbox
                 WHERE answer IS NOT NULL AND until IS NULL AND queue <> ''
                 LIMIT :limit));

-- name: waiting
SELECT seq, id, at, job, (CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)
  FROM (SELECT seq, id, at, job,
               sum(length(job)) OVER (ORDER BY seq) AS size, row_number() OVER (ORDER BY seq) AS number
          FROM (SELECT seq, id, at, job
                  FROM tenure_outbox
                 WHERE answer IS NULL AND queue = :queue
                 ORDER BY seq
                 LIMIT :limit))
 WHERE size <= :size OR number = 1
 ORDER BY seq;

-- name: delete
DELETE FROM tenure_outbox
 WHERE queue = :queue
   AND seq IN (SELECT o.seq
                 FROM json_each(:calls) AS calls
                 JOIN tenure_outbox AS o
                   ON o.seq = json_extract(calls.value, '$[0]') AND o.id = json_extract(calls.value, '$[1]'));

-- name: answer
UPDATE tenure_outbox
   SET job = CASE WHEN :throttled THEN job END, answer = :answer,
       until = (CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000) + :keep
 WHERE queue = :queue AND seq = :seq AND id = :id;

-- name: refuse
UPDATE tenure_outbox SET answer = :answer WHERE queue = :queue AND seq = :seq AND id = :id;

-- name: forget
DELETE FROM tenure_outbox
 WHERE seq IN (SELECT seq
                 FROM tenure_outbox
                WHERE answer IS NOT NULL AND until <= (CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)
                ORDER BY until
                LIMIT 1000);

-- name: find
SELECT answer, job FROM tenure_outbox WHERE queue = :queue AND id = :id ORDER BY seq DESC LIMIT 1;
