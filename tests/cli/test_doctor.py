"""`tenure doctor`: what it finds, how it exits, and that it changes nothing."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import pytest

from tenure.core.job import Owner
from tenure.storage.protocol import ClaimRequest
from tests.cli.terminal import Terminal
from tests.servers import RedisServer, client_of

pytestmark = pytest.mark.thorough

APP = """
import asyncio
from tenure import Tenure

app = Tenure()

@app.task(name="add", timeout="5s")
async def add(a: int, b: int) -> int:
    return a + b

@app.task(name="hang")
async def hang() -> None:
    await asyncio.sleep(60)
"""
OF_SQLITE = {"sqlite", "durability", "schema", "file system", "disk", "journal", "log", "lock file"}
OF_REDIS = {"schema", "server", "persistence", "replication", "memory", "scripts", "notifications"}
OF_POSTGRES = {"postgres", "schema", "durability", "autovacuum", "dead rows", "snapshot", "connections", "role"}
OF_ALL = {"reachability", "clock", "reaper", "leases", "workers", "queues", "parked", "tasks"}


@pytest.fixture
def tasks(there: Terminal) -> Terminal:
    there.write("tasks.py", APP)
    return there


def subjects(seen: dict[str, Any], *levels: str) -> set[str]:
    return {finding["subject"] for finding in seen["findings"] if finding["level"] in levels}


def until(terminal: Terminal, condition: str, value: object, *, within: float = 20) -> None:
    """Wait until a survey shows this of the queue `default`."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        (queue,) = terminal.read("info")["queues"]
        if queue["counts"][condition] == value:
            return
        time.sleep(0.05)
    raise AssertionError(f"never {value} {condition}")


def test_a_healthy_storage_lists_its_checks_and_exits_with_0(tasks: Terminal) -> None:
    tasks.enqueue("add", 1, 2, work=True)
    seen = tasks.read("doctor")

    assert seen.keys() == {"url", "status", "findings"}
    assert (seen["url"], seen["status"]) == (tasks.url, "ok")
    assert subjects(seen, "ok") == OF_SQLITE | OF_ALL
    assert all(finding.keys() == {"level", "subject", "message", "remedy"} for finding in seen["findings"])
    assert tasks.run("doctor", "--quiet").stdout == ""
    assert tasks.run("doctor").stdout.splitlines()[-1] == f"{tasks.url}: 0 errors, 0 warnings"


def test_deep_reads_all_that_is_kept(tasks: Terminal) -> None:
    tasks.enqueue("add", 1, 2)
    with closing(sqlite3.connect(tasks.place / "jobs.db")) as connection, connection:
        connection.execute("UPDATE tenure_tally SET jobs = jobs + 1 WHERE state = 'completed' OR state = 'waiting'")
    shallow, deep = (subjects(tasks.read("doctor", *flag, code=3), "ok", "error") for flag in ((), ("--deep",)))

    assert deep - shallow == {"integrity", "counters", "repairs"}
    assert "counters" in subjects(tasks.read("doctor", "--deep", code=3), "error")


def test_a_task_without_a_timeout_is_a_warning_that_strict_makes_count(tasks: Terminal) -> None:
    tasks.enqueue("add", 1, 2, work=True)
    seen = tasks.read("doctor", "tasks:app")
    (warning,) = [finding for finding in seen["findings"] if finding["level"] == "warning"]

    assert seen["status"] == "warning"
    assert warning["message"].startswith("1 task with neither timeout nor heartbeat_timeout: hang;")
    assert tasks.run("doctor", "tasks:app").exit_code == 0
    assert tasks.run("doctor", "tasks:app", "--strict").exit_code == 3
    assert tasks.run("--app", "tasks:app", "doctor", "--strict").exit_code == 3
    assert tasks.run("doctor", "--strict").exit_code == 0


def test_jobs_without_a_worker_are_an_error_with_a_remedy_and_exit_3(tasks: Terminal) -> None:
    tasks.enqueue("elsewhere")
    plain = tasks.run("doctor", "tasks:app", "--quiet")

    assert plain.exit_code == 3
    lines = plain.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("error"))
    assert "1 job waits in queue 'elsewhere'" in lines[place]
    assert lines[place + 1].strip() == "remedy: start a worker: tenure worker module:app -q elsewhere"
    assert any("has no such task" in line for line in lines)


@pytest.mark.parametrize(
    "damage",
    ["nothing", "another's", "newer", "garbage"],
)
def test_a_missing_or_refusing_storage_is_a_finding_and_unchanged(there: Terminal, damage: str) -> None:
    path = there.place / "jobs.db"
    match damage:
        case "another's":
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("CREATE TABLE tenure_meta (x)")
        case "newer":
            there.enqueue("add", 1, 2)
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("UPDATE tenure_meta SET value = 999 WHERE key = 'schema_version'")
        case "garbage":
            path.write_bytes(b"not a database file" * 1000)
        case _:
            pass
    before = {file.name for file in there.place.iterdir()}
    seen = there.read("doctor", code=1)

    (finding,) = seen["findings"]
    assert (seen["status"], finding["level"]) == ("error", "error")
    assert finding["subject"] == ("storage" if damage == "nothing" else "schema")
    assert finding["remedy"]
    assert {file.name for file in there.place.iterdir()} == before
    assert there.run("doctor", "--deep").exit_code == 1


def test_arguments_that_name_no_storage_are_refused(tasks: Terminal) -> None:
    assert "a memory storage belongs to one process" in tasks.refused("doctor", "--url", "memory://")
    assert "give either --url or the app" in tasks.refused("doctor", "tasks:app", "--url", tasks.url)
    assert "does not exist; run this in" in tasks.refused("doctor", "nope:app")


@contextlib.contextmanager
def started(terminal: Terminal, *args: str) -> "Generator[subprocess.Popen[str]]":
    with terminal.start(*args) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_active_job_without_a_reaper_is_an_error(tasks: Terminal) -> None:
    app = tasks.app()
    tasks.enqueue("add", 1, 2, app=app)

    async def claim() -> None:
        async with app:
            await app.storage.exchange(Owner("one", "one", "host", 7), (), ClaimRequest(("default",), 1))

    asyncio.run(claim())
    seen = tasks.read("doctor", code=3)

    assert subjects(seen, "error") == {"reaper"}


@pytest.mark.system
def test_the_doctor_distinguishes_live_workers_and_orphaned_jobs(tasks: Terminal) -> None:
    tasks.enqueue("hang")
    with started(tasks, "worker", "tasks:app", "--no-reaper") as worker:
        until(tasks, "active", 1)
        with started(tasks, "reaper"):
            while not tasks.read("info")["leaders"]:
                time.sleep(0.05)
            swept = tasks.read("doctor")
            worker.kill()
            until(tasks, "waiting", 1)
            left = tasks.read("doctor", code=3)

    assert swept["status"] == "ok"
    assert subjects(left, "error") == {"queues"}


def seen_at_work(tasks: Terminal, url: str) -> dict[str, Any]:
    """Return the doctor's findings on a storage with a worker that runs and sweeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENURE_URL", url)
        patch.setattr(tasks, "url", url)
        # A partition of a Cluster that was never used has no leader.
        tasks.enqueue("add", 1, 2)
        with started(tasks, "worker", "tasks:app"):
            deadline = time.monotonic() + 30
            while not tasks.read("info")["leaders"]:
                assert time.monotonic() < deadline, "no reaper leads"
                time.sleep(0.05)
            seen: dict[str, Any] = tasks.read("doctor", "tasks:app")
    return seen


@pytest.mark.system
def test_the_doctor_examines_a_redis_as_any_storage(tasks: Terminal, redis_url: str) -> None:
    seen = seen_at_work(tasks, redis_url)

    assert subjects(seen, "ok", "warning") >= OF_ALL | OF_REDIS
    assert subjects(seen, "error") == set()


@pytest.mark.system
@pytest.mark.postgres
def test_the_doctor_examines_a_postgres_as_any_storage(tasks: Terminal, postgres_url: str) -> None:
    seen = seen_at_work(tasks, postgres_url)

    assert subjects(seen, "ok", "warning") >= OF_ALL | OF_POSTGRES
    assert subjects(seen, "error") == set()


@pytest.mark.system
def test_deep_reports_the_repairs_of_sweeps_on_redis(tasks: Terminal, redis_server: RedisServer) -> None:
    url = redis_server.url
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENURE_URL", url)
        patch.setattr(tasks, "url", url)
        tasks.enqueue("add", 1, 2)
        sound = tasks.read("doctor", "--deep", code=3)
        with client_of(url) as client:
            assert client.zadd("{tenure}:ready:default", {"missing": 1}) == 1
        with started(tasks, "reaper"):
            while not tasks.read("events", "--kind", "repaired")["events"]:
                time.sleep(0.05)
        seen, shallow = tasks.read("doctor", "--deep", code=3), tasks.read("doctor", code=3)
    (finding,) = [finding for finding in seen["findings"] if finding["subject"] == "repairs"]

    assert "repairs" in subjects(sound, "ok")
    assert finding["level"] == "warning"
    assert "repaired inconsistent records once among" in finding["message"]
    assert "missing in queue 'default': in ready:default without a record; taken out" in finding["message"]
    assert "report it" in finding["remedy"]
    assert "repairs" not in subjects(shallow, "ok", "warning", "error")


@pytest.mark.system
def test_the_doctor_examines_each_server_of_a_cluster(tasks: Terminal, cluster_url: str) -> None:
    seen = seen_at_work(tasks, cluster_url)
    servers = [finding for finding in seen["findings"] if finding["subject"] == "server"]

    assert subjects(seen, "ok", "warning") >= OF_ALL | OF_REDIS | {"cluster"}
    assert subjects(seen, "error") == set()
    assert len(servers) >= 3


@pytest.mark.system
def test_a_redis_that_is_gone_or_hangs_is_a_finding_with_a_remedy(tasks: Terminal, redis_server: RedisServer) -> None:
    redis_server.freeze()
    hung = tasks.ended("doctor", "--url", redis_server.url, "-o", "json")
    redis_server.thaw()
    redis_server.kill()
    gone = tasks.ended("doctor", "--url", redis_server.url, "-o", "json")

    for done in (hung, gone):
        assert (done.returncode, done.stderr) == (1, "")
        seen = json.loads(done.stdout)
        (finding,) = seen["findings"]
        assert (finding["level"], finding["subject"]) == ("error", "reachability")
        assert finding["remedy"]


@pytest.mark.system
def test_a_redis_that_would_lose_jobs_is_refused_with_the_remedy(
    tasks: Terminal, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(maxmemory_policy="allkeys-lru")
    seen = tasks.read("doctor", "--url", server.url, code=1)

    assert subjects(seen, "error") == {"server"}
    assert OF_REDIS - {"server", "schema"} <= subjects(seen, "ok", "warning")
    (refusal,) = [finding for finding in seen["findings"] if finding["level"] == "error"]
    assert refusal["remedy"].startswith("set it to noeviction")
