-- session: settings and state of a connection, and the begin and end of transactions.

-- name: encoding
PRAGMA encoding;

-- name: tables
SELECT count(*) FROM sqlite_schema;

-- name: names
-- The names like ours that the file has. Two names cannot differ by upper and lower case alone.
SELECT lower(name) FROM sqlite_schema WHERE name LIKE 'tenure%' AND type <> 'trigger';

-- name: meta_columns
SELECT group_concat(name) FROM pragma_table_info('tenure_meta');

-- name: vacuum
-- Takes effect only before the first table exists.
PRAGMA auto_vacuum = INCREMENTAL;

-- name: wal
PRAGMA journal_mode = WAL;

-- name: full
PRAGMA synchronous = FULL;

-- name: fast
PRAGMA synchronous = NORMAL;

-- name: fullfsync
PRAGMA fullfsync = ON;

-- name: no_checkpoint
-- Checkpoints are explicit, under the writers' lock (checkpoint.py).
PRAGMA wal_autocheckpoint = 0;

-- name: busy_timeout
PRAGMA busy_timeout = 5000;

-- name: no_busy_timeout
PRAGMA busy_timeout = 0;

-- name: wal_limit
PRAGMA journal_size_limit = 67108864;

-- name: temp_in_memory
PRAGMA temp_store = MEMORY;

-- name: cache
PRAGMA cache_size = -32768;

-- name: read_only
PRAGMA query_only = ON;

-- name: journal
PRAGMA journal_mode;

-- name: integrity
-- Also checks the indexes against their tables: a job that is missing from an index is never claimed.
PRAGMA integrity_check(1);

-- name: data_version
PRAGMA data_version;

-- name: checkpoint
PRAGMA wal_checkpoint(PASSIVE);

-- name: empty_log
-- Copies the whole log into the file and empties it. Returns 1 first if a reader prevents this, else 0.
PRAGMA wal_checkpoint(TRUNCATE);

-- name: write
BEGIN IMMEDIATE;

-- name: read
BEGIN;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: savepoint
SAVEPOINT step;

-- name: release_savepoint
RELEASE step;

-- name: rollback_to_savepoint
ROLLBACK TO step;

-- name: version
SELECT value FROM tenure_meta WHERE key = 'schema_version';

-- name: created
INSERT INTO tenure_meta VALUES ('schema_version', :version), ('created', :now);

-- name: files
PRAGMA database_list;

-- name: lock
-- Takes the write lock in a transaction that was begun without it.
UPDATE tenure_meta SET value = value WHERE key = 'proto';
