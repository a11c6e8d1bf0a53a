"""A call in a transaction of another database waits in its outbox, and a relay enqueues it once."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from tenure import Tenure, UsageError
from tenure.maintenance.relay import Relay
from tenure.outbox.outbox import Outbox
from tenure.storage.connections import run_now
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
    """Relay until nothing waits."""
    relay, outbox = Relay(app.runtime()), box(app)
    while await outbox.queues():
        await relay.turn()


def box(app: Tenure) -> Outbox:
    assert app.outbox is not None
    return app.outbox


async def test_a_commit_relays_its_calls_and_a_rollback_none(kind: str, outbox_url: str, redis_url: str) -> None:
    app = Tenure(redis_url, outbox=outbox_url)

    @app.task
    async def charge(order: str) -> None: ...

    async with app:
        async with KINDS[kind][1](outbox_url) as begin:

            async def enqueue(transaction: Transaction, name: str) -> None:
                job = await charge.options(tx=transaction.tx, id=name).enqueue(name)
                assert job.made == "pending"

            committed = await play(begin, enqueue)

        assert await ids(app) == []
        await relayed(app)
        assert len(committed) > 20
        assert sorted(await ids(app)) == sorted(committed)
        state = await box(app).state()
        assert (state.waiting, state.refused, state.oldest) == (0, 0, 0.0)


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


async def test_connections_to_other_databases_and_without_a_transaction_are_refused(
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
