-- record_act: the audit log, into which each act of an operator is written twice under the same id.

-- name: kept
SELECT body FROM act WHERE id = :id;

-- name: add
INSERT INTO act (number, id, actor, action, target, asked, body)
SELECT coalesce(max(number), 0) + 1, :id, :actor, :action, :target, :asked, :body FROM act;

-- name: end
UPDATE act SET body = :body WHERE id = :id;

-- name: oldest
SELECT number, asked FROM act ORDER BY number LIMIT :limit;

-- name: newest
SELECT max(number) FROM act;

-- name: delete
DELETE FROM act WHERE number = :number;
