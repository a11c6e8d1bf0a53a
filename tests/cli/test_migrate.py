"""`tenure migrate`: creates a storage, and may be repeated."""

import sqlite3
from contextlib import closing

import pytest

from tenure.storage.postgres.migration_files import SCHEMA as NEWEST
from tenure.storage.sqlite.database import SCHEMA
from tests.cli.terminal import Terminal
from tests.servers import client_of, command


def test_migrate_creates_a_database_and_does_nothing_the_second_time(there: Terminal) -> None:
    first, second = there.read("migrate", "up"), there.read("migrate", "up")

    assert first.keys() == {"url", "before", "after"}
    assert first["before"] == 0
    assert first["after"] >= 1
    assert second == {"url": there.url, "before": first["after"], "after": first["after"]}


def test_migrate_prints_what_it_did(there: Terminal) -> None:
    assert f"was brought from nothing to schema {SCHEMA}" in there.run("migrate", "up").stdout
    assert f"is at schema {SCHEMA}, nothing to do" in there.run("migrate", "up").stdout
    assert there.run("migrate", "up", "--quiet").stdout == ""


def test_a_users_database_gets_the_tables_and_keeps_its_rows(there: Terminal) -> None:
    path = there.place / "jobs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE job (title TEXT); INSERT INTO job VALUES ('nurse')")
    file = path.read_bytes()
    before = there.read("migrate", "status")
    unchanged = path.read_bytes() == file
    done, after = there.read("migrate", "up"), there.read("migrate", "status")
    with closing(sqlite3.connect(path)) as connection:
        titles = connection.execute("SELECT title FROM job").fetchall()

    assert unchanged
    assert (before["schema"], before["newest"]) == (0, SCHEMA)
    assert (done["before"], done["after"], after["schema"]) == (0, SCHEMA, SCHEMA)
    assert titles == [("nurse",)]


@pytest.mark.redis
def test_a_redis_has_its_schema_as_soon_as_it_is_opened(there: Terminal, redis_url: str) -> None:
    done = there.run("migrate", "up", env={"TENURE_URL": redis_url})

    assert done.exit_code == 0, done.output
    assert done.stdout == f"{redis_url} is at schema 3, nothing to do\n"
    assert "schema 3 in 1 partition" in there.run("doctor", env={"TENURE_URL": redis_url}).stdout


@pytest.mark.redis
def test_a_redis_of_another_schema_is_left_untouched(there: Terminal, redis_url: str) -> None:
    server, _, namespace = redis_url.partition("?namespace=")
    with client_of(server) as client:
        client.set(f"{{{namespace}}}:schema", "schema 7 in 1 partition")
        refused = there.refused("migrate", "up", env={"TENURE_URL": redis_url}, code=1)

        assert "holds jobs of schema 7 in 1 partition" in refused
        assert command(client, "KEYS", f"*{namespace}*") == [f"{{{namespace}}}:schema".encode()]


@pytest.mark.postgres
def test_a_postgres_gets_its_schema_once(there: Terminal, postgres_url: str) -> None:
    env: dict[str, str | None] = {"TENURE_URL": postgres_url}
    missing = there.refused("jobs", "list", env=env, code=1)
    first, second = there.run("migrate", "up", env=env), there.run("migrate", "up", env=env)

    assert "no schema yet" in missing
    assert f"was brought from nothing to schema {NEWEST}" in first.stdout
    assert f"is at schema {NEWEST}, nothing to do" in second.stdout
    assert there.run("jobs", "list", env=env).exit_code == 0


def test_status_of_a_file_creates_none_and_sql_has_nothing_to_print(there: Terminal) -> None:
    before = there.read("migrate", "status")
    absent = not (there.place / "jobs.db").exists()
    there.run("migrate", "up")

    assert (before["schema"], before["newest"], before["pending"], before["cut_off"]) == (0, SCHEMA, [], [])
    assert absent
    assert there.read("migrate", "status")["schema"] == SCHEMA
    assert "only PostgreSQL is changed by scripts" in there.refused("migrate", "sql")


@pytest.mark.redis
def test_status_of_a_redis(there: Terminal, redis_url: str) -> None:
    shown = there.run("migrate", "status", env={"TENURE_URL": redis_url}).stdout

    assert [line.split() for line in shown.splitlines()[1:]] == [
        *(["schema", "3"], ["newest", "3", "(this", "Tenure)"], ["features", "none"], ["pending", "none"])
    ]


@pytest.mark.postgres
def test_status_and_sql_of_a_postgres_change_nothing(there: Terminal, postgres_url: str) -> None:
    env: dict[str, str | None] = {"TENURE_URL": postgres_url}
    new, script = there.run("migrate", "status", env=env), there.run("migrate", "sql", env=env)
    again = there.run("migrate", "status", env=env)
    there.run("migrate", "up", env=env)
    done = there.run("migrate", "status", env=env)

    assert "schema    none yet" in new.stdout
    assert "pending   0001_jobs.sql: makes the first tables" in new.stdout
    assert again.stdout == new.stdout
    assert script.stdout.startswith("-- 0001_jobs.sql\nBEGIN;\n")
    assert script.stdout.endswith("COMMIT;\n")
    assert f"schema    {NEWEST}\n" in done.stdout
    assert "pending   none" in done.stdout
    assert "needs no migration" in there.run("migrate", "sql", env=env).stdout


@pytest.mark.parametrize("args", [("status",), ("up",), ("sql",)])
@pytest.mark.postgres
def test_a_postgres_that_cannot_be_reached_is_one_line(there: Terminal, args: tuple[str, ...]) -> None:
    env: dict[str, str | None] = {"TENURE_URL": "postgresql://x:secret@127.0.0.1:1/x"}

    refused = there.refused("migrate", *args, env=env, code=1)
    assert "cannot be reached" in refused
    assert "secret" not in refused
