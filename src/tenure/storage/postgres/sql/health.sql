-- health: what `tenure doctor` looks at, besides the schema itself.

-- name: settings
-- Returns the server's version and the settings that decide whether a commit survives, as this role gets them.
SELECT current_setting('server_version_num')::integer,
       current_setting('fsync'),
       current_setting('full_page_writes'),
       current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'),
       current_setting('autovacuum'),
       current_setting('track_counts');

-- name: tables
-- Returns for each table its name, its settings, how many rows it has, and how many dead ones, by the server's estimates.
-- A partitioned table has no rows of its own, and is left out.
SELECT class.relname::text,
       coalesce(array_to_string(class.reloptions, ','), ''),
       coalesce(pg_stat_get_live_tuples(class.oid), 0),
       coalesce(pg_stat_get_dead_tuples(class.oid), 0)
  FROM pg_class AS class
 WHERE class.relnamespace = to_regnamespace(:schema)
   AND class.relkind = 'r'
 ORDER BY class.relname;

-- name: snapshots
-- Returns what keeps vacuum from removing dead rows, the oldest first: what it is, how many seconds old, how many
-- transactions old, and a description. `least`: younger ones, in seconds, are left out. A replication slot has no age in
-- seconds.
SELECT 'session', extract(epoch FROM clock_timestamp() - xact_start)::bigint AS seconds,
       age(coalesce(backend_xmin, backend_xid))::bigint AS behind,
       format('process %s of the server (role %s, %s, %s) since %s UTC', pid, usename,
              coalesce(nullif(application_name, ''), 'without a name'), state,
              to_char(xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))
  FROM pg_stat_activity
 WHERE pid <> pg_backend_pid()
   AND coalesce(backend_xmin, backend_xid) IS NOT NULL
   AND backend_type <> 'autovacuum worker'
   AND xact_start < clock_timestamp() - make_interval(secs => :least)
 UNION ALL
SELECT 'prepared', extract(epoch FROM clock_timestamp() - prepared)::bigint, age(transaction)::bigint,
       format('prepared transaction %L of role %s in database %s since %s UTC', gid, owner, database,
              to_char(prepared AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))
  FROM pg_prepared_xacts
 WHERE prepared < clock_timestamp() - make_interval(secs => :least)
 UNION ALL
SELECT 'slot', NULL, greatest(age(xmin), age(catalog_xmin))::bigint,
       format('replication slot %L, which no process reads', slot_name)
  FROM pg_replication_slots
 WHERE NOT active
   AND coalesce(xmin, catalog_xmin) IS NOT NULL
 ORDER BY 3 DESC;

-- name: hidden
-- Returns how many sessions of other roles this role cannot look into.
SELECT count(*) FROM pg_stat_activity WHERE query = '<insufficient privilege>' AND datid IS NOT NULL;

-- name: connections
-- Returns how many connections clients have and may have, how many this role may have (-1: no limit of its own), how many
-- this database may have (-1 likewise), and how many live workers there are.
-- `lasting`: a worker without a beat for this number of microseconds does not live.
SELECT (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL),
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
       (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
       (SELECT count(*)
          FROM worker
         WHERE died = 0
           AND seen_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - :lasting::bigint);

-- name: refused
-- Returns how many calls of users' transactions no job could be made of, why, as the first of them says, and how many wait
-- for a program that knows a higher number than `format`.
SELECT count(*), (SELECT refused FROM intake WHERE refused IS NOT NULL ORDER BY seq LIMIT 1),
       (SELECT count(*) FROM intake WHERE refused IS NULL AND format > :format)
  FROM intake
 WHERE refused IS NOT NULL;

-- name: grants
-- Returns for each listed privilege its table or sequence, its kind, and whether this role has it, if only on a column.
-- `privileges`: a JSON list of pairs.
SELECT listed.value ->> 0, listed.value ->> 1,
       CASE WHEN class.relkind = 'S' THEN has_sequence_privilege(class.oid, listed.value ->> 1)
            WHEN listed.value ->> 1 = 'DELETE' THEN has_table_privilege(class.oid, 'DELETE')
            ELSE has_any_column_privilege(class.oid, listed.value ->> 1)
        END
  FROM jsonb_array_elements(:privileges::jsonb) AS listed (value)
  JOIN pg_class AS class
    ON class.relname = listed.value ->> 0
   AND class.relnamespace = to_regnamespace(:schema);

-- name: usage
-- Returns whether this role may use the schema; NULL if it does not exist.
SELECT has_schema_privilege(to_regnamespace(:schema), 'USAGE');

-- name: role
-- Returns the name of this role, and whether it owns the tables or has the rights of their owner.
SELECT current_user::text, pg_has_role(relowner, 'USAGE')
  FROM pg_class
 WHERE relname = 'job_live'
   AND relnamespace = to_regnamespace(:schema);
