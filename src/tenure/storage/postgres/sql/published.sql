-- published: the tasks that workers have published after the instant `since`, by name.

-- name: all
SELECT body, published FROM task WHERE published > :since ORDER BY name;

-- name: named
SELECT body, published, schemas
  FROM task
 WHERE published > :since
   AND name = ANY (names_in(:names))
 ORDER BY name;
