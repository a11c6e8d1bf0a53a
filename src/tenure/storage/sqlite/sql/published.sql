-- published: the tasks that workers have published after the instant `since`, by name.

-- name: all
SELECT body, published FROM tenure_task WHERE published > :since ORDER BY name;

-- name: named
SELECT body, published, schemas
  FROM tenure_task
 WHERE published > :since
   AND name IN (SELECT value FROM json_each(:names))
 ORDER BY name;
