-- resign: ends that term and no other.

-- name: vacate
-- Parameters: owner, epoch. An old term ends nothing.
UPDATE leader SET owner = NULL WHERE scope = '*' AND owner = ? AND epoch = ?;
