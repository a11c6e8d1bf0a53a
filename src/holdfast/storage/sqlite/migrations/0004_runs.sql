-- The latest run of a job stands in its own row, which a claim and a settlement write anyway (it began when the job was
-- `started`); only those before it stand in `run`. Where `run_fence` is NULL, all do.

ALTER TABLE job ADD COLUMN run_fence INTEGER;
ALTER TABLE job ADD COLUMN run_owner TEXT;
ALTER TABLE job ADD COLUMN run_worker TEXT;
ALTER TABLE job ADD COLUMN run_host TEXT;
ALTER TABLE job ADD COLUMN run_pid INTEGER;
ALTER TABLE job ADD COLUMN run_end INTEGER;
ALTER TABLE job ADD COLUMN run_ended TEXT;
ALTER TABLE job ADD COLUMN run_reason TEXT;
ALTER TABLE job ADD COLUMN run_detail TEXT;
ALTER TABLE job ADD COLUMN run_trace TEXT;

-- What is under way is settled where a settlement looks for it. What is over may stay where it is.
UPDATE job
   SET run_fence = run.fence,
       run_owner = run.owner,
       run_worker = run.worker,
       run_host = run.host,
       run_pid = run.pid,
       run_trace = run.trace
  FROM run
 WHERE run.seq = job.seq
   AND run.number = job.starts
   AND job.state = 'active';

DELETE FROM run WHERE (seq, number) IN (SELECT seq, starts FROM job WHERE state = 'active');
