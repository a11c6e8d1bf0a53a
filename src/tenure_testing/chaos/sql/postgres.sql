-- What the faults of a PostgreSQL server do there.

-- name: terminate
-- Ends all connections of Tenure.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure';

-- name: has_amcheck
SELECT name FROM pg_available_extensions WHERE name = 'amcheck';

-- name: check_indexes
-- Compares each index of a schema with its table, and fails at the first one that is damaged.
SELECT bt_index_check(index.indexrelid, TRUE)
FROM pg_index AS index JOIN pg_class AS class ON class.oid = index.indexrelid JOIN pg_am ON pg_am.oid = class.relam
WHERE class.relnamespace = %s::regnamespace AND class.relkind = 'i' AND pg_am.amname = 'btree';

-- name: has_sabotage
SELECT proname FROM pg_proc WHERE proname = 'fail_now';

-- name: sabotage
-- Lets transactions fail as if others had conflicted with them: at a statement, or not before their commit.
CREATE FUNCTION public.fail_now() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF random() < 0.03 THEN
        RAISE EXCEPTION 'injected serialization failure' USING ERRCODE = '40001';
    ELSIF random() < 0.03 THEN
        RAISE EXCEPTION 'injected deadlock' USING ERRCODE = '40P01';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.fail_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF random() < 0.05 THEN
        RAISE EXCEPTION 'injected serialization failure at the commit' USING ERRCODE = '40001';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER fail_now AFTER INSERT OR UPDATE OR DELETE ON {schema}.job EXECUTE FUNCTION public.fail_now();
CREATE TRIGGER fail_now AFTER INSERT ON {schema}.event EXECUTE FUNCTION public.fail_now();
CREATE CONSTRAINT TRIGGER fail_at_commit AFTER INSERT ON {schema}.event DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION public.fail_at_commit();
