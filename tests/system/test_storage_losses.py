"""A storage that lost everything, or was set back, under a real worker: an alarm, and work continues."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tenure import StorageReplaced, StorageRewound, Tenure, Timing
from tenure.core.events import Event, JobCompleted
from tenure.core.lifecycle import State
from tenure.ops.diagnosis import DiagnosisInput, diagnose
from tenure.storage.protocol import Query
from tests.postgres_servers import PostgresServer
from tests.sentinels import RedisSentinels
from tests.servers import RedisServer, until

pytestmark = pytest.mark.system

StartRedis = Callable[..., RedisServer]

PATIENCE = 30.0
TIMING = Timing(lease="4s", beat="500ms", sweep="500ms", grace="1s", leader_ttl="1s")


class Fleet:
    """One app with one worker, and the events that its handlers got."""

    def __init__(self, url: str, log: pytest.LogCaptureFixture) -> None:
        self.app = Tenure(url, name="losses", timing=TIMING)
        self.alarms: list[Event] = []
        self.completed: list[str] = []
        self._log = log

        @self.app.every("1h", name="hourly")
        async def hourly() -> None:
            pass

        @self.app.task
        async def work() -> None:
            pass

        self.work = work

        for kind in (StorageReplaced, StorageRewound):

            @self.app.on(kind)
            async def alarm(event: Event) -> None:
                self.alarms.append(event)

        @self.app.on(JobCompleted, scope="every")
        async def completed(event: JobCompleted) -> None:
            self.completed.append(event.id)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the worker; it has completed a job and renewed twice when the block begins."""
        with self._log.at_level(logging.INFO, "tenure"):
            async with self.app, self.app.worker():
                await self.do_a_job()
                await self.beaten(times=2)
                yield

    async def do_a_job(self) -> None:
        """Complete a job, and have its event handled."""
        job = await self.work.enqueue()
        await settled(lambda: self._is(job.id in self.completed), "the event of a job")

    async def beaten(self, *, times: int = 1) -> None:
        """Return when the worker has renewed this many times from now on."""
        for _ in range(times):
            began = (await self.app.storage.survey()).now

            async def later(began: int = began) -> bool:
                survey = await self.app.storage.survey()
                return any(survey.now - worker.seen_ago > began for worker in survey.workers)

            await settled(later, "a beat")

    async def alarmed(self, kind: type[Event]) -> None:
        """Return when the alarm has been raised; check that it is raised once, and that health and doctor report it."""
        await settled(lambda: self._is(bool(self.alarms)), "the alarm")
        await self.beaten(times=2)
        assert [type(event) for event in self.alarms] == [kind]
        level = logging.CRITICAL if kind is StorageReplaced else logging.WARNING
        [line] = [item for item in self.lines(level) if "partition * of the storage" in item]
        survey = await self.app.storage.survey()
        now = survey.now
        findings = diagnose(DiagnosisInput(survey=survey, asked_at=now, answered_at=now), TIMING)
        ready = await self._ask("/ready")
        health = await self.app.health(unprotected=True).health()
        words = "was replaced" if kind is StorageReplaced else "went back in time"
        assert words in line
        assert words in ready
        assert ready.startswith("yes")
        assert health.status == "degraded"
        assert words in health.complaints[0]
        assert [words in finding.message for finding in findings if finding.subject == "storage"] == [True]

    def lines(self, level: int) -> list[str]:
        """Return what was logged at this level."""
        return [record.getMessage() for record in self._log.records if record.levelno == level]

    async def quiet(self) -> None:
        """Check that no alarm was raised."""
        await self.beaten(times=3)
        assert not self.alarms
        assert not [message for message in self._log.messages if "of the storage" in message or "identity" in message]

    async def _ask(self, path: str) -> str:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "headers": []}
        await self.app.health(unprotected=True)(scope, receive, send)
        return str(sent[1]["body"].decode())

    async def _is(self, holds: bool) -> bool:
        return holds


async def settled(holds: Callable[[], Coroutine[Any, Any, bool]], what: str) -> None:
    """Wait until this holds; an unavailable storage is asked again."""
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(Exception):
            if await holds():
                return
        assert time.monotonic() < end, f"{what} not within {PATIENCE} s"
        await asyncio.sleep(0.02)


@pytest.fixture
def fleet(caplog: pytest.LogCaptureFixture) -> Callable[[str], Fleet]:
    return lambda url: Fleet(url, caplog)


async def test_an_emptied_server_is_an_alarm_and_work_continues(
    redis_server: RedisServer, fleet: Callable[[str], Fleet]
) -> None:
    here = fleet(redis_server.url)
    async with here.running():
        redis_server.command("FLUSHALL")
        await here.alarmed(StorageReplaced)
        await here.do_a_job()
        schedules = [schedule.name for schedule in (await here.app.storage.survey()).schedules]

    assert schedules == ["hourly"]


async def test_an_empty_restart_is_an_alarm(redis_server: RedisServer, fleet: Callable[[str], Fleet]) -> None:
    here = fleet(redis_server.url)
    async with here.running():
        await asyncio.to_thread(redis_server.restart, kill=True)
        await here.alarmed(StorageReplaced)
        await here.do_a_job()


async def test_a_restart_that_loses_nothing_raises_no_alarm(
    start_redis: StartRedis, fleet: Callable[[str], Fleet]
) -> None:
    server = start_redis(appendonly=True, appendfsync="always")
    here = fleet(server.url)
    async with here.running():
        await asyncio.to_thread(server.restart, kill=True)
        await here.do_a_job()
        await here.quiet()


async def test_a_failover_that_loses_nothing_raises_no_alarm(
    start_sentinels: Callable[..., RedisSentinels], fleet: Callable[[str], Fleet]
) -> None:
    sentinels = start_sentinels(replicas=1)
    here = fleet(sentinels.url)
    async with here.running():
        await asyncio.to_thread(sentinels.fail_over)
        await here.do_a_job()
        await here.quiet()


@pytest.mark.parametrize("kind", [StorageRewound, StorageReplaced], ids=["behind", "empty"])
async def test_a_failover_to_a_replica_that_lacks_writes_is_an_alarm(
    start_sentinels: Callable[..., RedisSentinels], fleet: Callable[[str], Fleet], kind: type[Event]
) -> None:
    sentinels = start_sentinels(replicas=1)
    here = fleet(sentinels.url)
    async with here.running():
        [replica] = sentinels.replicas
        master = sentinels.master
        # From now on its master refuses it, and it lacks all later writes.
        replica.command("CONFIG", "SET", "masterauth", "wrong")
        master.command("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: replica.command("ROLE")[3] != b"connected", "the replica to be cut off")
        if kind is StorageReplaced:
            replica.command("CONFIG", "SET", "replica-read-only", "no")
            replica.command("FLUSHALL")
        for _ in range(3):
            await here.do_a_job()
        await here.beaten()
        await asyncio.to_thread(sentinels.lose)
        await here.alarmed(kind)
        await here.do_a_job()


@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])
async def test_a_failover_of_postgres_is_an_alarm_if_it_loses_writes(
    postgres_server: PostgresServer, fleet: Callable[[str], Fleet], synchronous: bool
) -> None:
    standby = postgres_server.standby(synchronous=synchronous)
    # libpq finds the one of the two that accepts writes.
    here = fleet(postgres_server.url.replace(postgres_server.address, f"{postgres_server.address},{standby.address}"))
    async with here.running():
        if not synchronous:
            # It no longer receives what the primary acknowledges. A frozen one would find that in its socket later.
            await asyncio.to_thread(standby.stop)
        for _ in range(3):
            await here.do_a_job()
        await here.beaten()
        acknowledged = set(here.completed)
        await asyncio.to_thread(postgres_server.kill)
        if not synchronous:
            await asyncio.to_thread(standby.start)
        await asyncio.to_thread(standby.promote)
        if synchronous:
            await here.do_a_job()
            await here.quiet()
        else:
            await here.alarmed(StorageRewound)
            await here.do_a_job()
        jobs = {job.id: job.state for job in (await here.app.storage.find(Query())).jobs}

    assert acknowledged <= jobs.keys() if synchronous else acknowledged - jobs.keys()
    assert set(jobs.values()) <= {State.COMPLETED, State.DELAYED}


async def test_a_deleted_file_is_an_alarm_and_work_continues(tmp_path: Path, fleet: Callable[[str], Fleet]) -> None:
    path = tmp_path / "jobs.db"
    here = fleet(f"sqlite:///{path}")
    async with here.running():
        for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
            (tmp_path / name).unlink()
        await here.alarmed(StorageReplaced)
        await here.do_a_job()
        schedules = [schedule.name for schedule in (await here.app.storage.survey()).schedules]

    assert schedules == ["hourly"]


async def test_an_older_copy_of_the_file_is_an_alarm(tmp_path: Path, fleet: Callable[[str], Fleet]) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "copy.db"
    here = fleet(f"sqlite:///{path}")
    async with here.running():
        with sqlite3.connect(path) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        await here.do_a_job()
        await here.beaten()
        for name in ("jobs.db-wal", "jobs.db-shm"):
            (tmp_path / name).unlink()
        copy.replace(path)
        await here.alarmed(StorageRewound)
        await here.do_a_job()


async def test_a_start_and_another_url_are_no_alarm(tmp_path: Path, fleet: Callable[[str], Fleet]) -> None:
    for url in (f"sqlite:///{tmp_path / 'one.db'}", f"sqlite:///{tmp_path / 'two.db'}", "memory://"):
        here = fleet(url)
        async with here.running():
            await here.quiet()
