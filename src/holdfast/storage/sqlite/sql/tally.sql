-- tally: the counters that a transaction leaves behind.

-- name: count
-- Parameters: queue, state, how many more.
INSERT INTO tally (queue, state, jobs) VALUES (?, ?, ?)
ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs;

-- name: recount
-- Returns the counters that the jobs themselves contradict, with the difference; in a sound storage there is none.
SELECT queue, state, sum(jobs)
  FROM (
       SELECT queue, state, jobs FROM tally
       UNION ALL
       SELECT queue, state, -count(*) FROM job GROUP BY queue, state
 )
 GROUP BY queue, state
HAVING sum(jobs) <> 0;
