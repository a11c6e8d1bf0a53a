-- session: the begin and end of transactions, the schema's version, and notifications. All settings end with their
-- transaction, because behind PgBouncer the next one may run in another session.

-- name: write
-- Begins a transaction that may write. `gate`: no other one runs until it ends. The settings: stale statistics never
-- lead to a scan of a whole table, or to a sort of all waiting jobs where an index has their order. The server ends a
-- transaction that gets no statement for `idle` milliseconds. A transaction waits for the gate for `patience` milliseconds.
-- Returns the server's clock in microseconds, read once the gate is taken, the transaction's number, whether calls of users'
-- transactions wait that a program of this `format` can read, and what `state` returns.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('search_path', :schema, TRUE),
       set_config('enable_seqscan', 'off', TRUE),
       set_config('enable_bitmapscan', 'off', TRUE),
       set_config('enable_sort', 'off', TRUE),
       set_config('jit', 'off', TRUE),
       set_config('idle_in_transaction_session_timeout', :idle, TRUE),
       set_config('lock_timeout', :patience, TRUE),
       pg_advisory_xact_lock(:gate);
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_current_xact_id()::text,
       EXISTS (SELECT 1 FROM intake WHERE refused IS NULL AND format <= :format),
       (SELECT json_object_agg(key, value)::text
          FROM meta
         WHERE key IN ('schema_version', 'oldest', 'features', 'closing'));

-- name: read
-- Begins a transaction that sees one state of the database and takes no gate.
-- Returns the server's clock in microseconds, whether calls of users' transactions wait, and what `state` returns.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT set_config('search_path', :schema, TRUE),
       set_config('enable_seqscan', 'off', TRUE),
       set_config('enable_bitmapscan', 'off', TRUE),
       set_config('enable_sort', 'off', TRUE),
       set_config('jit', 'off', TRUE),
       set_config('idle_in_transaction_session_timeout', :idle, TRUE),
       set_config('lock_timeout', :patience, TRUE);
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       EXISTS (SELECT 1 FROM intake WHERE refused IS NULL AND format <= :format),
       (SELECT json_object_agg(key, value)::text
          FROM meta
         WHERE key IN ('schema_version', 'oldest', 'features', 'closing'));

-- name: complete
-- Prepares a handler's transaction for the completion of its job. The handler's deferred constraints are checked first:
-- they may wait for other transactions, and a transaction that has the gate must not. Then as in `write`.
SET CONSTRAINTS ALL IMMEDIATE;
SELECT set_config('tenure.search_path', current_setting('search_path'), TRUE),
       set_config('search_path', :schema, TRUE),
       set_config('enable_seqscan', 'off', TRUE),
       set_config('enable_bitmapscan', 'off', TRUE),
       set_config('enable_sort', 'off', TRUE),
       set_config('jit', 'off', TRUE),
       set_config('idle_in_transaction_session_timeout', :idle, TRUE),
       set_config('lock_timeout', :patience, TRUE),
       pg_advisory_xact_lock(:gate);
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_current_xact_id()::text,
       (SELECT json_object_agg(key, value)::text
          FROM meta
         WHERE key IN ('schema_version', 'oldest', 'features', 'closing'));

-- name: identity
-- Returns the search path of the current transaction, which is a handler's, the identity of the schema that it sees, and
-- how it is isolated. `schema`: the search path to that schema. Fails if the schema is not there.
SELECT set_config('tenure.search_path', current_setting('search_path'), TRUE),
       set_config('search_path', :schema, TRUE);
SELECT set_config('tenure.identity', value, TRUE) FROM meta WHERE key = 'identity';
SELECT set_config('search_path', current_setting('tenure.search_path'), TRUE),
       current_setting('tenure.identity', TRUE),
       current_setting('transaction_isolation');

-- name: give_back
-- Sets the handler's search path again after `complete`: its library may run hooks at the commit.
SELECT set_config('search_path', current_setting('tenure.search_path'), TRUE);

-- name: read_committed
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

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

-- name: backend
-- Returns the process that serves this statement.
SELECT pg_backend_pid();

-- name: tables
-- Returns whether the schema exists, how many tables it has, and whether one of them is ours.
SELECT to_regnamespace(:schema) IS NOT NULL,
       (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p')),
       to_regclass(:schema || '.meta') IS NOT NULL AND to_regclass(:schema || '.job_live') IS NOT NULL;

-- name: enter
-- Makes a schema the current one, and lets no other transaction change it until this one ends. It waits for another one
-- without a limit: that one has limits of its own, `idle` and those of `change`, and it ends if its process is killed.
SELECT set_config('search_path', :path, TRUE),
       set_config('tenure.schema', :schema, TRUE),
       set_config('idle_in_transaction_session_timeout', :idle, TRUE),
       set_config('lock_timeout', '0', TRUE),
       (SELECT set_config(name, '1000', TRUE) FROM pg_settings WHERE name = 'client_connection_check_interval'),
       pg_advisory_xact_lock(:lock);

-- name: change
-- Stops all writers of the schema until the transaction ends. `patience`: how many milliseconds its next statements
-- wait for transactions that read a table; meanwhile all others wait for them.
SELECT pg_advisory_xact_lock(:gate),
       set_config('lock_timeout', :patience, TRUE);

-- name: create_schema
DO $$
BEGIN
    IF to_regnamespace(current_setting('tenure.schema')) IS NULL THEN
        EXECUTE format('CREATE SCHEMA %I', current_setting('tenure.schema'));
    END IF;
END
$$;

-- name: state
-- Returns what the schema says about itself (compatibility.py), a JSON object.
SELECT json_object_agg(key, value)::text
  FROM meta
 WHERE key IN ('schema_version', 'oldest', 'features', 'closing');

-- name: version
-- Returns the number of the schema.
SELECT value::integer FROM meta WHERE key = 'schema_version';

-- name: set_version
-- `oldest`: programs that know an older schema cannot use this one; it never falls. `created`: when this schema was made,
-- unless that is known already.
INSERT INTO meta
VALUES ('schema_version', :version::bigint::text),
       ('oldest', :oldest::bigint::text),
       ('created', coalesce(:created::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)::text)
ON CONFLICT (key) DO UPDATE
   SET value = CASE meta.key
                    WHEN 'created' THEN meta.value
                    WHEN 'oldest' THEN greatest(meta.value::bigint, excluded.value::bigint)::text
                    ELSE excluded.value
                END;

-- name: close
-- Announces a migration for some time: a JSON object with `below` and `until`.
INSERT INTO meta
VALUES ('closing',
        json_build_object(
            'below', :below::bigint,
            'until', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + :lasting::bigint)::text)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: look
SELECT set_config('search_path', :path, TRUE);

-- name: cut_off
-- Returns the live workers that know only a schema older than `below`: name, host, pid, and the number that they know.
-- `lasting`: a worker without a beat for this number of microseconds does not live.
SELECT name, host, pid, coalesce((info::json ->> 'schema')::bigint, 0)
  FROM worker
 WHERE died = 0
   AND seen_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - :lasting::bigint
   AND coalesce((info::json ->> 'schema')::bigint, 0) < :below::bigint
 ORDER BY host, pid, name;

-- name: holders
-- Returns the transactions of others that have used a table of the schema for at least `least` seconds: the number of the
-- server's process, its role, its program, and when it began.
SELECT DISTINCT activity.pid, activity.usename::text, activity.application_name,
       to_char(activity.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
  FROM pg_locks AS lock
  JOIN pg_class AS class ON class.oid = lock.relation
  JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
 WHERE lock.locktype = 'relation'
   AND lock.granted
   AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND class.relnamespace = to_regnamespace(:schema)
   AND activity.pid <> pg_backend_pid()
   AND activity.xact_start < clock_timestamp() - make_interval(secs => :least)
 ORDER BY 4;

-- name: notify
SELECT pg_notify(:channel, :payload);

-- name: listen
LISTEN :channel;

-- name: ping
SELECT 1;

-- The next ones make the script that `tenure migrate sql` prints; values in braces are filled in as text.

-- name: script_begin
-- {file}
BEGIN;
SET LOCAL search_path = {path};
SELECT pg_advisory_xact_lock({lock}), pg_advisory_xact_lock({gate});

-- name: script_first
CREATE SCHEMA IF NOT EXISTS {schema};

-- name: script_next
DO $$
BEGIN
    IF (SELECT value FROM meta WHERE key = 'schema_version') IS DISTINCT FROM '{previous}' THEN
        RAISE EXCEPTION 'this script raises the schema from {previous} to {version}, and the schema is not {previous}';
    END IF;
END
$$;

-- name: script_end
INSERT INTO meta
VALUES ('schema_version', '{version}'),
       ('oldest', '{oldest}'),
       ('created', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text)
ON CONFLICT (key) DO UPDATE
   SET value = CASE meta.key
                    WHEN 'created' THEN meta.value
                    WHEN 'oldest' THEN greatest(meta.value::bigint, excluded.value::bigint)::text
                    ELSE excluded.value
                END;
COMMIT;
