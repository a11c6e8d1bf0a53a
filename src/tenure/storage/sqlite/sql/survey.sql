-- survey: job counts, queues and workers, from counters and indexes.

-- name: counts
-- Counts by state, and the additional counters of tally.
SELECT queue, state, jobs FROM tenure_tally WHERE jobs > 0;

-- name: settings
SELECT name, body FROM tenure_setting WHERE kind = :kind;

-- name: oldest
-- Of each of the given queues (a list) that has waiting jobs, since when the longest-waiting one has waited.
SELECT listed.value, first.run_at
  FROM json_each(:queues) AS listed
 CROSS JOIN tenure_job AS first NOT INDEXED
    ON first.seq = (
       SELECT seq
         FROM tenure_job INDEXED BY tenure_job_waiting
        WHERE queue = listed.value
          AND state = 'waiting'
        ORDER BY run_at
        LIMIT 1
 );

-- name: since
-- Since when the longest-waiting of the first jobs that are parked under a key has waited.
SELECT min(run_at)
  FROM (
       SELECT run_at
         FROM tenure_job INDEXED BY tenure_job_parked
        WHERE queue = :queue
          AND state = 'waiting'
          AND parked_under = :under
        ORDER BY score, id
        LIMIT :limit
 );

-- name: faults
-- The faults of the given queues (a list) with the most failed jobs: queue, fault, number of jobs, and when the first
-- and the last of them failed. The two instants are at the ends of the index: to compare all takes as long as to count.
SELECT queue, fault, jobs,
       (SELECT min(finished) FROM tenure_job WHERE queue = counted.queue AND fault = counted.fault),
       (SELECT max(finished) FROM tenure_job WHERE queue = counted.queue AND fault = counted.fault) AS last
  FROM (
       SELECT queue, fault, count(*) AS jobs
         FROM tenure_job INDEXED BY tenure_job_fault
        WHERE fault IS NOT NULL
          AND queue IN (SELECT value FROM json_each(:queues))
        GROUP BY queue, fault
 ) AS counted
 ORDER BY jobs DESC, last DESC, queue, fault
 LIMIT :limit;

-- name: newest_of_faults
-- Returns the jobs of each fault that failed last, the last one first: the fault's number in the list, and of the job
-- its end, id, task, reason and error.
-- Parameters: faults (a list of queue and fault), most (jobs of a fault).
SELECT listed.key, tenure_job.finished, tenure_job.id, tenure_job.task, tenure_job.reason, tenure_job.error
  FROM json_each(:faults) AS listed
 CROSS JOIN tenure_job NOT INDEXED
    ON tenure_job.seq IN (
       SELECT newest.seq
         FROM tenure_job AS newest INDEXED BY tenure_job_fault
        WHERE newest.queue = listed.value ->> 0
          AND newest.fault = listed.value ->> 1
        ORDER BY newest.finished DESC, newest.id DESC
        LIMIT :most
 )
 ORDER BY listed.key, tenure_job.finished DESC, tenure_job.id DESC;

-- name: figures
-- The cells of one task, or of all tasks, in some queues: queue, start and counts.
-- Parameters: length (of the cells in microseconds), task, queues (a list), since, until.
SELECT tenure_figure.queue, tenure_figure.start, tenure_figure.counts
  FROM json_each(:queues) AS listed
 CROSS JOIN tenure_figure
    ON tenure_figure.length = :length
   AND tenure_figure.task = :task
   AND tenure_figure.queue = listed.value
   AND tenure_figure.start >= :since
   AND tenure_figure.start < :until;

-- name: schedules
SELECT body FROM tenure_schedule ORDER BY name;

-- name: workers
SELECT owner, name, host, pid, info, started, seen_at, died FROM tenure_worker ORDER BY seq;
