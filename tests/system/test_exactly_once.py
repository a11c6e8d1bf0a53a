"""Overlapping runs of each job write a row in the transaction that completes it: there is one row for each job.

The workers are real processes, killed and paused at random. Meanwhile this test takes the jobs from workers that still
run them, as a reaper does that wrongly believes them dead.
"""

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tenure import State
from tenure.core.job import Owner, Ref
from tenure.core.outcome import Stalled
from tenure.core.settlement import settlement
from tenure.storage.protocol import Query, Storage
from tests.amounts import FULL
from tests.system.exactly_once_worker import build

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(580)]

JOBS = 1_000 if FULL else 100
WAVE = 50
WORKERS = 3
SCRIPT = Path(__file__).with_name("exactly_once_worker.py")
UNFINISHED = (State.WAITING, State.DELAYED, State.ACTIVE)


class WorkerProcesses:
    """Worker processes, some of which are killed or paused from time to time."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._processes = [self._start() for _ in range(WORKERS)]
        self.killed = self.paused = 0

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), *self._arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    async def disturb(self, rng: Random) -> None:
        """Kill or pause one process after another, until cancelled."""
        while True:
            await asyncio.sleep(0.4 + rng.random())
            number = rng.randrange(WORKERS)
            process = self._processes[number]
            if rng.random() < 0.4:
                process.kill()
                process.wait()
                self._processes[number] = self._start()
                self.killed += 1
                continue
            process.send_signal(signal.SIGSTOP)
            self.paused += 1
            try:
                await asyncio.sleep(rng.random() * 1.5)
            finally:
                process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


async def take_jobs(storage: Storage, me: Owner, rng: Random) -> None:
    """Take the jobs of all workers again and again, and put them back, as if the workers were dead."""
    while True:
        await asyncio.sleep(0.2 + rng.random())
        active = (await storage.find(Query(states=(State.ACTIVE,), limit=500))).jobs
        for dead in {job.owner for job in active} - {me.id, None}:
            taken = await storage.reclaim(str(dead), me)
            back = [settlement(one.lease, Stalled(one.reason, owner=one.owner), rng) for one in taken.stalled]
            await storage.exchange(me, back)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'queue.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@contextlib.contextmanager
def connected(url: str) -> Generator[Any]:
    """Connect to the database of a queue, without the storage."""
    if urlsplit(url).scheme == "sqlite":
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
    else:
        connection = psycopg.connect(url.partition("?")[0], autocommit=True)
        connection.execute(f'SET search_path TO "{url.partition("schema=")[2]}"')
    with contextlib.closing(connection):
        yield connection


async def test_overlapping_runs_write_one_row_for_each_job(url: str, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    schema = url.partition("schema=")[2]
    insert = f'INSERT INTO "{schema}".charge VALUES (%s, %s)' if schema else "INSERT INTO charge VALUES (?, ?)"
    app, tasks = build(url, insert, tmp_path)
    await app.storage.open()
    with connected(url) as connection:
        connection.execute("CREATE TABLE charge (job text, run bigint)")
    rng = Random(18)
    fleet = WorkerProcesses(url, insert, str(tmp_path))
    refs: list[Ref] = []
    try:
        async with asyncio.TaskGroup() as group:
            faults = [
                group.create_task(fleet.disturb(rng)),
                group.create_task(take_jobs(app.storage, app.runtime().owner("reaper"), rng)),
            ]
            for first in range(0, JOBS, WAVE):
                numbers = range(first, first + WAVE)
                wave = [(await tasks[number % len(tasks)].enqueue()).ref for number in numbers]
                # Other processes work on them.
                while (await app.storage.find(Query(states=UNFINISHED, limit=1))).jobs:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                refs += wave
            for fault in faults:
                fault.cancel()
    finally:
        fleet.end()

    details = [detail for detail in await app.storage.get(refs) if detail is not None]
    await app.storage.close()
    with connected(url) as connection:
        rows = connection.execute("SELECT job, run FROM charge").fetchall()
    notes = {kind: (tmp_path / kind).read_text().splitlines() for kind in ("refused", "committed")}
    starts = [detail.job.starts for detail in details]

    assert Counter(str(job) for job, _ in rows) == Counter(ref.id for ref in refs)
    assert {detail.job.state for detail in details} == {State.COMPLETED}
    # The row is that of the run which completed the job.
    ended = {(detail.job.id, run.number) for detail in details for run in detail.runs if run.ended == "completed"}
    assert ended == {(str(job), run) for job, run in rows}
    # The test shows something only if the runs did overlap.
    assert min(starts) >= 2
    assert len(notes["refused"]) >= JOBS // 50
    assert fleet.killed
    assert fleet.paused
    print(
        f"{JOBS} jobs, {sum(starts)} runs, {len(notes['refused'])} transactions refused, "
        f"{fleet.killed} workers killed, {fleet.paused} paused"
    )
