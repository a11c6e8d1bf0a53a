-- record_act: the audit log, into which each act of an operator is written twice under the same id.

-- name: kept
SELECT body FROM tenure_act WHERE id = :id;

-- name: add
INSERT INTO tenure_act (number, id, actor, action, target, asked, body)
SELECT coalesce(max(number), 0) + 1, :id, :actor, :action, :target, :asked, :body FROM tenure_act;

-- name: end
UPDATE tenure_act SET body = :body WHERE id = :id;

-- name: oldest
SELECT number, asked FROM tenure_act ORDER BY number LIMIT :limit;

-- name: newest
SELECT max(number) FROM tenure_act;

-- name: delete
DELETE FROM tenure_act WHERE number = :number;
