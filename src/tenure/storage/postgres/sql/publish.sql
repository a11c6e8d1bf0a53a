-- publish: what workers know of their tasks: stored, renewed, and forgotten after some time.

-- name: known
SELECT name, digest, published, body FROM task WHERE name = ANY (names_in(:names));

-- name: renew
UPDATE task SET published = :now WHERE name = :name;

-- name: put
INSERT INTO task VALUES (:name, :digest, :now, :body, :schemas)
ON CONFLICT (name) DO UPDATE
   SET digest = excluded.digest,
       published = excluded.published,
       body = excluded.body,
       schemas = excluded.schemas;

-- name: forget
-- Tasks published at `until` or before, and all but the `most` that were published last.
DELETE FROM task
 WHERE published <= :until
    OR name IN (SELECT name FROM task ORDER BY published DESC, name DESC OFFSET :most);
