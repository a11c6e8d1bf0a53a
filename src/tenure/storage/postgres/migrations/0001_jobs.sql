-- The first schema. Instants and durations are whole microseconds. Structured fields are JSON texts, and NULL if empty:
-- jsonb would change the order of keys, and refuses \u0000. Texts that are compared or sorted have the collation "C", so
-- that their order is that of their bytes on every server.

CREATE TABLE meta (
    key text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

-- The identity of this schema. By it a worker notices that another database has replaced this one.
INSERT INTO meta VALUES ('identity', substr(md5(gen_random_uuid()::text), 1, 16));

CREATE SEQUENCE job_seq;

-- A job's record, in the column order of storage/sql/rows.py. `day` is 0 for an unfinished job, else the UTC day in which
-- it ended: one partition holds all unfinished jobs, and each day's ended jobs have one of their own. An update of `day`
-- moves the row.
CREATE TABLE job (
    seq bigint NOT NULL DEFAULT nextval('job_seq'),
    queue text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    headers text,
    tags text,
    score bigint NOT NULL,
    priority bigint NOT NULL,
    boost bigint NOT NULL,
    lifo smallint NOT NULL DEFAULT 0,
    fair_key text COLLATE "C",
    weight bigint NOT NULL DEFAULT 1,
    run_at bigint NOT NULL,
    ttl bigint,
    expires_at bigint,
    timeout bigint,
    deadline bigint,
    heartbeat_timeout bigint,
    keys text,
    rates text,
    merge_key text COLLATE "C",
    merge text,
    collected bigint NOT NULL DEFAULT 0,
    collected_bytes bigint NOT NULL DEFAULT 0,
    parked_under text COLLATE "C",
    lease bigint NOT NULL,
    max_stalls bigint NOT NULL,
    start_grace bigint NOT NULL,
    renewed smallint NOT NULL,
    pinned text,
    policy text NOT NULL,
    fence bigint NOT NULL DEFAULT 0,
    settled_fence bigint NOT NULL DEFAULT 0,
    owner text COLLATE "C",
    heard_at bigint,
    lease_until bigint,
    suspect_until bigint,
    run_until bigint,
    progress_until bigint,
    starts bigint NOT NULL DEFAULT 0,
    failures bigint NOT NULL DEFAULT 0,
    stalls bigint NOT NULL DEFAULT 0,
    releases bigint NOT NULL DEFAULT 0,
    cancel_at bigint,
    cancel_reason text,
    cancel_by text,
    created bigint NOT NULL,
    started bigint,
    finished bigint,
    kept_until bigint,
    redrive_at bigint,
    redrives bigint NOT NULL DEFAULT 0,
    error text,
    reason text,
    fault text COLLATE "C",
    -- A number, or an object.
    progress json,
    progress_note text,
    schedule text COLLATE "C",
    tick bigint,
    parent text,
    payload bytea NOT NULL,
    result bytea,
    quarantined smallint NOT NULL DEFAULT 0,
    put_back_used smallint NOT NULL DEFAULT 0,
    data bytea,
    data_number bigint NOT NULL DEFAULT 0,
    -- The latest run. Earlier runs are in `run`. If `run_fence` is NULL, all runs are there.
    run_fence bigint,
    run_owner text,
    run_worker text,
    run_host text,
    run_pid bigint,
    run_end bigint,
    run_ended text,
    run_reason text,
    run_detail text,
    run_trace text,
    day integer NOT NULL DEFAULT 0
) PARTITION BY RANGE (day);

-- Stored outside the row and not compressed, so that an update of the row does not copy them.
ALTER TABLE job
    ALTER COLUMN payload SET STORAGE EXTERNAL,
    ALTER COLUMN result SET STORAGE EXTERNAL,
    ALTER COLUMN data SET STORAGE EXTERNAL;

-- The unfinished jobs. A heartbeat changes only columns that no index contains, and finds room in the row's own page
-- (fillfactor), so it writes no index.
CREATE TABLE job_live PARTITION OF job FOR VALUES FROM (0) TO (1)
  WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    vacuum_truncate = off
);

CREATE UNIQUE INDEX job_live_seq ON job_live (seq);

CREATE UNIQUE INDEX job_live_id ON job_live (queue, id);

CREATE INDEX job_ready ON job_live (queue, score, id)
    WHERE state = 'waiting' AND parked_under IS NULL;

CREATE INDEX job_parked ON job_live (queue, parked_under, score, id)
    WHERE state = 'waiting' AND parked_under IS NOT NULL;

CREATE INDEX job_delayed ON job_live (queue, run_at, id)
    WHERE state = 'delayed';

-- The tenants that have waiting jobs.
CREATE INDEX job_tenant ON job_live (queue, boost, fair_key)
    WHERE state = 'waiting' AND fair_key IS NOT NULL AND lifo = 0;

-- The jobs that have waited longest, regardless of their scores.
CREATE INDEX job_waiting ON job_live (queue, run_at)
    WHERE state = 'waiting';

CREATE INDEX job_ttl ON job_live (expires_at, queue, id)
    WHERE expires_at IS NOT NULL AND state IN ('delayed', 'waiting');

-- The active jobs, in the order in which they started. An index on the end of the leases would have to be updated by each
-- heartbeat: the sweep reads all active jobs instead.
CREATE INDEX job_active ON job_live (started, owner)
    WHERE state = 'active';

-- Active jobs with a cancellation request.
CREATE INDEX job_cancelling ON job_live (owner)
    WHERE state = 'active' AND cancel_at IS NOT NULL;

-- Jobs that a later call may be merged into, by their key. Queries skip jobs that are full.
CREATE INDEX job_merge ON job_live (queue, merge_key, collected, seq)
    WHERE merge_key IS NOT NULL;

-- Jobs whose state is not valid, which no other query finds.
CREATE INDEX job_stateless ON job_live (seq)
    WHERE state NOT IN ('waiting', 'active', 'delayed');

-- The unfinished jobs of each schedule.
CREATE INDEX job_scheduled ON job_live (schedule, state)
    WHERE schedule IS NOT NULL;

-- Creates the indexes of a table of ended jobs.
CREATE FUNCTION index_ended(name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE UNIQUE INDEX %I ON %I (seq)', name || '_seq', name);
    EXECUTE format('CREATE INDEX %I ON %I (queue, state, seq)', name || '_over', name);
    -- Jobs that retention deletes: by the queue's rules, the earliest ended first, or by a lifetime of the result's own.
    -- Jobs that a rule will redrive are not deleted.
    EXECUTE format(
        'CREATE INDEX %I ON %I (queue, state, finished, id) '
        'WHERE (kept_until IS NULL OR state <> ''completed'') AND redrive_at IS NULL',
        name || '_ended', name
    );
    -- The failed jobs by their faults. The instant answers when each fault began and when it last occurred. With the day
    -- in it, a query of ended jobs (day >= 1) counts the jobs of each fault without reading their rows.
    EXECUTE format(
        'CREATE INDEX %I ON %I (queue, fault, finished) INCLUDE (day) WHERE fault IS NOT NULL', name || '_fault', name
    );
    EXECUTE format('CREATE INDEX %I ON %I (kept_until, queue, id) WHERE kept_until IS NOT NULL', name || '_kept', name);
    EXECUTE format(
        'CREATE INDEX %I ON %I (redrive_at, queue, id) WHERE redrive_at IS NOT NULL', name || '_redrive', name
    );
    -- The last one: while the table is empty, the planner finds all indexes that begin with the queue equally good for a
    -- look-up by queue and id, and takes the newest. Its plan stays in use while the table grows.
    EXECUTE format('CREATE UNIQUE INDEX %I ON %I (queue, id)', name || '_id', name);
END
$$;

-- The jobs that ended in a day that has no table of its own.
CREATE TABLE job_ended_other PARTITION OF job DEFAULT;

SELECT index_ended('job_ended_other');

-- Creates the tables of the jobs that end in some days. A day of which job_ended_other has jobs already gets none.
-- It runs with the rights of the tables' owner, so that workers need not own them.
CREATE FUNCTION make_days(first integer, last integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    name text;
BEGIN
    FOR the_day IN first..last LOOP
        name := format('job_ended_%s', the_day);
        CONTINUE WHEN to_regclass(format('%I.%I', current_schema(), name)) IS NOT NULL;
        CONTINUE WHEN EXISTS (SELECT 1 FROM job_ended_other WHERE day = the_day);
        EXECUTE format(
            'CREATE TABLE %I (LIKE job INCLUDING DEFAULTS INCLUDING STORAGE, CHECK (day = %s)) '
            'WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)', name, the_day
        );
        PERFORM index_ended(name);
        EXECUTE format('ALTER TABLE job ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', name, the_day, the_day + 1);
    END LOOP;
END
$$;

-- Drops the tables of the days before `first` and after `last` that are empty, because retention has deleted their jobs.
-- That returns their space to the system at once. Returns how many tables were dropped.
-- It runs with the rights of the tables' owner, too.
CREATE FUNCTION drop_days(first integer, last integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    name text;
    used boolean;
    dropped integer := 0;
BEGIN
    FOR name IN
        SELECT relname
          FROM pg_class
         WHERE relnamespace = current_schema()::regnamespace
           AND relkind = 'r'
           AND relname ~ '^job_ended_[0-9]+$'
           AND substr(relname, 11)::integer NOT BETWEEN first AND last
         ORDER BY relname
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I)', name) INTO used;
        CONTINUE WHEN used;
        EXECUTE format('DROP TABLE %I', name);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END
$$;

-- Returns the day of an instant. Day 0 stands for unfinished jobs.
CREATE FUNCTION day_of(instant bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT greatest(1, instant / 86400000000)::integer
$$;

-- Returns the job with an id. Its plans are kept, which matters with a table for each day.
CREATE FUNCTION job_named(of_queue text, of_id text) RETURNS SETOF job
LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
    RETURN QUERY SELECT * FROM job_live WHERE job_live.queue = of_queue AND job_live.id = of_id;
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM job WHERE job.day >= 1 AND job.queue = of_queue AND job.id = of_id;
    END IF;
END
$$;

-- Returns the job with a number.
CREATE FUNCTION job_numbered(of_seq bigint) RETURNS SETOF job
LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
    RETURN QUERY SELECT * FROM job_live WHERE job_live.seq = of_seq;
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM job WHERE job.day >= 1 AND job.seq = of_seq;
    END IF;
END
$$;

-- Returns whether a job with this id has ended.
CREATE FUNCTION has_ended(of_queue text, of_id text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM job WHERE job.day >= 1 AND job.queue = of_queue AND job.id = of_id);
END
$$;

-- Returns the texts in a JSON list; none if it is not a list of texts, which only a damaged record can be.
CREATE FUNCTION names_in(list text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN ARRAY(SELECT jsonb_array_elements_text(list::jsonb));
EXCEPTION
    WHEN data_exception THEN RETURN '{}';
END
$$;

-- Returns the names of the concurrency keys in a job's column `keys`.
CREATE FUNCTION key_names(list text) RETURNS SETOF text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN QUERY SELECT value ->> 'name' FROM jsonb_array_elements(list::jsonb) AS listed (value);
EXCEPTION
    WHEN data_exception THEN RETURN;
END
$$;

-- How many jobs of each queue are in each state, updated once per transaction. A queue's rows are deleted when retention
-- has deleted its last job. In addition to the states: 'parked' (of the waiting), 'kept' (of the completed, those whose
-- results have a lifetime of their own), 'ruled' (of the failed, those that a rule redrives), and 'discarded': how many
-- ever expired without a record. trim_at: when the sweep next checks whether jobs of this state are past retention. A job
-- that ends sets it to 0, and a check sets it to the time when the earliest ended job will be too old. So a sweep skips
-- queues in which no job has ended.
CREATE TABLE tally (
    queue text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    jobs bigint NOT NULL,
    trim_at bigint,
    PRIMARY KEY (queue, state)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE INDEX tally_trim ON tally (trim_at)
    WHERE trim_at IS NOT NULL;

-- Where the queries of a queue that read from one end of an index begin. No ready job has a score below `reached`
-- (state 'waiting'), and no job of an end state that retention may delete ended before it. In the row without a queue: no
-- active job started before it. The queries would otherwise read all row versions that claims and retention have left
-- there, and while a transaction holds an old snapshot, vacuum removes none. A transaction that makes a job ready, or ends
-- one, lowers the value behind the same gate, so it is never too high. `began`: when a claim made this row or a sweep
-- computed it from all jobs. As a precaution, sweeps do so once a minute.
CREATE TABLE front (
    queue text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    reached bigint NOT NULL,
    began bigint NOT NULL,
    PRIMARY KEY (queue, state)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE INDEX front_began ON front (began);

-- Returns where a query of a queue's jobs in a state begins.
CREATE FUNCTION front_of(of_queue text, of_state text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(
        (SELECT reached FROM front WHERE front.queue = of_queue AND front.state = of_state), -9223372036854775808
    );
END
$$;

CREATE TABLE run (
    seq bigint NOT NULL,
    number bigint NOT NULL,
    fence bigint NOT NULL,
    owner text NOT NULL,
    worker text NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    start bigint NOT NULL,
    "end" bigint,
    ended text,
    reason text,
    detail text,
    trace text,
    PRIMARY KEY (seq, number)
);

-- line: the number of this line among all lines that the log has had. number: a run counts its lines, so that a line
-- that is sent again is stored once; 0: not counted.
CREATE TABLE log (
    seq bigint NOT NULL,
    line bigint NOT NULL,
    at bigint NOT NULL,
    run bigint NOT NULL,
    level text NOT NULL,
    message text NOT NULL,
    fields text,
    number bigint NOT NULL,
    PRIMARY KEY (seq, line)
);

-- The concurrency keys that unfinished jobs name: the limit in force, and the number of these jobs; at zero the row is
-- deleted. The number of active jobs is not a counter but the rows of slot, so it cannot drift.
CREATE TABLE key (
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    "limit" bigint NOT NULL,
    named bigint NOT NULL,
    PRIMARY KEY (queue, name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The holders of a concurrency key: one row for each active job that has it.
CREATE TABLE slot (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, key, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE TABLE setting (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (kind, name)
);

-- What workers have published about their tasks. `schemas`: the JSON Schemas of the arguments and the result.
CREATE TABLE task (
    name text COLLATE "C" PRIMARY KEY,
    digest text NOT NULL,
    published bigint NOT NULL,
    body text NOT NULL,
    schemas text
);

CREATE TABLE worker (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    owner text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    info text NOT NULL,
    started bigint NOT NULL,
    seen_at bigint NOT NULL,
    died smallint NOT NULL DEFAULT 0,
    -- The number of the last event that the worker reported.
    announced bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- One transaction at a time writes events, so the order of the ids is the order of the commits, and a cursor misses no
-- event. queue, job: set on events of a job.
CREATE TABLE event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    queue text COLLATE "C",
    job text COLLATE "C",
    body text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The acts of operators. number: without gaps, in the order in which they were asked for; one transaction at a time
-- writes them. body: the whole record.
CREATE TABLE act (
    number bigint PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    actor text COLLATE "C" NOT NULL,
    action text COLLATE "C" NOT NULL,
    target text COLLATE "C" NOT NULL,
    asked bigint NOT NULL,
    body text NOT NULL
);

CREATE TABLE reader (
    name text COLLATE "C" PRIMARY KEY,
    cursor bigint NOT NULL,
    lent_to text,
    until bigint NOT NULL,
    -- The end of all batches that were lent. A cursor beyond it belongs to an earlier log.
    lent_upto bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE schedule (
    name text COLLATE "C" PRIMARY KEY,
    body text NOT NULL,
    last_tick bigint,
    next_tick bigint,
    paused smallint NOT NULL DEFAULT 0
);

CREATE INDEX schedule_due ON schedule (next_tick)
    WHERE next_tick IS NOT NULL AND paused = 0;

-- The schedules by last tick: finds those that lie ahead of the clock, after it was set back.
CREATE INDEX schedule_reached ON schedule (last_tick)
    WHERE paused = 0;

-- The leader of a scope. Without a leader the owner is NULL. The epoch continues over all terms.
CREATE TABLE leader (
    scope text COLLATE "C" PRIMARY KEY,
    owner text,
    epoch bigint NOT NULL,
    length bigint NOT NULL,
    until bigint NOT NULL,
    swept_at bigint,
    resumed_at bigint
) WITH (fillfactor = 50);

INSERT INTO leader VALUES ('*', NULL, 0, 0, 0, NULL, NULL);

-- The calls that were merged into a job, by their own ids. Of a collecting job also its own call, and the arguments of
-- each, in the order of `place`. They are deleted with their job.
CREATE TABLE call (
    number bigint GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    job text COLLATE "C" NOT NULL,
    place bigint NOT NULL,
    payload bytea,
    PRIMARY KEY (queue, id)
);

ALTER TABLE call ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE INDEX call_of_job ON call (queue, job, place);

-- A key with a time limit: how many jobs were made under it since it began, and the latest of them.
CREATE TABLE "window" (
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    jobs bigint NOT NULL,
    id text NOT NULL,
    PRIMARY KEY (queue, name)
);

CREATE INDEX window_over ON "window" (until);

-- Figures: how many runs ended in the minute, or hour, that begins at `start`, with histograms (core/figures.py).
-- length: of the cell, in microseconds. task: empty for all tasks of the queue. counts: a JSON list. A cell changes often
-- while it is the current one, and no index has `counts`: such a change needs room on the page, and no index entry.
CREATE TABLE figure (
    length bigint NOT NULL,
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    start bigint NOT NULL,
    counts text NOT NULL,
    PRIMARY KEY (length, task, queue, start)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX figure_start ON figure (length, start, queue, task);

-- For each rate: the instant up to which its time is taken, and how far ahead (in microseconds) the latest start could
-- take time. opens_at: when it lets its next parked job start.
CREATE TABLE rate (
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    taken_until bigint NOT NULL,
    reach bigint NOT NULL DEFAULT 0,
    opens_at bigint,
    PRIMARY KEY (queue, name)
);

CREATE INDEX rate_opening ON rate (queue, opens_at)
    WHERE opens_at IS NOT NULL;

-- The limits that handlers have set have names that begin with "limit:"; this one is that of a whole queue.
CREATE INDEX rate_limited ON rate (queue)
    WHERE name = 'limit:queue';

-- Taken time that has passed is reset to 0, and then rows without any state are deleted.
CREATE INDEX rate_over ON rate (taken_until)
    WHERE taken_until > 0;

CREATE INDEX rate_idle ON rate (opens_at)
    WHERE opens_at IS NULL AND taken_until = 0;

-- Fair queues and their virtual time: of the queue, of each priority, and of each tenant's last job.
CREATE TABLE fair_line (
    queue text COLLATE "C" PRIMARY KEY,
    front bigint NOT NULL
);

CREATE TABLE fair_reached (
    queue text COLLATE "C" NOT NULL,
    boost bigint NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (queue, boost)
);

CREATE TABLE fair_tag (
    queue text COLLATE "C" NOT NULL,
    boost bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    tag bigint NOT NULL,
    PRIMARY KEY (queue, boost, key)
);

CREATE INDEX fair_tag_passed ON fair_tag (queue, boost, tag);

-- Calls that users' transactions have stored with their own changes (`options(tx=...)`). Each is one insert, so such a
-- transaction never waits for the gate and never holds it. The next transaction behind the gate makes jobs of the rows
-- that are committed. `at`: the server's clock, from which the delay and the ttl of the call count. `job`: a NewJob as
-- MessagePack. `format`: only a program that knows this number reads it (storage/postgres/intake.py); the row waits for
-- one. `refused`: why no job can be made of it; the row then stays here.
CREATE TABLE intake (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    at bigint NOT NULL,
    job bytea NOT NULL,
    format integer NOT NULL,
    refused text
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

ALTER TABLE intake ALTER COLUMN job SET STORAGE EXTERNAL;

-- The calls that wait. Queries skip those that only a newer program can read.
CREATE INDEX intake_waiting ON intake (format, seq)
    WHERE refused IS NULL;

CREATE INDEX intake_refused ON intake (queue, id)
    WHERE refused IS NOT NULL;

-- The calls of `intake` that became no job, because one with the same unique key existed: that job, by the call's id.
CREATE TABLE answered (
    queue text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    job text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (queue, id)
);

CREATE INDEX answered_over ON answered (until);
