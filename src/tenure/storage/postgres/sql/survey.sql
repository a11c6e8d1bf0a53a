-- survey: job counts, queues and workers, from counters and indexes.

-- name: counts
-- Counts by state, and the additional counters of tally.
SELECT queue, state, jobs FROM tally WHERE jobs > 0;

-- name: settings
SELECT name, body FROM setting WHERE kind = :kind;

-- name: oldest
-- Of each of the given queues (a list) that has waiting jobs, since when the longest-waiting one has waited.
SELECT listed, first.run_at
  FROM unnest(names_in(:queues)) AS listed
 CROSS JOIN LATERAL (
       SELECT run_at FROM job_live WHERE queue = listed AND state = 'waiting' ORDER BY run_at LIMIT 1
 ) AS first;

-- name: since
-- Since when the longest-waiting of the first jobs that are parked under a key has waited.
SELECT min(run_at)
  FROM (
       SELECT run_at
         FROM job_live
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under = :under
        ORDER BY score, id
        LIMIT :limit
 ) AS first;

-- name: faults
-- The faults of the given queues (a list) with the most failed jobs: queue, fault, number of jobs, and when the first
-- and the last of them failed.
SELECT queue, fault, count(*) AS jobs, min(finished), max(finished) AS last
  FROM job
 WHERE day >= 1
   AND fault IS NOT NULL
   AND queue = ANY (names_in(:queues))
 GROUP BY queue, fault
 ORDER BY jobs DESC, last DESC, queue, fault
 LIMIT :limit;

-- name: newest_of_faults
-- Returns the jobs of each fault that failed last, the last one first: the fault's number in the list, and of the job
-- its end, id, task, reason and error.
-- Parameters: faults (a list of queue and fault), most (jobs of a fault).
SELECT number - 1, newest.finished, newest.id, newest.task, newest.reason, newest.error
  FROM jsonb_array_elements(:faults::jsonb) WITH ORDINALITY AS listed (value, number)
 CROSS JOIN LATERAL (
       SELECT id, task, reason, error, finished
         FROM job
        WHERE day >= 1
          AND queue = listed.value ->> 0
          AND fault = listed.value ->> 1
        ORDER BY finished DESC, id DESC
        LIMIT :most
 ) AS newest
 ORDER BY number, newest.finished DESC, newest.id DESC;

-- name: figures
-- The cells of one task, or of all tasks, in some queues: queue, start and counts.
-- Parameters: length (of the cells in microseconds), task, queues (a list), since, until.
SELECT queue, start, counts
  FROM figure
 WHERE length = :length
   AND task = :task
   AND queue = ANY (names_in(:queues))
   AND start >= :since
   AND start < :until;

-- name: schedules
SELECT body FROM schedule ORDER BY name;

-- name: workers
SELECT owner, name, host, pid, info, started, seen_at, died FROM worker ORDER BY seq;
