"""A call in a user's transaction is stored by the commit of that transaction, or not at all."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from tenure import (
    Debounce,
    JobNotFoundError,
    ProceedSending,
    SendCall,
    StorageUnavailableError,
    Tenure,
    Throttle,
    ThrottledError,
    UsageError,
)
from tenure.core.job import Owner
from tenure.ops.move import Move
from tenure.storage.connections import run_now
from tenure.storage.postgres import call_format
from tenure.storage.protocol import ClaimRequest, Query
from tests.flow.transactions import KINDS, Begin, Transaction, autocommitting

pytestmark = pytest.mark.thorough

OWNER = Owner("00000000000a11ce", "a test")

ROUNDS = 500
"""For all kinds of connections together more than 10,000 transactions; nine in ten are rolled back."""

SYNC = sorted(kind for kind in KINDS if "async" not in kind)
"""The kinds whose connections belong to a thread, not to an event loop."""

os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


def marked(kinds: Iterable[str]) -> list[Any]:
    return [pytest.param(kind, marks=[pytest.mark.postgres] if KINDS[kind][0] != "sqlite" else []) for kind in kinds]


@pytest.fixture(params=marked(sorted(KINDS)))
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if KINDS[kind][0] == "sqlite":
        return f"sqlite:///{tmp_path}/queue.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


async def ids(app: Tenure) -> list[str]:
    """Return the ids of all jobs, the newest first."""
    found, cursor = list[str](), None
    storage = app.storage
    while True:
        page = await storage.find(Query(limit=500, after=cursor))
        found += [job.id for job in page.jobs]
        cursor = page.next
        if cursor is None:
            return found


async def play(app: Tenure, begin: Begin, enqueue: Callable[[Transaction, str], Awaitable[object]]) -> set[str]:
    """Enqueue in many transactions that end at random; return the ids of those that were committed."""
    dice, committed = Random(18), set[str]()
    for number in range(ROUNDS):
        async with begin() as transaction:
            names = [f"{number}-{call}" for call in range(dice.choice((1, 1, 1, 2, 3)))]
            for name in names:
                await enqueue(transaction, name)
            if dice.random() < 0.1:
                await transaction.commit()
                committed.update(names)
            else:
                await transaction.rollback()
    return committed


async def test_a_commit_stores_its_calls_and_a_rollback_none(kind: str, url: str) -> None:
    app = Tenure(url)

    @app.task
    async def charge(order: str) -> None: ...

    async with app:
        async with KINDS[kind][1](url) as begin:

            async def enqueue(transaction: Transaction, name: str) -> None:
                await charge.options(tx=transaction.tx, id=name).enqueue(name)

            committed = await play(app, begin, enqueue)

        assert len(committed) > 50
        assert sorted(await ids(app)) == sorted(committed)


@pytest.mark.parametrize("kind", marked(SYNC), indirect=True)
def test_enqueue_sync_does_the_same(kind: str, url: str) -> None:
    app = Tenure(url)

    @app.task
    async def charge(order: str) -> None: ...

    async def enqueue(transaction: Transaction, name: str) -> None:
        charge.options(tx=transaction.tx, id=name).enqueue_sync(name)

    async def run() -> set[str]:
        async with KINDS[kind][1](url) as begin:
            return await play(app, begin, enqueue)

    # No event loop runs here: the coroutines of these connections never suspend.
    committed = run_now(run())

    async def stored() -> list[str]:
        found = await ids(app)
        await app.close()
        return found

    assert len(committed) > 50
    assert sorted(asyncio.run(stored())) == sorted(committed)


# ── the handle of a call ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def connection(postgres_url: str) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
    async with KINDS["psycopg-async"][1](postgres_url) as begin, begin() as transaction:
        connection: psycopg.AsyncConnection[Any] = transaction.tx
        yield connection


@pytest.mark.postgres
async def test_the_handle_of_a_committed_call_is_that_of_its_job(
    postgres_url: str, connection: psycopg.AsyncConnection[Any]
) -> None:
    app = Tenure(postgres_url)

    @app.task(unique="order-{order}")
    async def charge(order: int) -> int:
        return order + 1

    async with app:
        first = await charge.enqueue(1)
        second = await charge.options(tx=connection).enqueue(1)
        third = await charge.options(tx=connection).enqueue(2)
        assert (second.action, second.created, second.id == first.id) == ("pending", False, False)
        with pytest.raises(JobNotFoundError):
            await third.info()
        await connection.commit()

        assert (await second.info()).job.id == second.id == first.id
        async with app.worker():
            assert await third.result(timeout=20) == 3
            assert await second.result(timeout=20) == 2


@pytest.mark.postgres
async def test_a_throttled_call_of_a_transaction_shows_its_refusal(
    postgres_url: str, connection: psycopg.AsyncConnection[Any]
) -> None:
    app = Tenure(postgres_url)

    @app.task(throttle=Throttle(max=1, window="1h"))
    async def report() -> None: ...

    async with app:
        await report.enqueue()
        refused = await report.options(tx=connection).enqueue()
        await connection.commit()

        with pytest.raises(ThrottledError, match="report"):
            await refused.info()


@pytest.mark.postgres
async def test_delay_and_ttl_count_from_the_call_not_from_the_commit(
    postgres_url: str, connection: psycopg.AsyncConnection[Any]
) -> None:
    app = Tenure(postgres_url)

    @app.task
    async def remind() -> None: ...

    async with app:
        late = await remind.options(tx=connection, delay=0.5).enqueue()
        short = await remind.options(tx=connection, ttl=0.5).enqueue()
        long = await remind.options(tx=connection, ttl=60).enqueue()
        await asyncio.sleep(1)
        await connection.commit()

        assert (await late.state()) == "waiting"
        ends = (await short.info()).job
        assert ends.ttl is not None
        assert ends.ttl.total_seconds() == 1e-6
        lives = (await long.info()).job
        assert lives.ttl is not None
        assert 50 < lives.ttl.total_seconds() < 59.5


@pytest.mark.postgres
async def test_an_unreadable_call_does_not_block_the_others(
    postgres_url: str, connection: psycopg.AsyncConnection[Any]
) -> None:
    app = Tenure(postgres_url)

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        jobs = [await charge.options(tx=connection).enqueue(order) for order in range(3)]
        schema = postgres_url.partition("schema=")[2]
        await connection.execute(f"UPDATE {schema}.intake SET job = 'x' WHERE id = '{jobs[1].id}'".encode())
        await connection.commit()

        assert [await job.state() for job in jobs[::2]] == ["waiting", "waiting"]
        for handle in (jobs[1], charge.job(jobs[1].id, queue="default")):
            why = f"no job was made of call {jobs[1].id}: .*(Decode|Validation)Error.*tenure doctor"
            with pytest.raises(UsageError, match=why):
                await handle.state()
        found = await connection.execute(f"SELECT id, refused FROM {schema}.intake".encode())
        assert [stays for stays, _ in await found.fetchall()] == [jobs[1].id]


@pytest.mark.postgres
async def test_a_call_of_a_newer_version_waits_for_a_worker_that_can_read_it(
    postgres_url: str, connection: psycopg.AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Tenure(postgres_url)

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        # For a newer producer, `timeout` is a field that workers of this version do not know.
        monkeypatch.setattr(call_format, "SINCE", {"timeout": 3})
        newer = await charge.options(tx=connection, timeout="5s").enqueue(1)
        plain = await charge.options(tx=connection).enqueue(2)
        await connection.commit()

        assert await plain.state() == "waiting"
        with pytest.raises(JobNotFoundError):
            await newer.state()
        findings = {one.subject: one for one in await (await app.opened()).examine(deep=False)}
        assert findings["calls"].level == "warning"
        assert (
            "1 committed calls of users' transactions wait for a worker of a newer version" in findings["calls"].message
        )

        monkeypatch.setattr(call_format, "FORMAT", 3)
        assert await newer.state() == "waiting"
        timeout = (await newer.info()).job.timeout
        assert timeout is not None
        assert timeout.total_seconds() == 5


@pytest.mark.postgres
async def test_a_later_call_of_the_same_key_may_overtake_a_newer_version(
    postgres_url: str, connection: psycopg.AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Tenure(postgres_url)

    @app.task(unique="one")
    async def charge(order: int) -> None: ...

    @app.task(debounce=Debounce(delay="1m"))
    async def index(order: int) -> None: ...

    async with app:
        monkeypatch.setattr(call_format, "SINCE", {"timeout": 3})
        newer = [await task.options(tx=connection, timeout="5s").enqueue(1) for task in (charge, index)]
        plain = [await task.options(tx=connection).enqueue(2) for task in (charge, index)]
        await connection.commit()
        assert [(await job.info()).job.payload for job in plain] == [b'{"order":2}'] * 2

        monkeypatch.setattr(call_format, "FORMAT", 3)
        # The unique job stays as it is, and the debounced one gets the arguments that were read last.
        assert [(await job.info()).job.id for job in newer] == [job.id for job in plain]
        assert [(await job.info()).job.payload for job in plain] == [b'{"order":2}', b'{"order":1}']


@pytest.mark.parametrize(
    "kind", marked(kind for kind in KINDS if "async" in kind and KINDS[kind][0] != "sqlite"), indirect=True
)
async def test_a_cancelled_call_holds_no_lock_after_the_rollback(
    kind: str, url: str, connection: psycopg.AsyncConnection[Any]
) -> None:
    app = Tenure(url)

    @app.task
    async def charge(order: str) -> None: ...

    schema = url.partition("schema=")[2]
    locks = (
        "SELECT lock.granted FROM pg_locks AS lock JOIN pg_class AS class ON class.oid = lock.relation "
        f"WHERE class.relnamespace = '{schema}'::regnamespace AND lock.pid <> pg_backend_pid()"
    ).encode()

    async def granted() -> list[bool]:
        return [held for (held,) in await (await connection.execute(locks)).fetchall()]

    async with app, KINDS[kind][1](url) as begin:
        async with begin() as transaction:
            # The first call reads what the next ones need.
            await charge.options(tx=transaction.tx).enqueue("none")
            await transaction.rollback()
        async with begin() as transaction:
            await connection.execute(f"LOCK TABLE {schema}.intake IN EXCLUSIVE MODE".encode())
            waiting = asyncio.create_task(charge.options(tx=transaction.tx).enqueue("cancelled"))
            async with asyncio.timeout(30):
                while False not in await granted():  # noqa: ASYNC110 - the server does not notify
                    await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await connection.rollback()
            await transaction.rollback()

        assert await granted() == []
        await connection.rollback()
        async with begin() as transaction:
            await charge.options(tx=transaction.tx, id="next").enqueue("next")
            await transaction.commit()
        assert await ids(app) == ["next"]


@pytest.mark.postgres
async def test_many_calls_are_absorbed_in_their_order(
    postgres_url: str, connection: psycopg.AsyncConnection[Any]
) -> None:
    app = Tenure(postgres_url)

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        jobs = await app.enqueue_many([charge.call(order) for order in range(600)], tx=connection)
        await connection.commit()

        assert await jobs[-1].state() == "waiting"
        assert await ids(app) == [job.id for job in reversed(jobs)]


@pytest.mark.postgres
async def test_a_move_takes_calls_of_transactions_along(
    postgres_url: str, connection: psycopg.AsyncConnection[Any], tmp_path: Path
) -> None:
    """It takes more calls than one transaction makes into jobs, and calls committed after the mark."""
    app, target = Tenure(postgres_url), Tenure(f"sqlite:///{tmp_path}/target.db")

    @app.task(queue="mail")
    async def charge(order: int) -> None: ...

    async with app, target:
        early = await app.enqueue_many([charge.call(order) for order in range(600)], tx=connection)
        await connection.commit()
        report = await Move(app.storage, target.storage).run()
        assert report.complete
        assert set(await ids(target)) == {job.id for job in early}

        late = await app.enqueue_many([charge.call(order) for order in range(300)], tx=connection)
        await connection.commit()
        await app.storage.exchange(OWNER, order=ClaimRequest(("mail",), 1))
        [calls] = [one for one in await app.storage.examine() if one.subject == "calls"]
        assert (calls.level, "tenure move" in calls.remedy) == ("error", True)
        report = await Move(app.storage, target.storage).run()
        assert [one.moved for one in report.queues] == [300]
        assert set(await ids(target)) == {job.id for job in (*early, *late)}
        assert not await ids(app)
        [calls] = [one for one in await app.storage.examine() if one.subject == "calls"]
        assert calls.level == "ok"


@pytest.mark.postgres
async def test_calls_after_a_move_become_jobs_when_the_queue_is_moved_back(
    postgres_url: str, connection: psycopg.AsyncConnection[Any], tmp_path: Path
) -> None:
    app, target = Tenure(postgres_url), Tenure(f"sqlite:///{tmp_path}/target.db")

    @app.task
    async def charge(order: int) -> None: ...

    async with app, target:
        first = await charge.enqueue(1)
        await Move(app.storage, target.storage).run()
        second = await charge.options(tx=connection).enqueue(2)
        await connection.commit()
        await app.storage.exchange(OWNER, order=ClaimRequest(("default",), 1))
        await Move(target.storage, app.storage).run()
        assert set(await ids(app)) == {first.id, second.id}


@pytest.mark.postgres
async def test_a_move_refuses_while_calls_of_a_newer_version_wait(
    postgres_url: str, connection: psycopg.AsyncConnection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, target = Tenure(postgres_url), Tenure(f"sqlite:///{tmp_path}/target.db")

    @app.task
    async def charge(order: int) -> None: ...

    async with app, target:
        plain = await charge.enqueue(1)
        monkeypatch.setattr(call_format, "SINCE", {"timeout": 3})
        newer = await charge.options(tx=connection, timeout="5s").enqueue(2)
        await connection.commit()
        for move in (Move(app.storage, target.storage).plan, Move(app.storage, target.storage).run):
            with pytest.raises(UsageError, match=r"1 committed calls .* by a newer version"):
                await move()
        assert await ids(app) == [plain.id]
        assert not await ids(target)
        assert await plain.state() == "waiting"

        monkeypatch.setattr(call_format, "FORMAT", 3)
        report = await Move(app.storage, target.storage).run()
        assert (report.complete, set(await ids(target))) == (True, {plain.id, newer.id})


@pytest.mark.postgres
async def test_a_move_reports_calls_of_a_newer_version_that_came_meanwhile(
    postgres_url: str, connection: psycopg.AsyncConnection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, target = Tenure(postgres_url), Tenure(f"sqlite:///{tmp_path}/target.db")

    @app.task
    async def charge(order: int) -> None: ...

    schema = postgres_url.partition("schema=")[2]
    async with app, target:
        plain = await charge.enqueue(1)
        monkeypatch.setattr(call_format, "SINCE", {"timeout": 3})
        newer = await charge.options(tx=connection, timeout="5s").enqueue(2)
        columns = "queue, id, at, job, format"
        await connection.execute(f"CREATE TABLE {schema}.later AS SELECT {columns} FROM {schema}.intake".encode())
        await connection.execute(f"DELETE FROM {schema}.intake".encode())
        await connection.commit()

        def arrives(step: str) -> None:
            if step == "marked":
                shell.execute(f"INSERT INTO {schema}.intake ({columns}) SELECT {columns} FROM {schema}.later".encode())

        with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as shell:
            report = await Move(app.storage, target.storage, on_step=arrives).run()
        assert (report.newer_calls, report.complete, await ids(target)) == (1, False, [plain.id])
        # A worker of the newer version finds that the jobs were moved: the call stays for `tenure move`.
        monkeypatch.setattr(call_format, "FORMAT", 3)
        await app.storage.exchange(OWNER, order=ClaimRequest(("default",), 1))
        monkeypatch.setattr(call_format, "FORMAT", 2)
        for move in (Move(app.storage, target.storage), Move(target.storage, app.storage)):
            with pytest.raises(UsageError, match=r"1 committed calls .* by a newer version"):
                await move.run()
        monkeypatch.setattr(call_format, "FORMAT", 3)
        await Move(target.storage, app.storage).run()
        assert set(await ids(app)) == {plain.id, newer.id}


@pytest.mark.postgres
async def test_one_transaction_makes_jobs_of_a_few_megabytes_of_calls(
    postgres_url: str, connection: psycopg.AsyncConnection[Any]
) -> None:
    """All other processes wait for that transaction, and its calls are in memory."""
    app = Tenure(postgres_url)

    @app.task
    async def charge(order: str) -> None: ...

    async with app:
        await app.enqueue_many([charge.call("x" * 1_000_000) for _ in range(20)], tx=connection)
        await connection.commit()
        await app.storage.exchange(OWNER, order=ClaimRequest(("nothing",), 1))
        schema = postgres_url.partition("schema=")[2]
        found = await connection.execute(f"SELECT count(*) FROM {schema}.intake".encode())
        assert await found.fetchall() == [(11,)]


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_other_objects_are_refused() -> None:
    app = Tenure("memory://")

    @app.task
    async def charge(order: int) -> None: ...

    with pytest.raises(UsageError, match=r"tx = .*not a connection.*psycopg.*SQLAlchemy"):
        charge.options(tx=object())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"memory.*not the database"):
        await charge.options(tx=sqlite3.connect(":memory:")).enqueue(1)


async def test_connections_that_commit_each_statement_are_refused(kind: str, url: str) -> None:
    app = Tenure(url)

    @app.task
    async def charge(order: int) -> None: ...

    async with app, autocommitting(kind, url) as tx:
        with pytest.raises(UsageError, match="commits each statement"):
            await charge.options(tx=tx).enqueue(1)
        assert not await ids(app)


async def test_other_files_are_refused(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/queue.db")

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        other = sqlite3.connect(tmp_path / "other.db")
        with pytest.raises(UsageError, match=r"other\.db, but the queue is in .*queue\.db"):
            await charge.options(tx=other).enqueue(1)
        other.rollback()
        other.execute("ATTACH ? AS jobs", (str(tmp_path / "queue.db"),))
        with pytest.raises(UsageError, match="attached as 'jobs'"):
            await charge.options(tx=other).enqueue(1)
        other.close()


@pytest.mark.postgres
async def test_other_databases_are_refused(postgres_urls: Callable[[], str]) -> None:
    app = Tenure(postgres_urls())

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        await charge.enqueue(1)
        with sqlite3.connect(":memory:") as other, pytest.raises(UsageError, match="not connected to the database"):
            await charge.options(tx=other).enqueue(1)


async def test_waiting_for_a_job_of_an_open_transaction_is_refused(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/queue.db")

    @app.task
    async def charge(order: int) -> None: ...

    tx = sqlite3.connect(tmp_path / "queue.db")
    with pytest.raises(UsageError, match="contradict"):
        await charge.options(tx=tx).enqueue_and_wait(1)
    with pytest.raises(UsageError, match="enqueue_many"):
        charge.options(tx=tx).call(1)
    tx.close()


async def test_a_transaction_that_read_an_older_state_is_refused(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/queue.db")

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        await charge.enqueue(0)
        tx = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
        tx.execute("BEGIN")
        tx.execute("SELECT count(*) FROM tenure_job").fetchall()
        await charge.enqueue(1)
        with pytest.raises(StorageUnavailableError, match="BEGIN IMMEDIATE"):
            await charge.options(tx=tx).enqueue(2)
        tx.execute("ROLLBACK")
        tx.execute("BEGIN IMMEDIATE")
        await charge.options(tx=tx).enqueue(2)
        tx.execute("COMMIT")
        tx.close()
        assert len(await ids(app)) == 3


async def test_a_user_connection_never_checkpoints_with_an_affected_sqlite(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/queue.db")

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        tx = sqlite3.connect(tmp_path / "queue.db")
        await charge.options(tx=tx).enqueue(1)
        tx.commit()
        affected = sqlite3.sqlite_version_info < (3, 51, 3)
        assert tx.execute("PRAGMA wal_autocheckpoint").fetchone() == (0 if affected else 1000,)
        tx.close()


async def test_sending_middleware_wraps_a_call_in_a_transaction(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/queue.db")

    @app.task
    async def charge(order: int) -> None: ...

    @app.sending
    async def trace(call: SendCall, proceed: ProceedSending) -> None:
        call.headers["trace"] = "7"
        await proceed()

    async with app:
        tx = sqlite3.connect(tmp_path / "queue.db")
        job = await charge.options(tx=tx).enqueue(1)
        tx.commit()
        tx.close()
        assert (await job.info()).job.headers == {"trace": "7"}


@pytest.mark.patient
@pytest.mark.timeout(240)
async def test_a_write_transaction_of_a_minute_stalls_no_job(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/queue.db")
    ran, started = list[int](), asyncio.Event()

    @app.task
    async def charge(order: int) -> int:
        ran.append(order)
        started.set()
        await asyncio.sleep(75 if order == 0 else 0)
        return order

    async with app, app.worker():
        long = await charge.enqueue(0)
        await started.wait()
        tx = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
        tx.execute("BEGIN IMMEDIATE")
        inside = await charge.options(tx=tx).enqueue(1)
        await asyncio.sleep(60)
        tx.execute("COMMIT")
        tx.close()

        assert await inside.result(timeout=30) == 1
        assert await long.result(timeout=60) == 0
        record = (await long.info()).job
        assert (record.starts, record.stalls) == (1, 0)
        assert sorted(ran) == [0, 1]
