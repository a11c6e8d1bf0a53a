-- receive: stores a job that comes from another storage, with its runs.

-- name: insert
-- Inserts one row, or none if the queue knows the id.
INSERT INTO tenure_job (
    queue, id, task, state, headers, tags, score, priority, boost, lifo, fair_key, weight, run_at, ttl,
    expires_at, timeout, deadline, heartbeat_timeout, keys, rates, merge_key, merge, collected, collected_bytes,
    lease, max_stalls, start_grace, renewed, pinned, policy, fence, settled_fence, starts, failures, stalls,
    releases, cancel_at, cancel_reason, cancel_by, created, started, finished, kept_until, redrive_at, redrives,
    error, reason, fault, progress, progress_note, schedule, tick, parent, payload, result, quarantined, put_back_used,
    data, data_number
)
VALUES (
    :queue, :id, :task, :state, :headers, :tags, :score, :priority, :boost, :lifo, :fair_key, :weight, :run_at,
    :ttl, :expires_at, :timeout, :deadline, :heartbeat_timeout, :keys, :rates, :merge_key, :merge, :collected,
    :collected_bytes, :lease, :max_stalls, :start_grace, :renewed, :pinned, :policy, :fence, :settled_fence,
    :starts, :failures, :stalls, :releases, :cancel_at, :cancel_reason, :cancel_by, :created, :started,
    :finished, :kept_until, :redrive_at, :redrives, :error, :reason, :fault, :progress, :progress_note, :schedule,
    :tick, :parent, :payload, :result, :quarantined, :put_back_used, :data, :data_number
)
ON CONFLICT (queue, id) DO NOTHING;

-- name: seq
SELECT seq FROM tenure_job WHERE queue = :queue AND id = :id;

-- name: insert_run
INSERT INTO tenure_run (seq, number, fence, owner, worker, host, pid, start, "end", ended, reason, detail, trace)
VALUES (:seq, :number, :fence, :owner, :worker, :host, :pid, :start, :end, :ended, :reason, :detail, :trace);
