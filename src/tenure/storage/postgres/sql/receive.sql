-- receive: stores a job that comes from another storage, with its runs.

-- name: insert
-- Inserts one row, or none if the queue knows the id.
INSERT INTO job (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, fair_key, weight, run_at, ttl,
    expires_at, timeout, deadline, heartbeat_timeout, keys, rates, merge_key, merge, collected, collected_bytes,
    lease, max_stalls, start_grace, renewed, pinned, policy, fence, settled_fence, starts, failures, stalls,
    releases, cancel_at, cancel_reason, cancel_by, created, started, finished, kept_until, redrive_at, redrives,
    error, reason, fault, progress, progress_note, schedule, tick, parent, payload, result, quarantined, put_back_used,
    data, data_number, day
)
SELECT
    :queue, :id, :task, :state, :headers, :tags, :score, :priority, :boost, :lifo, :fair_key, :weight, :run_at,
    :ttl::bigint, :expires_at::bigint, :timeout::bigint, :deadline::bigint, :heartbeat_timeout::bigint, :keys,
    :rates, :merge_key, :merge, :collected, :collected_bytes, :lease, :max_stalls, :start_grace, :renewed,
    :pinned, :policy, :fence, :settled_fence, :starts, :failures, :stalls, :releases, :cancel_at::bigint,
    :cancel_reason, :cancel_by, :created, :started::bigint, :finished::bigint, :kept_until::bigint,
    :redrive_at::bigint, :redrives, :error, :reason, :fault, :progress::text::json, :progress_note, :schedule,
    :tick::bigint, :parent, :payload, :result, :quarantined, :put_back_used, :data, :data_number,
    CASE WHEN :finished::bigint IS NULL THEN 0 ELSE day_of(:finished::bigint) END
 WHERE NOT EXISTS (SELECT 1 FROM job_named(:queue, :id))
ON CONFLICT DO NOTHING;

-- name: seq
SELECT seq FROM job_named(:queue, :id);

-- name: insert_run
INSERT INTO run (seq, number, fence, owner, worker, host, pid, start, "end", ended, reason, detail, trace)
VALUES (:seq, :number, :fence, :owner, :worker, :host, :pid, :start, :end, :ended, :reason, :detail, :trace);
