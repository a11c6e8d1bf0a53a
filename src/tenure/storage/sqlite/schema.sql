-- The schema, changed in place until the first release; see SCHEMA in database.py. Instants and durations are whole
-- microseconds. Structured fields are JSON, and NULL if empty.

CREATE TABLE tenure_meta (
    key TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO tenure_meta VALUES ('proto', 1);

-- The identity of this database. By it a worker notices that another database has replaced this one.
INSERT INTO tenure_meta VALUES ('identity', lower(hex(randomblob(8))));

-- A job's record, in the column order of rows.py. Payload and result come late: SQLite reads the columns before them
-- without their overflow pages.
CREATE TABLE tenure_job (
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
    collected INTEGER NOT NULL DEFAULT 0,
    collected_bytes INTEGER NOT NULL DEFAULT 0,
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
    fault TEXT,
    -- A number, or JSON text.
    progress ANY,
    progress_note TEXT,
    schedule TEXT,
    tick INTEGER,
    parent TEXT,
    payload BLOB NOT NULL,
    result BLOB,
    quarantined INTEGER NOT NULL DEFAULT 0,
    put_back_used INTEGER NOT NULL DEFAULT 0,
    data BLOB,
    data_number INTEGER NOT NULL DEFAULT 0,
    -- The latest run. Earlier runs are in `tenure_run`. If `run_fence` is NULL, all runs are there.
    run_fence INTEGER,
    run_owner TEXT,
    run_worker TEXT,
    run_host TEXT,
    run_pid INTEGER,
    run_end INTEGER,
    run_ended TEXT,
    run_reason TEXT,
    run_detail TEXT,
    run_trace TEXT,
    UNIQUE (queue, id)
) STRICT;

-- A state change evaluates the terms of every index, so each begins with the term that is rarely true. A term that
-- lists several states comes last: SQLite builds a table of them for each row that changes.

CREATE INDEX tenure_job_ready ON tenure_job (queue, score, id)
    WHERE state = 'waiting' AND parked_under IS NULL;

CREATE INDEX tenure_job_parked ON tenure_job (queue, parked_under, score, id)
    WHERE parked_under IS NOT NULL AND state = 'waiting';

CREATE INDEX tenure_job_delayed ON tenure_job (queue, run_at, id)
    WHERE state = 'delayed';

-- The tenants that have waiting jobs.
CREATE INDEX tenure_job_tenant ON tenure_job (queue, boost, fair_key)
    WHERE fair_key IS NOT NULL AND state = 'waiting' AND lifo = 0;

-- The jobs that have waited longest, regardless of their scores.
CREATE INDEX tenure_job_waiting ON tenure_job (queue, run_at)
    WHERE state = 'waiting';

CREATE INDEX tenure_job_ttl ON tenure_job (expires_at, queue, id)
    WHERE expires_at IS NOT NULL AND state IN ('delayed', 'waiting');

-- Leases by their length. Of each length, those that have run out come first. Those that end further ahead than their
-- length (the clock was set back) come last. The owner column makes this index and the next one also answer which
-- owners hold jobs.
CREATE INDEX tenure_job_lease ON tenure_job (max(lease, start_grace, 5000000), lease_until, owner)
    WHERE state = 'active' AND suspect_until IS NULL;

CREATE INDEX tenure_job_suspect ON tenure_job (suspect_until, owner)
    WHERE suspect_until IS NOT NULL AND state = 'active';

-- Active jobs with a cancellation request.
CREATE INDEX tenure_job_cancelling ON tenure_job (owner)
    WHERE cancel_at IS NOT NULL AND state = 'active';

CREATE INDEX tenure_job_over ON tenure_job (queue, state, seq)
    WHERE finished IS NOT NULL;

-- Jobs that retention deletes: by the queue's rules, the earliest ended first, or by a lifetime of the result's own.
-- Jobs that a rule will redrive are not deleted.
CREATE INDEX tenure_job_ended ON tenure_job (queue, state, finished)
    WHERE finished IS NOT NULL AND (kept_until IS NULL OR state <> 'completed') AND redrive_at IS NULL;

CREATE INDEX tenure_job_kept ON tenure_job (kept_until, queue, id)
    WHERE kept_until IS NOT NULL;

CREATE INDEX tenure_job_redrive ON tenure_job (redrive_at, queue, id)
    WHERE redrive_at IS NOT NULL;

-- The failed jobs by their faults. The instant answers when each fault began and when it last occurred.
CREATE INDEX tenure_job_fault ON tenure_job (queue, fault, finished)
    WHERE fault IS NOT NULL;

-- Unfinished jobs that a later call may be merged into, by their key. Queries skip jobs that are full.
CREATE INDEX tenure_job_merge ON tenure_job (queue, merge_key, collected, seq)
    WHERE merge_key IS NOT NULL AND finished IS NULL;

-- Jobs whose state is not valid, which no other query finds. The terms stand one by one, the usual states first, so that
-- most changes evaluate one or two of them.
CREATE INDEX tenure_job_stateless ON tenure_job (seq)
    WHERE state <> 'waiting' AND state <> 'active' AND state <> 'completed' AND state <> 'delayed'
      AND state <> 'failed' AND state <> 'cancelled' AND state <> 'expired';

-- The unfinished jobs of each schedule.
CREATE INDEX tenure_job_scheduled ON tenure_job (schedule, state)
    WHERE schedule IS NOT NULL AND finished IS NULL;

-- How many jobs of each queue are in each state, updated once per transaction: triggers for each row made an enqueue a
-- quarter slower. A queue's rows are deleted when retention has deleted its last job. In addition to the states:
-- 'parked' (of the waiting), 'kept' (of the completed, those whose results have a lifetime of their own), 'ruled' (of
-- the failed, those that a rule redrives), and 'discarded': how many ever expired without a record. trim_at: when the
-- sweep next checks whether jobs of this state are past retention. A job that ends sets it to 0, and a check sets it to
-- the time when the earliest ended job will be too old. So a sweep skips queues in which no job has ended.
CREATE TABLE tenure_tally (
    seq INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    trim_at INTEGER,
    UNIQUE (queue, state)
) STRICT;

CREATE INDEX tenure_tally_trim ON tenure_tally (trim_at)
    WHERE trim_at IS NOT NULL;

CREATE TABLE tenure_run (
    seq INTEGER NOT NULL,
    number INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    owner TEXT NOT NULL,
    worker TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start INTEGER NOT NULL,
    "end" INTEGER,
    ended TEXT,
    reason TEXT,
    detail TEXT,
    trace TEXT,
    PRIMARY KEY (seq, number)
) STRICT, WITHOUT ROWID;

-- line: the number of this line among all lines that the log has had. number: a run counts its lines, so that a line
-- that is sent again is stored once; 0: not counted.
CREATE TABLE tenure_log (
    seq INTEGER NOT NULL,
    line INTEGER NOT NULL,
    at INTEGER NOT NULL,
    run INTEGER NOT NULL,
    level TEXT NOT NULL,
    message TEXT NOT NULL,
    fields TEXT,
    number INTEGER NOT NULL,
    PRIMARY KEY (seq, line)
) STRICT, WITHOUT ROWID;

-- The concurrency keys that unfinished jobs name: the limit in force, and the number of these jobs; at zero the row is
-- deleted. The number of active jobs is not a counter but the rows of tenure_slot, so it cannot drift.
CREATE TABLE tenure_key (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    "limit" INTEGER NOT NULL,
    named INTEGER NOT NULL,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;

-- The holders of a concurrency key: one row for each active job that has it.
CREATE TABLE tenure_slot (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (queue, key, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_setting (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- What workers have published about their tasks. `schemas`: the JSON Schemas of the arguments and the result.
CREATE TABLE tenure_task (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    published INTEGER NOT NULL,
    body TEXT NOT NULL,
    schemas TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_worker (
    seq INTEGER PRIMARY KEY,
    owner TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    info TEXT NOT NULL,
    started INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    died INTEGER NOT NULL DEFAULT 0,
    -- The number of the last event that the worker reported.
    announced INTEGER NOT NULL DEFAULT 0
) STRICT;

-- There is one writer at a time, so the order of the ids is the order of the commits, and a cursor misses no event.
-- queue, job: set on events of a job.
CREATE TABLE tenure_event (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    queue TEXT,
    job TEXT,
    body TEXT NOT NULL
) STRICT;

-- The acts of operators. number: without gaps, in the order in which they were asked for. body: the whole record.
CREATE TABLE tenure_act (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    asked INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

CREATE TABLE tenure_reader (
    name TEXT PRIMARY KEY,
    cursor INTEGER NOT NULL,
    lent_to TEXT,
    until INTEGER NOT NULL,
    -- The end of all batches that were lent. A cursor beyond it belongs to an earlier log.
    lent_upto INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_schedule (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    last_tick INTEGER,
    next_tick INTEGER,
    paused INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE INDEX tenure_schedule_due ON tenure_schedule (next_tick)
    WHERE next_tick IS NOT NULL AND paused = 0;

-- The schedules by last tick: finds those that lie ahead of the clock, after it was set back.
CREATE INDEX tenure_schedule_reached ON tenure_schedule (last_tick)
    WHERE paused = 0;

-- The leader of a scope. Without a leader the owner is NULL. The epoch continues over all terms.
CREATE TABLE tenure_leader (
    scope TEXT PRIMARY KEY,
    owner TEXT,
    epoch INTEGER NOT NULL,
    length INTEGER NOT NULL,
    until INTEGER NOT NULL,
    swept_at INTEGER,
    resumed_at INTEGER
) STRICT, WITHOUT ROWID;

INSERT INTO tenure_leader VALUES ('*', NULL, 0, 0, 0, NULL, NULL);

-- The calls that were merged into a job, by their own ids. Of a collecting job also its own call, and the arguments of
-- each, in the order of `place`. They are deleted with their job.
CREATE TABLE tenure_call (
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    job TEXT NOT NULL,
    place INTEGER NOT NULL,
    payload BLOB,
    PRIMARY KEY (queue, id)
) STRICT;

CREATE INDEX tenure_call_of_job ON tenure_call (queue, job, place);

-- A key with a time limit: how many jobs were made under it since it began, and the latest of them.
CREATE TABLE tenure_window (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    until INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX tenure_window_over ON tenure_window (until);

-- Figures: how many runs ended in the minute, or hour, that begins at `start`, with histograms (core/figures.py).
-- length: of the cell, in microseconds. task: empty for all tasks of the queue. counts: a JSON list.
CREATE TABLE tenure_figure (
    length INTEGER NOT NULL,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    start INTEGER NOT NULL,
    counts TEXT NOT NULL,
    PRIMARY KEY (length, task, queue, start)
) STRICT, WITHOUT ROWID;

CREATE INDEX tenure_figure_start ON tenure_figure (length, start, queue, task);

-- For each rate: the instant up to which its time is taken, and how far ahead (in microseconds) the latest start could
-- take time. opens_at: when it lets its next parked job start.
CREATE TABLE tenure_rate (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    taken_until INTEGER NOT NULL,
    reach INTEGER NOT NULL DEFAULT 0,
    opens_at INTEGER,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX tenure_rate_opening ON tenure_rate (queue, opens_at)
    WHERE opens_at IS NOT NULL;

-- Taken time that has passed is reset to 0, and then rows without any state are deleted.
-- The limits that handlers have set have names that begin with "limit:"; this one is that of a whole queue.
CREATE INDEX tenure_rate_limited ON tenure_rate (queue)
    WHERE name = 'limit:queue';

CREATE INDEX tenure_rate_over ON tenure_rate (taken_until)
    WHERE taken_until > 0;

CREATE INDEX tenure_rate_idle ON tenure_rate (opens_at)
    WHERE opens_at IS NULL AND taken_until = 0;

-- Fair queues and their virtual time: of the queue, of each priority, and of each tenant's last job.
CREATE TABLE tenure_fair_line (
    queue TEXT PRIMARY KEY,
    front INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_fair_reached (
    queue TEXT NOT NULL,
    boost INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (queue, boost)
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_fair_tag (
    queue TEXT NOT NULL,
    boost INTEGER NOT NULL,
    key TEXT NOT NULL,
    tag INTEGER NOT NULL,
    PRIMARY KEY (queue, boost, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX tenure_fair_tag_passed ON tenure_fair_tag (queue, boost, tag);
