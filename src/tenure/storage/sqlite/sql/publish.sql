-- publish: what workers know of their tasks: stored, renewed, and forgotten after some time.

-- name: known
SELECT name, digest, published, body FROM tenure_task WHERE name IN (SELECT value FROM json_each(:names));

-- name: renew
UPDATE tenure_task SET published = :now WHERE name = :name;

-- name: put
INSERT INTO tenure_task VALUES (:name, :digest, :now, :body, :schemas)
ON CONFLICT (name) DO UPDATE
   SET digest = excluded.digest,
       published = excluded.published,
       body = excluded.body,
       schemas = excluded.schemas;

-- name: forget
-- Tasks published at `until` or before, and all but the `most` that were published last.
DELETE FROM tenure_task
 WHERE published <= :until
    OR name IN (SELECT name FROM tenure_task ORDER BY published DESC, name DESC LIMIT -1 OFFSET :most);
