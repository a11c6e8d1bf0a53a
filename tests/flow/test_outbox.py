"""A call in a transaction of another database is stored in its outbox, and a relay enqueues it once."""

import asyncio
import os
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import structs

from tenure import JobNotFoundError, ResultTimeoutError, Tenure, Throttle, ThrottledError, UsageError
from tenure.core.job import NewJob, Ref
from tenure.core.move import MoveMark
from tenure.core.waiting import Dependent, Links
from tenure.errors import FlowError
from tenure.maintenance.relay import Relay
from tenure.ops.diagnosis import outbox_findings
from tenure.outbox.outbox import LIMIT, Outbox
from tenure.storage.connections import run_now
from tenure.storage.protocol import Settings, Target
from tests.exposition import Family, read
from tests.flow.test_transactions import SYNC, ids, marked
from tests.flow.transactions import KINDS, Begin, Transaction, autocommitting

ROUNDS = 60

os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture(params=marked(sorted(KINDS)))
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def outbox_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if KINDS[kind][0] == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


async def play(begin: Begin, enqueue: Callable[[Transaction, str], Awaitable[object]]) -> set[str]:
    """Enqueue in many transactions that end at random; return the ids of those that were committed."""
    dice, committed = Random(18), set[str]()
    for number in range(ROUNDS):
        async with begin() as transaction:
            names = [f"{number}-{call}" for call in range(dice.choice((1, 1, 1, 2, 3)))]
            for name in names:
                await enqueue(transaction, name)
            if dice.random() < 0.5:
                await transaction.commit()
                committed.update(names)
            else:
                await transaction.rollback()
    return committed


async def relayed(app: Tenure) -> None:
    """Relay until no call waits."""
    relay, outbox = Relay(app.runtime()), box(app)
    while await outbox.queues():
        await relay.turn()


def box(app: Tenure) -> Outbox:
    assert app.outbox is not None
    return app.outbox


async def relays_what_was_committed(kind: str, outbox_url: str, queue_url: str) -> None:
    app = Tenure(queue_url, outbox=outbox_url)

    @app.task
    async def charge(order: str) -> None: ...

    async with app:
        async with KINDS[kind][1](outbox_url) as begin:

            async def enqueue(transaction: Transaction, name: str) -> None:
                job = await charge.options(tx=transaction.tx, id=name).enqueue(name)
                assert job.action == "pending"

            committed = await play(begin, enqueue)

        assert await ids(app) == []
        await relayed(app)
        assert len(committed) > 20
        assert sorted(await ids(app)) == sorted(committed)
        state = await box(app).state()
        assert (state.waiting, state.refused, state.oldest) == (0, 0, 0.0)


async def test_a_commit_relays_its_calls_and_a_rollback_none(kind: str, outbox_url: str, redis_url: str) -> None:
    await relays_what_was_committed(kind, outbox_url, redis_url)


@pytest.mark.parametrize("kind", marked(["psycopg", "psycopg-async"]), indirect=True)
async def test_an_outbox_works_through_pgbouncer_in_transaction_mode(
    kind: str, pgbouncer_url: str, tmp_path: Path
) -> None:
    await relays_what_was_committed(kind, pgbouncer_url, f"sqlite:///{tmp_path}/queue.db")


@pytest.mark.parametrize("kind", marked(SYNC), indirect=True)
def test_enqueue_sync_does_the_same(kind: str, outbox_url: str) -> None:
    app = Tenure("memory://", outbox=outbox_url)

    @app.task
    async def charge(order: str) -> None: ...

    async def enqueue(transaction: Transaction, name: str) -> None:
        charge.options(tx=transaction.tx, id=name).enqueue_sync(name)

    async def run() -> set[str]:
        async with KINDS[kind][1](outbox_url) as begin:
            return await play(begin, enqueue)

    async def prepared() -> None:
        await box(app).open()

    asyncio.run(prepared())
    # No event loop runs here: the coroutines of these connections never suspend.
    committed = run_now(run())

    async def stored() -> list[str]:
        await relayed(app)
        found = await ids(app)
        await app.close()
        return found

    assert len(committed) > 20
    assert sorted(asyncio.run(stored())) == sorted(committed)


async def test_connections_elsewhere_or_without_a_transaction_are_refused(
    kind: str, outbox_url: str, tmp_path: Path
) -> None:
    app = Tenure("memory://", outbox=outbox_url)
    other = "sqlite3" if KINDS[kind][0] == "postgresql" else "session-sqlite"

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        async with autocommitting(kind, outbox_url) as tx:
            with pytest.raises(UsageError, match="commits each statement"):
                await charge.options(tx=tx).enqueue(1)
        async with KINDS[other][1](f"sqlite:///{tmp_path}/other.db") as begin, begin() as transaction:
            with pytest.raises(UsageError, match="outbox"):
                await charge.options(tx=transaction.tx).enqueue(1)
        assert await box(app).queues() == []


# ── the handle of a call ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Return the address of an outbox in a SQLite file, whose calls the handles of a Redis queue show."""
    return f"sqlite:///{tmp_path}/shop.db"


@asynccontextmanager
async def transaction(url: str) -> AsyncGenerator[Any]:
    """Open a transaction, and commit it."""
    kind = "psycopg-async" if url.startswith("postgresql") else "sqlite3"
    async with KINDS[kind][1](url) as begin, begin() as opened:
        yield opened.tx
        await opened.commit()


async def test_a_result_waits_for_the_relay(redis_url: str, shop: str) -> None:
    app = Tenure(redis_url, outbox=shop)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with app:
        async with transaction(shop) as tx:
            job = await add.options(tx=tx).enqueue(1, 2)
            assert (job.action, job.created) == ("pending", False)
            with pytest.raises(JobNotFoundError, match="never enqueued"):
                await job.info()
        with pytest.raises(JobNotFoundError, match="waits in the outbox"):
            await job.info()
        with pytest.raises(ResultTimeoutError):
            await job.result(timeout=0.5)
        other = app.job(job.id, add)
        waiting = asyncio.create_task(other.result(timeout=30))
        async with app.worker():
            assert await job.result(timeout=30) == 3
            assert await waiting == 3
        assert (await job.info()).job.starts == 1


async def test_the_relay_decides_into_which_job_a_call_is_merged(redis_url: str, shop: str) -> None:
    app = Tenure(redis_url, outbox=shop)

    @app.task(unique="order-{order}")
    async def charge(order: int) -> None: ...

    @app.task(throttle=Throttle(max=1, window="1h"))
    async def report() -> None: ...

    async with app:
        async with transaction(shop) as tx:
            second = await charge.options(tx=tx).enqueue(1)
            allowed = await report.options(tx=tx).enqueue()
            refused = await report.options(tx=tx).enqueue()
        # This later call takes the key, because the call of the transaction is not relayed yet.
        first = await charge.enqueue(1)
        await relayed(app)

        assert (await second.info()).job.id == second.id == first.id
        assert await allowed.state() == "waiting"
        with pytest.raises(ThrottledError, match="report") as error:
            await refused.info()
        assert 3500 < error.value.retry_in <= 3600
        with pytest.raises(ThrottledError):
            await refused.result(timeout=5)
        # Two answers are kept for a day.
        assert await box(app).queues() == []
        assert len(await ids(app)) == 2


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def test_durations_count_from_the_call_by_the_clock_of_its_database(
    redis_url: str, database: str, request: pytest.FixtureRequest, shop: str
) -> None:
    url = shop if database == "sqlite" else request.getfixturevalue("postgres_url")
    app = Tenure(redis_url, outbox=url)

    @app.task
    async def remind() -> None: ...

    async with app:
        async with transaction(url) as tx:
            due = await remind.options(tx=tx, delay=0.5).enqueue()
            later = await remind.options(tx=tx, delay=3600).enqueue()
            at = await remind.options(tx=tx, run_at=datetime.now(UTC) + timedelta(hours=1)).enqueue()
            short = await remind.options(tx=tx, ttl=0.5).enqueue()
            long = await remind.options(tx=tx, ttl=60).enqueue()
        await asyncio.sleep(1)
        await relayed(app)

        assert await due.state() == "waiting"
        for one in (later, at):
            job = (await one.info()).job
            assert 3500 < (job.run_at - job.created).total_seconds() < 3599.5
        ends, lives = (await short.info()).job.ttl, (await long.info()).job.ttl
        assert ends is not None
        assert ends.total_seconds() == 1e-6
        assert lives is not None
        assert 30 < lives.total_seconds() < 59.5


async def test_calls_of_a_transaction_keep_their_order(redis_url: str, shop: str) -> None:
    app = Tenure(redis_url, outbox=shop)

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        async with transaction(shop) as tx:
            jobs = await app.enqueue_many([charge.call(order) for order in range(2 * LIMIT + 1)], tx=tx)
        await relayed(app)
        assert await ids(app) == [job.id for job in reversed(jobs)]


# ── calls and queues that cannot be relayed ───────────────────────────────────────────────────────────────────────────


@pytest.mark.postgres
@pytest.mark.parametrize("bad", ["undecodable", "refused"])
async def test_a_call_that_cannot_become_a_job_does_not_block_the_others(
    postgres_url: str, shop: str, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Tenure(postgres_url, outbox=shop)

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        async with transaction(shop) as tx:
            first = await charge.options(tx=tx, id="first").enqueue(1)
            poison = await charge.options(tx=tx, id="bad").enqueue(1)
            last = await charge.options(tx=tx, id="last").enqueue(1)
            # PostgreSQL cannot store a name with a NUL character.
            job = NewJob(queue="default", id="bad", task="charge", payload=b"", fair_key="a\0")
            encoded = b"x" if bad == "undecodable" else msgspec.msgpack.encode(job)
            tx.execute("UPDATE tenure_outbox SET job = ? WHERE id = 'bad'", (b64encode(encoded).decode(),))
        await relayed(app)

        assert [await job.state() for job in (first, last)] == ["waiting", "waiting"]
        with pytest.raises(UsageError, match=r"no job was made of call bad.*tenure doctor"):
            await poison.result(timeout=5)
        assert sorted(await ids(app)) == ["first", "last"]
        state = await box(app).state()
        assert (state.waiting, state.refused) == (0, 1)
        assert "no job can be made of call" in caplog.text


async def test_a_queue_that_accepts_no_jobs_does_not_block_the_others(redis_url: str, shop: str) -> None:
    app = Tenure(redis_url, outbox=shop)

    @app.task(queue="moved")
    async def stays() -> None: ...

    @app.task(queue="open")
    async def goes() -> None: ...

    async with app:
        here = Target("queue", "moved")
        await app.storage.tune(here, Settings(moved=MoveMark("redis://elsewhere", "m1")))
        async with transaction(shop) as tx:
            kept = await stays.options(tx=tx).enqueue()
            gone = await goes.options(tx=tx).enqueue()
        relay = Relay(app.runtime())
        for _ in range(3):
            await relay.turn()
        assert await gone.state() == "waiting"
        assert [one.queue for one in await box(app).queues()] == ["moved"]
        await app.storage.tune(here, Settings(moved=MoveMark()))
        async with asyncio.timeout(30):
            while await box(app).queues():  # noqa: ASYNC110  # the relay tries again after a while
                await asyncio.sleep(min(0.1, await relay.turn()))
        assert await kept.state() == "waiting"


async def test_a_relay_that_falls_behind_another_sends_no_call_twice(redis_url: str, shop: str) -> None:
    app = Tenure(redis_url, outbox=shop)

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        slow, quick = Relay(app.runtime()), Relay(app.runtime())

        async def commit(order: int) -> None:
            async with transaction(shop) as tx:
                await charge.options(tx=tx, id=f"{order}").enqueue(order)

        for order in range(6):
            await commit(order)
            await (quick, slow, quick)[order % 3].turn()
        while await box(app).queues():
            await slow.turn()
        assert sorted(await ids(app)) == [f"{order}" for order in range(6)]


# ── calls without a relay ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_calls_without_a_relay_are_reported(shop: str, caplog: pytest.LogCaptureFixture) -> None:
    app = Tenure("memory://", outbox=shop)

    @app.task
    async def charge(order: int) -> None: ...

    async with app:
        async with transaction(shop) as tx:
            await charge.options(tx=tx).enqueue(1)
        await box(app).check()
        assert "no relay takes them" not in caplog.text
        async with transaction(shop) as tx:
            tx.execute("UPDATE tenure_outbox SET at = at - 40000000 WHERE answer IS NULL")

        await box(app).check()
        await box(app).check()
        assert caplog.text.count("have waited for up to 40 s, and no relay takes them") == 1
        state = await box(app).state()
        assert (state.waiting, state.refused) == (1, 0)
        assert 40 <= state.oldest < 60
        [finding] = outbox_findings(state)
        assert (finding.level, finding.subject) == ("error", "outbox")
        figures = await metrics(app)
        assert figures["tenure_outbox_calls"][{"state": "waiting"}] == 1
        assert figures["tenure_outbox_oldest_seconds"][{}] >= 40

        await relayed(app)
        figures = await metrics(app)
        assert figures["tenure_outbox_relayed_total"][{"queue": "default"}] == 1
        assert figures["tenure_outbox_oldest_seconds"][{}] == 0


async def metrics(app: Tenure) -> dict[str, Family]:
    sent: list[Any] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
    await app.health(unprotected=True)(scope, receive, send)
    return read(sent[1]["body"])


def test_an_address_that_names_no_database_is_refused() -> None:
    with pytest.raises(UsageError, match="names no PostgreSQL database and no SQLite file"):
        Tenure("memory://", outbox="redis://localhost")
    with pytest.raises(UsageError, match="no outbox"):
        Relay(Tenure("memory://").runtime())


@pytest.mark.parametrize("kind", marked(["sqlite3"]), indirect=True)
async def test_a_call_with_links_is_refused_before_the_commit(kind: str, outbox_url: str, tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/queue.db", outbox=outbox_url)

    @app.task
    async def charge(order: str) -> None: ...

    async with app, KINDS[kind][1](outbox_url) as begin, begin() as transaction:
        call = charge.call("1")
        call.job = structs.replace(call.job, links=Links(dependents=(Dependent(Ref("default", "b"), "a", "end"),)))
        with pytest.raises(FlowError, match="does not keep flows"):
            await app.enqueue_many([call], tx=transaction.tx)
        await transaction.commit()
        assert await box(app).queues() == []
