"""The PostgreSQL and PgBouncer of the tests start and fail on command, share no schema and leave nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from tests.postgres_servers import PgBouncer, PostgresServer, Schemas
from tests.servers import until
from tests.test_servers import outcome

ROOT = Path(__file__).parent.parent

Client = Callable[[str], psycopg.Connection[Any]]


# --- schemas ---------------------------------------------------------------------------------------


def connected(url: str) -> psycopg.Connection[Any]:
    """Connect as an app would, without the options that only Tenure knows."""
    return psycopg.connect(url.partition("?")[0], autocommit=True)


@pytest.fixture
def client() -> Iterator[Client]:
    """Return a function that connects; the connections are closed after the test."""
    with ExitStack() as connections:

        def connect(url: str) -> psycopg.Connection[Any]:
            return connections.enter_context(closing(connected(url)))

        yield connect


def schema_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][0]


def used(url: str) -> str:
    """Create the schema of an address with a table, and return its name."""
    schema = schema_of(url)
    with connected(url) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute(f"CREATE TABLE {schema}.job (id int)".encode())
    return schema


def present(url: str, names: list[str]) -> list[str]:
    with connected(url) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname = ANY(%s)", [names]).fetchall()
    return [name for (name,) in rows]


@pytest.mark.usefixtures("postgres_urls")
def test_only_the_schemas_of_the_session_are_dropped(postgres_schemas: Schemas) -> None:
    mine, others = Schemas(postgres_schemas.url), Schemas(postgres_schemas.url)
    dropped, kept, unused = used(mine.claim()), used(others.claim()), mine.claim()

    mine.clear()

    assert present(postgres_schemas.url, [dropped, kept, schema_of(unused)]) == [kept]

    others.clear()

    assert present(postgres_schemas.url, [kept]) == []


# --- a server --------------------------------------------------------------------------------------


def test_the_role_of_the_tests_is_not_a_superuser(postgres_server: PostgresServer) -> None:
    with connected(postgres_server.url) as connection:
        assert connection.execute("SHOW is_superuser").fetchone() == ("off",)
        assert connection.execute("SELECT current_user::text, 'a' < 'B'").fetchone() == ("tenure", True)
    with connected(postgres_server.create_database("other")) as connection:
        connection.execute("CREATE SCHEMA tenure")


def test_a_connection_over_tcp_needs_the_password(postgres_server: PostgresServer) -> None:
    address = urlsplit(postgres_server.url)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connected(f"postgresql://tenure:guessed@127.0.0.1:{address.port}/tenure")


def test_a_durable_server_writes_through_to_the_disk(start_postgres: Callable[..., PostgresServer]) -> None:
    for durable, expected in ((True, "on"), (False, "off")):
        server = start_postgres(durable=durable, work_mem="64kB")

        assert [server.execute(f"SHOW {name}") for name in ("fsync", "full_page_writes")] == [[(expected,)]] * 2
        assert server.execute("SHOW synchronous_commit") == [("on",)]
        assert server.execute("SHOW work_mem") == [("64kB",)]


def test_committed_rows_survive_each_way_to_end_the_server(postgres_server: PostgresServer) -> None:
    ways: list[Callable[[], None]] = [
        postgres_server.kill,
        lambda: postgres_server.stop("immediate"),
        lambda: postgres_server.stop("fast"),
        lambda: postgres_server.stop("smart"),
    ]
    postgres_server.execute("CREATE TABLE written (number int)")
    for number, end in enumerate(ways):
        before = postgres_server.address, postgres_server.pid
        postgres_server.execute("INSERT INTO written VALUES (%s)", [number])
        end()
        with pytest.raises(psycopg.OperationalError):
            connected(postgres_server.url)
        postgres_server.start()

        assert postgres_server.address == before[0]
        assert postgres_server.pid != before[1]

    assert postgres_server.execute("SELECT number FROM written ORDER BY 1") == [(0,), (1,), (2,), (3,)]


def test_a_smart_stop_waits_for_clients_and_a_fast_one_does_not(
    postgres_server: PostgresServer, client: Client
) -> None:
    one = client(postgres_server.url)
    stop = Thread(target=postgres_server.stop, args=["smart"])
    stop.start()

    def refused() -> bool:
        try:
            connected(postgres_server.url).close()
        except psycopg.OperationalError as error:
            return "shutting down" in str(error)
        return False

    until(refused, "the server to refuse connections")

    assert one.execute("SELECT 1").fetchone() == (1,)
    assert stop.is_alive()

    one.close()
    stop.join(20)
    postgres_server.start()
    two = client(postgres_server.url)
    postgres_server.stop("fast")

    with pytest.raises(psycopg.errors.AdminShutdown):
        two.execute("SELECT 1")


def test_a_frozen_server_keeps_connections_and_does_not_answer(postgres_server: PostgresServer) -> None:
    with connected(postgres_server.url) as client:
        postgres_server.freeze()
        answers: list[Any] = []
        asking = Thread(target=lambda: answers.append(client.execute("SELECT 1").fetchone()))
        asking.start()
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(postgres_server.url, connect_timeout=2)

        assert answers == []

        postgres_server.thaw()
        asking.join(20)

        assert answers == [(1,)]


def test_terminated_and_killed_backends_end_connections(postgres_server: PostgresServer, client: Client) -> None:
    several = [client(postgres_server.url) for _ in range(3)]

    assert sorted(postgres_server.backends()) == sorted(one.info.backend_pid for one in several)
    assert postgres_server.terminate_backends() == 3
    for one in several:
        with pytest.raises(psycopg.errors.AdminShutdown):
            one.execute("SELECT 1")

    # When one backend dies, the server ends the others, too, and recovers.
    first, second = client(postgres_server.url), client(postgres_server.url)
    os.kill(first.info.backend_pid, signal.SIGKILL)
    with pytest.raises(psycopg.OperationalError):
        until(lambda: second.execute("SELECT 1").rowcount != 1, "the end of the connection")
    until(postgres_server.answers, "the server to recover")


def test_settings_change_while_the_server_runs(postgres_server: PostgresServer) -> None:
    postgres_server.configure(deadlock_timeout="123ms", synchronous_commit="off")

    assert postgres_server.execute("SHOW deadlock_timeout") == [("123ms",)]
    assert postgres_server.execute("SHOW synchronous_commit") == [("off",)]

    postgres_server.restart()

    assert postgres_server.execute("SHOW deadlock_timeout") == [("123ms",)]


# --- a standby -------------------------------------------------------------------------------------


def test_a_promoted_standby_has_the_rows_of_its_primary(postgres_server: PostgresServer) -> None:
    standby = postgres_server.standby()
    postgres_server.execute("CREATE TABLE written AS SELECT 1 AS number")
    standby.wait_for(postgres_server)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        standby.execute("INSERT INTO written VALUES (2)")

    postgres_server.kill()
    standby.promote()
    standby.execute("INSERT INTO written VALUES (2)")

    with connected(standby.url) as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
    assert standby.execute("SELECT number FROM written ORDER BY 1") == [(1,), (2,)]


def test_a_commit_waits_for_a_synchronous_standby(postgres_server: PostgresServer) -> None:
    standby = postgres_server.standby(synchronous=True)
    postgres_server.execute("CREATE TABLE written (number int)")
    standby.freeze()
    commit = Thread(target=postgres_server.execute, args=["INSERT INTO written VALUES (1)"])
    commit.start()
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    until(lambda: postgres_server.execute(waits), "the commit to wait")

    standby.thaw()
    commit.join(20)

    # What was acknowledged is there after any fault of the primary.
    postgres_server.kill()
    standby.promote()

    assert standby.execute("SELECT number FROM written") == [(1,)]
    standby.execute("INSERT INTO written VALUES (2)")


# --- PgBouncer -------------------------------------------------------------------------------------


def test_pgbouncer_leads_to_the_same_database(pgbouncer_urls: Callable[[], str], postgres_schemas: Schemas) -> None:
    url = pgbouncer_urls()

    assert urlsplit(url).port != urlsplit(postgres_schemas.url).port

    schema = used(url)

    assert present(postgres_schemas.url, [schema]) == [schema]


def test_pgbouncer_shares_a_backend_between_transactions(
    postgres_server: PostgresServer, start_pgbouncer: Callable[..., PgBouncer]
) -> None:
    pgbouncer = start_pgbouncer(postgres_server.url, default_pool_size=1, query_wait_timeout=1)
    assert pgbouncer.command("SHOW VERSION")[0][0].startswith("PgBouncer")

    with connected(pgbouncer.url) as one, connected(pgbouncer.url) as two:
        [pids] = {tuple(client.execute("SELECT pg_backend_pid()").fetchall()) for client in (one, two)}
        assert postgres_server.backends() == [pids[0][0]]

        with one.transaction():
            one.execute("SELECT 1")
            with pytest.raises(psycopg.OperationalError, match="query_wait_timeout"):
                two.execute("SELECT 1")


def test_a_restarted_pgbouncer_leads_to_a_restarted_server(
    postgres_server: PostgresServer, start_pgbouncer: Callable[..., PgBouncer], client: Client
) -> None:
    pgbouncer = start_pgbouncer(postgres_server.url)
    url = pgbouncer.url
    for end in (pgbouncer.kill, pgbouncer.stop):
        before = client(url)
        end()
        with pytest.raises(psycopg.OperationalError):
            before.execute("SELECT 1")
        postgres_server.restart("immediate")
        pgbouncer.start()

        assert pgbouncer.url == url
        assert client(url).execute("SELECT 1").fetchone() == (1,)


# --- what is left behind ---------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
from tests.postgres_servers import PgBouncer, PostgresServer

server = PostgresServer(Path(sys.argv[1]))
server.start()
standby = server.standby()
standby.freeze()
pgbouncer = PgBouncer(Path(sys.argv[1]), server.url)
pgbouncer.start()
print(server.folder.parent, *server.pids, *standby.pids, *pgbouncer.pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("start_postgres", "start_pgbouncer")
@pytest.mark.parametrize("killed", [True, False])
def test_servers_and_files_do_not_outlive_a_test_run(tmp_path: Path, killed: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        folder, *pids = child.stdout.readline().split()
        assert Path(folder).is_dir()
        assert len(pids) > 10

        if killed:
            child.kill()
        else:
            child.stdin.close()

        until(lambda: not Path(folder).exists(), "the end of the folder")
        until(lambda: not any(lives(int(pid)) for pid in pids), "the end of the processes")


def lives(pid: int) -> bool:
    """Return True if there is such a process and it is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("killed", [True, False])
def test_a_discarded_server_leaves_no_shared_memory(postgres_server: PostgresServer, killed: bool) -> None:
    key, segment = (postgres_server.data / "postmaster.pid").read_text().split("\n")[6].split()
    assert (key, segment) in segments()
    if killed:
        postgres_server.kill()
        assert (key, segment) in segments()

    postgres_server.discard()

    assert not postgres_server.folder.exists()
    assert (key, segment) not in segments()


def segments() -> list[tuple[str, str]]:
    """Return key and id of all System V shared memory of this machine."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [(line.split()[0], line.split()[1]) for line in lines]


def test_servers_do_not_run_as_root(postgres_server: PostgresServer, start_pgbouncer: Callable[..., PgBouncer]) -> None:
    for pid in (postgres_server.pid, start_pgbouncer(postgres_server.url).pid):
        assert Path(f"/proc/{pid}").stat().st_uid != 0


# --- without servers -------------------------------------------------------------------------------

SOME = "schemas_of_the_session or needs_the_password or pgbouncer_leads_to_the_same"


@pytest.mark.system
def test_a_run_without_a_usable_postgres_reports_skips_and_the_remedy(tmp_path: Path) -> None:
    old = tmp_path / "postgres"
    old.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 12.22'\n")
    old.chmod(0o755)

    said = outcome(path=f"{tmp_path}:{os.environ['PATH']}", chosen=SOME, of=__file__)

    assert "3 skipped" in said
    assert "NOT TESTED" in said
    assert f"1 skipped: {old} is too old: 12.22, not 13\n" in said
    assert f"2 skipped: {old} is too old: 12.22, not 13 and TENURE_TEST_POSTGRES_URL is not set\n" in said
    assert "make servers" in said


@pytest.mark.system
def test_a_server_that_runs_already_is_shared(postgres_server: PostgresServer, tmp_path: Path) -> None:
    said = outcome(
        path=os.environ["PATH"],
        chosen="schemas_of_the_session or pgbouncer_leads_to_the_same",
        of=__file__,
        TENURE_TEST_POSTGRES_URL=postgres_server.url,
    )

    assert "2 passed" in said
    assert "the server of TENURE_TEST_POSTGRES_URL" in said
    assert str(urlsplit(postgres_server.url).password) not in said
    assert postgres_server.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'test%'") == []
