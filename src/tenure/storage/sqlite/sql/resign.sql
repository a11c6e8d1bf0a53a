-- resign: ends the given term and no other.

-- name: vacate
-- An old term has no effect.
-- Parameters: owner, epoch.
UPDATE leader SET owner = NULL WHERE scope = '*' AND owner = ? AND epoch = ?;
