-- Order, merging, rates, schedules: what a job brings along, and what is kept beside the jobs. The table is made anew,
-- for its columns to stand before the payload.

CREATE TABLE job_2 (
    seq INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    task TEXT NOT NULL,
    state TEXT NOT NULL,
    headers TEXT,
    tags TEXT,
    score INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    boost INTEGER NOT NULL,
    lifo INTEGER NOT NULL DEFAULT 0,
    fair_key TEXT,
    weight INTEGER NOT NULL DEFAULT 1,
    run_at INTEGER NOT NULL,
    ttl INTEGER,
    expires_at INTEGER,
    timeout INTEGER,
    deadline INTEGER,
    heartbeat_timeout INTEGER,
    keys TEXT,
    rates TEXT,
    merge_key TEXT,
    merge TEXT,
    gathered INTEGER NOT NULL DEFAULT 0,
    gathered_bytes INTEGER NOT NULL DEFAULT 0,
    parked_under TEXT,
    lease INTEGER NOT NULL,
    max_stalls INTEGER NOT NULL,
    start_grace INTEGER NOT NULL,
    renewed INTEGER NOT NULL,
    pinned TEXT,
    policy TEXT NOT NULL,
    fence INTEGER NOT NULL DEFAULT 0,
    settled_fence INTEGER NOT NULL DEFAULT 0,
    owner TEXT,
    heard_at INTEGER,
    lease_until INTEGER,
    suspect_until INTEGER,
    run_until INTEGER,
    progress_until INTEGER,
    starts INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    stalls INTEGER NOT NULL DEFAULT 0,
    releases INTEGER NOT NULL DEFAULT 0,
    cancel_at INTEGER,
    cancel_reason TEXT,
    cancel_by TEXT,
    created INTEGER NOT NULL,
    started INTEGER,
    finished INTEGER,
    kept_until INTEGER,
    redrive_at INTEGER,
    redrives INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    reason TEXT,
    progress REAL,
    progress_note TEXT,
    schedule TEXT,
    tick INTEGER,
    parent TEXT,
    payload BLOB NOT NULL,
    result BLOB,
    UNIQUE (queue, id)
) STRICT;

INSERT INTO job_2 (
    seq, queue, id, task, state, headers, tags, score, priority, boost, fair_key, run_at, ttl, expires_at, timeout,
    deadline, heartbeat_timeout, keys, merge_key, merge, parked_under, lease, max_stalls, start_grace, renewed,
    pinned, policy, fence, settled_fence, owner, heard_at, lease_until, suspect_until, run_until, progress_until,
    starts, failures, stalls, releases, cancel_at, cancel_reason, cancel_by, created, started, finished, kept_until,
    redrive_at, redrives, error, reason, progress, progress_note, schedule, parent, payload, result
)
SELECT
    seq, queue, id, task, state, headers, tags, score, priority, boost, fair_key, run_at, ttl, expires_at, timeout,
    deadline, heartbeat_timeout, keys, iif(uniq IS NULL, NULL, 'unique:' || (uniq ->> '$.key')),
    iif(uniq IS NULL, NULL, json_set(uniq, '$.type', 'unique')), parked_under, lease, max_stalls, start_grace,
    renewed, pinned, policy, fence, settled_fence, owner, heard_at, lease_until, suspect_until, run_until,
    progress_until, starts, failures, stalls, releases, cancel_at, cancel_reason, cancel_by, created, started,
    finished, kept_until, redrive_at, redrives, error, reason, progress, progress_note, schedule, parent, payload,
    result
  FROM job;

DROP TABLE job;

ALTER TABLE job_2 RENAME TO job;


-- A move from state to state looks at the terms of every index, so they begin with whatever is seldom true, and none asks
-- for one of several states: SQLite would build a table of these for each row that moves.

CREATE INDEX job_ready ON job (queue, score, id)
    WHERE state = 'waiting' AND parked_under IS NULL;

CREATE INDEX job_parked ON job (queue, parked_under, score, id)
    WHERE parked_under IS NOT NULL AND state = 'waiting';

CREATE INDEX job_delayed ON job (queue, run_at, id)
    WHERE state = 'delayed';

-- Whom tenants wait with.
CREATE INDEX job_tenant ON job (queue, boost, fair_key)
    WHERE fair_key IS NOT NULL AND state = 'waiting' AND lifo = 0;

-- Who has waited longest, whatever the scores say.
CREATE INDEX job_waiting ON job (queue, run_at)
    WHERE state = 'waiting';

CREATE INDEX job_ttl ON job (expires_at, queue, id)
    WHERE expires_at IS NOT NULL AND state IN ('delayed', 'waiting');

-- Leases by their length: of each length those that have run out come first, and those that end further ahead than they
-- are long (the clock was set back) come last. With the owner in them these two also tell who holds anything, and what.
CREATE INDEX job_lease ON job (max(lease, start_grace, 5000000), lease_until, owner)
    WHERE state = 'active' AND suspect_until IS NULL;

CREATE INDEX job_suspect ON job (suspect_until, owner)
    WHERE suspect_until IS NOT NULL AND state = 'active';

-- Whom somebody has asked to stop.
CREATE INDEX job_cancelling ON job (owner)
    WHERE cancel_at IS NOT NULL AND state = 'active';

CREATE INDEX job_over ON job (queue, state, seq)
    WHERE finished IS NOT NULL;

-- What retention forgets: by its queue's terms, the longest ended first; or where a result has a lifetime of its own.
-- What a rule has yet to put back in line is not forgotten.
CREATE INDEX job_ended ON job (queue, state, finished)
    WHERE finished IS NOT NULL AND (kept_until IS NULL OR state <> 'completed') AND redrive_at IS NULL;

CREATE INDEX job_kept ON job (kept_until, queue, id)
    WHERE kept_until IS NOT NULL;

CREATE INDEX job_redrive ON job (redrive_at, queue, id)
    WHERE redrive_at IS NOT NULL;

-- Unfinished jobs that a later call may come to, instead of making its own. Who they are follows from their rows; those
-- that have gathered as much as they may are passed over.
CREATE INDEX job_merge ON job (queue, merge_key, gathered, seq)
    WHERE merge_key IS NOT NULL AND finished IS NULL;

-- The unfinished jobs of each schedule.
CREATE INDEX job_scheduled ON job (schedule, state)
    WHERE schedule IS NOT NULL AND finished IS NULL;

-- How far the schedules have got: those that are beyond the clock, after it was set back.
CREATE INDEX schedule_reached ON schedule (last_tick)
    WHERE paused = 0;

-- The calls that a job has taken in beside its own, by the ids they came with; of a job that collects also its own, and
-- the arguments of each, in the order of their places. They go with their job.
CREATE TABLE call (
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    job TEXT NOT NULL,
    place INTEGER NOT NULL,
    payload BLOB,
    PRIMARY KEY (queue, id)
) STRICT;

CREATE INDEX call_of_job ON call (queue, job, place);

DROP TABLE uniq;

-- A key for a time: how many jobs were made under it since it began, and the latest of them.
CREATE TABLE window (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    until INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX window_over ON window (until);

-- Up to which instant the time of each rate is taken, and how far ahead (in microseconds) whoever took last could take
-- any; opens_at: when it lets the next of those parked under it start.
CREATE TABLE rate (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    taken_until INTEGER NOT NULL,
    reach INTEGER NOT NULL DEFAULT 0,
    opens_at INTEGER,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX rate_opening ON rate (queue, opens_at)
    WHERE opens_at IS NOT NULL;

-- Time that has gone by since it was taken is forgotten, and then whatever says nothing any more.
CREATE INDEX rate_over ON rate (taken_until)
    WHERE taken_until > 0;

CREATE INDEX rate_idle ON rate (opens_at)
    WHERE opens_at IS NULL AND taken_until = 0;

-- Lines that are fair, and how far they have got in virtual time: in all, in each priority, and of each tenant the last
-- of its jobs.
CREATE TABLE fair_line (
    queue TEXT PRIMARY KEY,
    front INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE fair_reached (
    queue TEXT NOT NULL,
    boost INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (queue, boost)
) STRICT, WITHOUT ROWID;

CREATE TABLE fair_tag (
    queue TEXT NOT NULL,
    boost INTEGER NOT NULL,
    key TEXT NOT NULL,
    tag INTEGER NOT NULL,
    PRIMARY KEY (queue, boost, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX fair_tag_passed ON fair_tag (queue, boost, tag);
