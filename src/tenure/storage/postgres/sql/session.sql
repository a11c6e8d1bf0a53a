-- session: the begin and end of transactions, the schema's version, and notifications. All settings end with their
-- transaction, because behind PgBouncer the next one may run in another session.

-- name: write
-- Begins a transaction that may write. `gate`: no other one runs until it ends. The settings: stale statistics never
-- lead to a scan of a whole table; a process that is frozen holds the gate for `idle` milliseconds at most, and a
-- transaction waits for it for `patience` milliseconds.
-- Returns the server's clock in microseconds, read once the gate is taken, and the transaction's number.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('search_path', :schema, TRUE),
       set_config('enable_seqscan', 'off', TRUE),
       set_config('jit', 'off', TRUE),
       set_config('idle_in_transaction_session_timeout', :idle, TRUE),
       set_config('lock_timeout', :patience, TRUE),
       pg_advisory_xact_lock(:gate);
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_current_xact_id()::text;

-- name: read
-- Begins a transaction that sees one state of the database and takes no gate.
-- Returns the server's clock in microseconds.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT set_config('search_path', :schema, TRUE),
       set_config('enable_seqscan', 'off', TRUE),
       set_config('jit', 'off', TRUE),
       set_config('idle_in_transaction_session_timeout', :idle, TRUE),
       set_config('lock_timeout', :patience, TRUE);
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: savepoint
SAVEPOINT step;

-- name: release_savepoint
RELEASE SAVEPOINT step;

-- name: rollback_to_savepoint
ROLLBACK TO SAVEPOINT step;

-- name: keep_days
-- Creates the tables of the days from `first` to `last`, and drops those of other days that are empty. `patience`: how
-- many milliseconds it waits for transactions that read; meanwhile new ones wait for it.
SELECT set_config('lock_timeout', :patience, TRUE), make_days(:first::integer, :last::integer),
       drop_days(:first::integer - 1, :last::integer);

-- name: fate
-- Returns the state of a transaction: 'committed', 'aborted', 'in progress', or NULL if that is not known any more.
-- `number`: the transaction's number.
SELECT pg_xact_status(:number::text::xid8);

-- name: server
-- Returns the server's version, and the encoding of the database.
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding');

-- name: tables
-- Returns whether the schema exists, how many tables it has, and whether one of them is ours.
SELECT to_regnamespace(:schema) IS NOT NULL,
       (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p')),
       to_regclass(:schema || '.meta') IS NOT NULL AND to_regclass(:schema || '.job_live') IS NOT NULL;

-- name: enter
-- Makes a schema the current one, and lets no other transaction check or change it until this one ends.
SELECT set_config('search_path', :path, TRUE),
       set_config('tenure.schema', :schema, TRUE),
       set_config('lock_timeout', :patience, TRUE),
       pg_advisory_xact_lock(:lock);

-- name: create_schema
DO $$
BEGIN
    IF to_regnamespace(current_setting('tenure.schema')) IS NULL THEN
        EXECUTE format('CREATE SCHEMA %I', current_setting('tenure.schema'));
    END IF;
END
$$;

-- name: version
-- Returns the number of the schema and the features that it uses, a JSON list.
SELECT (SELECT value::integer FROM meta WHERE key = 'schema_version'),
       coalesce((SELECT value FROM meta WHERE key = 'features'), '[]');

-- name: set_version
-- `created`: when this schema was made, unless that is known already.
INSERT INTO meta
VALUES ('schema_version', :version::bigint::text),
       ('created', coalesce(:created::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)::text)
ON CONFLICT (key) DO UPDATE
   SET value = CASE meta.key WHEN 'created' THEN meta.value ELSE excluded.value END;

-- name: notify
SELECT pg_notify(:channel, :payload);

-- name: listen
LISTEN :channel;

-- name: ping
SELECT 1;
