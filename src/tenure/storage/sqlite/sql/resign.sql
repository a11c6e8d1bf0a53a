-- resign: ends the given term and no other.

-- name: vacate
-- An old term has no effect.
UPDATE tenure_leader SET owner = NULL WHERE scope = '*' AND owner = :owner AND epoch = :epoch;
