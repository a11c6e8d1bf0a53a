"""Transactions that complete their job: on PostgreSQL and SQLite, in coroutines, plain functions and own processes."""

import asyncio
import importlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tenure import (
    Cancel,
    LeaseLost,
    LeaseLostError,
    Retry,
    State,
    Tenure,
    Timing,
    UsageError,
    current_job,
)
from tenure.client.handle import Job
from tenure.core.settlement import Settlement
from tenure.storage.postgres.job_transaction import PostgresJobTransaction
from tenure.storage.protocol import EventPage, RenewRequest, SettleVerdict
from tenure.storage.sqlite.job_transaction import SQLiteJobTransaction
from tests.records import record_of

pytestmark = pytest.mark.thorough

CREATE = "CREATE TABLE IF NOT EXISTS charge (job text, run bigint)"
INSERT = {"postgresql": "INSERT INTO {schema}charge VALUES (%s, %s)", "sqlite": "INSERT INTO charge VALUES (?, ?)"}
ONCE = Retry(max_attempts=1)
SOON = Retry(max_attempts=3, base="10ms", jitter=False)


class Place:
    """A database with a queue and a table of the handlers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kind = urlsplit(url).scheme
        self.schema = url.partition("schema=")[2]
        self.insert = INSERT[self.kind].format(schema=f'"{self.schema}".' if self.schema else "")

    async def create(self) -> None:
        app = Tenure(self.url)
        await app.storage.open()
        await app.storage.close()
        with self.connect() as connection:
            connection.execute(CREATE)

    def connect(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        connection = psycopg.connect(self.url.partition("?")[0], autocommit=True)
        connection.execute(f'SET search_path TO "{self.schema}"'.encode())
        return connection

    @property
    def rows(self) -> list[tuple[str, int]]:
        connection = self.connect()
        try:
            return [(row[0], row[1]) for row in connection.execute("SELECT job, run FROM charge ORDER BY job, run")]
        finally:
            connection.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    url = f"sqlite:///{tmp_path / 'queue.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    place = Place(url)
    await place.create()
    return place


@asynccontextmanager
async def working(app: Tenure, **options: Any) -> AsyncGenerator[None]:
    worker = app.worker(**options)
    await worker.start()
    try:
        yield
    finally:
        await worker.stop()
        await app.storage.close()


async def write(place: Place, tx: Any) -> None:
    """Write the row of the current job, in a coroutine."""
    job = current_job()
    written = tx.connection.execute(place.insert, (job.id, job.run))
    if asyncio.iscoroutine(written):
        await written


def write_plainly(place: Place, tx: Any) -> None:
    job = current_job()
    tx.connection.execute(place.insert, (job.id, job.run))


async def events_of(app: Tenure, job: Job[Any]) -> list[str]:
    page: EventPage = await app.storage.events(ref=job.ref)
    return [type(event).__name__ for event in page.events]


async def test_writes_and_completion_are_one_commit(place: Place) -> None:
    app = Tenure(place.url)

    @app.task(retry=ONCE)
    async def charge() -> int:
        async with current_job().transaction() as tx:
            await write(place, tx)
            tx.complete(7)
            assert place.rows == []
        assert len(place.rows) == 1
        return 0

    async with working(app):
        job = await charge.enqueue()
        assert await job.result(timeout=30) == 7
        assert await events_of(app, job) == ["JobCompleted"]
    assert place.rows == [(job.id, 1)]


async def test_a_plain_function_uses_with(place: Place) -> None:
    app = Tenure(place.url)

    @app.task(retry=ONCE)
    def charge() -> int | None:
        with current_job().transaction() as tx:
            write_plainly(place, tx)
        return None

    async with working(app):
        job = await charge.enqueue()
        assert await job.result(timeout=30) is None
    assert place.rows == [(job.id, 1)]


async def test_an_exception_rolls_back_and_counts_as_usual(place: Place) -> None:
    app = Tenure(place.url)

    @app.task(retry=SOON)
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
            if current_job().run < 3:
                raise ValueError("not yet")

    async with working(app):
        job = await charge.enqueue()
        await job.result(timeout=30)
        assert await events_of(app, job) == ["JobRetried", "JobRetried", "JobCompleted"]
    assert place.rows == [(job.id, 3)]


async def test_what_follows_the_block_cannot_fail_the_run(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    app = Tenure(place.url)

    @app.task(retry=SOON)
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
        raise ValueError("the mail server is down")

    async with working(app):
        job = await charge.enqueue()
        await job.result(timeout=30)
        await asyncio.sleep(0)
        record = await record_of(job)
    assert (record.state, record.starts, record.failures) == (State.COMPLETED, 1, 0)
    assert place.rows == [(job.id, 1)]
    assert "is completed, but the code after its transaction failed: ValueError" in caplog.text


async def test_a_value_returned_after_the_block_is_ignored_and_logged(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    app = Tenure(place.url)

    @app.task
    def charge() -> int | None:
        with current_job().transaction():
            pass
        return 3

    async with working(app):
        assert await (await charge.enqueue()).result(timeout=30) is None
    assert "give the result to tx.complete()" in caplog.text


async def test_log_lines_and_progress_before_the_commit_are_kept(place: Place) -> None:
    app = Tenure(place.url)

    @app.task
    async def charge() -> None:
        async with current_job().transaction():
            current_job().log.info("charged")
            current_job().progress(5, "done")

    async with working(app):
        job = await charge.enqueue()
        await job.result(timeout=30)
        (detail,) = await app.storage.get([job.ref])
    assert detail is not None
    assert [line.message for line in detail.log] == ["charged"]
    assert detail.job.progress == 5


async def test_a_run_that_lost_its_job_rolls_back(place: Place) -> None:
    app = Tenure(place.url)
    entered, go_on, errors = asyncio.Event(), asyncio.Event(), list[type[BaseException]]()

    @app.task(retry=SOON)
    async def charge() -> None:
        if current_job().run > 1:
            return
        try:
            entered.set()
            await go_on.wait()
            async with current_job().transaction() as tx:
                await write(place, tx)
        except BaseException as error:
            errors.append(type(error))
            raise

    async with working(app):
        job = await charge.enqueue()
        await entered.wait()
        record = await record_of(job)
        # Another process declares this one dead, and reclaims its jobs.
        other = Tenure(place.url)
        taken = await other.storage.reclaim(record.owner or "", app.runtime().owner("reaper"))
        assert [stalled.lease.ref for stalled in taken.stalled] == [job.ref]
        go_on.set()
        while not errors:  # noqa: ASYNC110 - the handler runs meanwhile
            await asyncio.sleep(0.01)
        await other.storage.close()
    # If a beat comes in between, the worker learns of it first, and cancels the run.
    assert errors in ([LeaseLostError], [asyncio.CancelledError])
    assert place.rows == []


@pytest.mark.parametrize("plain", [False, True])
async def test_a_finished_run_has_no_second_transaction(place: Place, plain: bool) -> None:
    app = Tenure(place.url)
    errors: list[UsageError] = []

    def again() -> None:
        try:
            current_job().transaction()
        except UsageError as error:
            errors.append(error)

    @app.task
    async def on_loop() -> None:
        async with current_job().transaction():
            pass
        again()

    @app.task
    def in_thread() -> None:
        with current_job().transaction():
            pass
        again()

    async with working(app):
        await (await (in_thread if plain else on_loop).enqueue()).result(timeout=30)
        while not errors:  # noqa: ASYNC110 - the handler may go on for a moment
            await asyncio.sleep(0.01)
    assert "settled already" in str(errors[0])


async def test_a_block_that_was_rolled_back_may_be_followed_by_another(place: Place) -> None:
    app = Tenure(place.url)

    @app.task(retry=ONCE)
    async def charge() -> int:
        try:
            async with current_job().transaction() as tx:
                await write(place, tx)
                raise KeyError
        except KeyError:
            async with current_job().transaction() as tx:
                await write(place, tx)
                tx.complete(2)
        return 2

    async with working(app):
        job = await charge.enqueue()
        assert await job.result(timeout=30) == 2
    assert place.rows == [(job.id, 1)]


def commit(connection: Any) -> Any:
    return connection.commit()


def commit_by_statement(connection: Any) -> Any:
    return connection.execute("COMMIT")


@pytest.mark.parametrize("end", [commit, commit_by_statement])
async def test_a_commit_inside_the_block_does_not_complete_the_job(place: Place, end: Callable[[Any], Any]) -> None:
    app = Tenure(place.url)

    @app.task(retry=ONCE)
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
            ended = end(tx.connection)
            if asyncio.iscoroutine(ended):
                await ended

    async with working(app):
        job = await charge.enqueue()
        await _ended(job)
        record = await record_of(job)
    assert record.state is State.FAILED


async def test_a_caught_error_of_the_database_cannot_lose_the_writes(place: Place) -> None:
    app = Tenure(place.url)

    @app.task(retry=ONCE)
    def charge() -> None:
        with current_job().transaction() as tx:
            write_plainly(place, tx)
            with suppress(sqlite3.Error, psycopg.Error):
                tx.connection.execute("INSERT INTO no_such_table VALUES (1)")

    async with working(app):
        job = await charge.enqueue()
        await _ended(job)
        record = await record_of(job)
    # SQLite undoes only the statement; PostgreSQL would commit nothing.
    assert (record.state, len(place.rows)) == ((State.COMPLETED, 1) if place.kind == "sqlite" else (State.FAILED, 0))


async def test_a_plain_with_in_a_coroutine_is_refused(place: Place) -> None:
    app = Tenure(place.url)

    @app.task
    async def charge() -> str:
        with pytest.raises(UsageError, match="async with"), current_job().transaction():
            pass
        return "refused"

    async with working(app):
        assert await (await charge.enqueue()).result(timeout=30) == "refused"


async def test_a_result_that_does_not_fit_is_refused_at_once(place: Place) -> None:
    app = Tenure(place.url)

    @app.task(retry=ONCE)
    async def charge() -> int:
        async with current_job().transaction() as tx:
            with pytest.raises(UsageError):
                tx.complete("many")
            tx.complete(1)
        return 1

    async with working(app):
        assert await (await charge.enqueue()).result(timeout=30) == 1


async def test_two_transactions_at_a_time_are_refused(place: Place) -> None:
    app = Tenure(place.url)

    @app.task
    async def charge() -> None:
        async with current_job().transaction():
            with pytest.raises(UsageError, match="another transaction"):
                async with current_job().transaction():
                    pass

    async with working(app):
        await (await charge.enqueue()).result(timeout=30)


async def test_other_jobs_run_during_an_open_transaction(place: Place) -> None:
    app = Tenure(place.url)
    entered, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
            entered.set()
            await go_on.wait()

    @app.task
    async def quick() -> int:
        return 1

    async with working(app):
        slow = await charge.enqueue()
        await entered.wait()
        enqueued = asyncio.ensure_future(quick.enqueue())
        if place.kind == "postgresql":
            assert await (await enqueued).result(timeout=30) == 1
        go_on.set()
        await slow.result(timeout=30)
        assert await (await enqueued).result(timeout=30) == 1
    assert len(place.rows) == 1


async def _ended(job: Job[Any]) -> None:
    while await job.state() not in (State.FAILED, State.COMPLETED, State.CANCELLED):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


# --- the phases in which a run is stopped ----------------------------------------------------------


class Pause:
    """Stops the completions of a storage between their commit and their answer."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = SQLiteJobTransaction if place.kind == "sqlite" else PostgresJobTransaction
        complete, self.committed, self.go_on = kind.complete, threading.Event(), threading.Event()

        def paused(transaction: Any, beat: RenewRequest, entry: Settlement) -> SettleVerdict:
            verdict = complete(transaction, beat, entry)
            self.committed.set()
            assert self.go_on.wait(60)
            return verdict

        monkeypatch.setattr(kind, "complete", paused)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_cancellation_in_the_block_rolls_back(place: Place, plain: bool) -> None:
    app = Tenure(place.url)
    entered = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.task(retry=SOON)
    async def on_loop() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
            entered.set()
            # On SQLite no other connection can record a cancellation while the block is open.
            if place.kind == "sqlite":
                raise Cancel("enough")
            await asyncio.sleep(60)

    @app.task(retry=SOON)
    def in_thread() -> None:
        job = current_job()
        with job.transaction() as tx:
            write_plainly(place, tx)
            loop.call_soon_threadsafe(entered.set)
            if place.kind == "sqlite":
                raise Cancel("enough")
            while not job.cancelled:
                time.sleep(0.01)
            job.raise_if_cancelled()

    async with working(app):
        job = await (in_thread if plain else on_loop).enqueue()
        await entered.wait()
        if place.kind != "sqlite":
            await job.cancel("enough")
        await _ended(job)
        assert await job.state() is State.CANCELLED
    assert place.rows == []


async def test_a_timeout_in_the_block_rolls_back(place: Place) -> None:
    app = Tenure(place.url)

    @app.task(retry=SOON, timeout="1s")
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
            if current_job().run == 1:
                await asyncio.sleep(60)

    async with working(app):
        job = await charge.enqueue()
        await job.result(timeout=60)
        record = await record_of(job)
    assert (record.starts, record.failures) == (2, 1)
    assert place.rows == [(job.id, 2)]


async def test_a_thread_that_hangs_in_the_block_is_rolled_back(place: Place) -> None:
    """A thread cannot be stopped. On SQLite its transaction would keep all others from writing."""
    app, go_on, failed = Tenure(place.url), threading.Event(), list[Exception]()

    @app.task(retry=SOON, timeout="1s")
    def charge() -> None:
        with current_job().transaction() as tx:
            write_plainly(place, tx)
            if current_job().run == 1:
                go_on.wait(90)
                try:
                    write_plainly(place, tx)
                except Exception as error:
                    failed.append(error)
                    raise

    try:
        async with working(app):
            job = await charge.enqueue()
            await job.result(timeout=60)
            record = await record_of(job)
            assert (record.starts, record.failures) == (2, 1)
            assert place.rows == [(job.id, 2)]
            go_on.set()
            await asyncio.sleep(0.5)
            assert place.rows == [(job.id, 2)]
            assert bool(failed) == (place.kind == "sqlite")
    finally:
        go_on.set()


async def test_a_stop_of_the_worker_in_the_block_rolls_back(place: Place) -> None:
    app = Tenure(place.url)
    entered = asyncio.Event()

    @app.task
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
            entered.set()
            await asyncio.sleep(60)

    worker = app.worker()
    await worker.start()
    job = await charge.enqueue()
    await entered.wait()
    await worker.stop(timeout=0.1)
    record = await record_of(job)
    await app.storage.close()
    assert (record.state in (State.WAITING, State.DELAYED), record.releases, record.failures) == (True, 1, 0)
    assert place.rows == []


@pytest.mark.parametrize("plain", [False, True])
async def test_a_run_that_is_cancelled_while_it_commits_is_completed(
    place: Place, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    app, pause, after = Tenure(place.url), Pause(place, monkeypatch), list[str]()

    @app.task(retry=SOON, timeout="1s")
    async def on_loop() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
        after.append("went on")

    @app.task(retry=SOON, timeout="1s")
    def in_thread() -> None:
        with current_job().transaction() as tx:
            write_plainly(place, tx)

    async with working(app):
        job = await (in_thread if plain else on_loop).enqueue()
        await asyncio.to_thread(pause.committed.wait, 60)
        # Meanwhile the time limit of the run passes.
        await asyncio.sleep(1.5)
        pause.go_on.set()
        await job.result(timeout=30)
    record = await record_of(job)
    await app.storage.close()
    assert (record.state, record.starts, record.failures) == (State.COMPLETED, 1, 0)
    assert place.rows == [(job.id, 1)]
    assert after == []


async def test_a_beat_that_meets_the_commit_does_not_stop_the_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Tenure(place.url, timing=Timing(lease="2s", sweep="500ms", grace="500ms"))
    pause, after, lost = Pause(place, monkeypatch), list[str](), list[LeaseLost]()

    @app.task(retry=SOON)
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
        # Longer than the lease: the run is settled, so the worker does not renew it.
        await asyncio.sleep(3)
        after.append("went on")

    @app.on(LeaseLost)
    def note(event: LeaseLost) -> None:
        lost.append(event)

    async with working(app):
        job = await charge.enqueue()
        await asyncio.to_thread(pause.committed.wait, 60)
        # Several beats find the lease gone.
        await asyncio.sleep(2)
        pause.go_on.set()
        while not after:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        record = await record_of(job)
    assert (record.state, record.starts, record.stalls) == (State.COMPLETED, 1, 0)
    assert lost == []
    assert place.rows == [(job.id, 1)]


async def test_a_worker_that_stops_after_the_block_leaves_the_job_completed(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    app = Tenure(place.url)

    @app.task(retry=SOON, singleton=True)
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await write(place, tx)
        await asyncio.sleep(60)

    worker = app.worker()
    await worker.start()
    job = await charge.enqueue()
    await job.result(timeout=30)
    await worker.stop(timeout=0.1)
    record = await record_of(job)
    assert await events_of(app, job) == ["JobCompleted"]
    await app.storage.close()
    assert (record.state, record.starts, record.releases) == (State.COMPLETED, 1, 0)
    assert "is completed, but the code after its transaction was stopped" in caplog.text


async def test_storages_without_transactions_name_those_that_have_them() -> None:
    app = Tenure("memory://")

    @app.task
    async def charge() -> str:
        with pytest.raises(UsageError, match="PostgreSQL and SQLite"):
            current_job().transaction()
        return "refused"

    async with working(app):
        assert await (await charge.enqueue()).result(timeout=30) == "refused"


APP = """
import asyncio
from tenure import Retry, Tenure, current_job

app = Tenure({url!r})

@app.task(run="process", retry=Retry(max_attempts=1))
def in_thread() -> int:
    with current_job().transaction() as tx:
        tx.connection.execute({insert!r}, (current_job().id, current_job().run))
        current_job().log.info("in a process of its own")
        tx.complete(7)
    return None

@app.task(run="process", retry=Retry(max_attempts=1))
async def on_loop() -> int:
    async with current_job().transaction() as tx:
        written = tx.connection.execute({insert!r}, (current_job().id, current_job().run))
        if asyncio.iscoroutine(written):
            await written
        tx.complete(7)
    raise ValueError("too late")
"""


@pytest.mark.parametrize("name", ["in_thread", "on_loop"])
async def test_handlers_in_processes_of_their_own_have_transactions(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = f"transactions_app_{place.kind}_{name}_{os.getpid()}"
    (tmp_path / f"{module}.py").write_text(APP.format(url=place.url, insert=place.insert))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    loaded = importlib.import_module(module)
    app: Tenure = loaded.app

    async with working(app):
        job = await getattr(loaded, name).enqueue()
        assert await job.result(timeout=60) == 7
        while name == "on_loop" and "code after its transaction failed" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        (detail,) = await app.storage.get([job.ref])
        assert await events_of(app, job) == ["JobCompleted"]
    assert detail is not None
    if name == "in_thread":
        assert [line.message for line in detail.log] == ["in a process of its own"]
    assert place.rows == [(job.id, 1)]
