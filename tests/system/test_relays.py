"""Each committed call of an outbox arrives once, although relays are killed and paused at any point."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tenure import Tenure
from tenure.core.job import Owner
from tenure.maintenance.relay import Relay
from tenure.outbox.outbox import Outbox
from tenure.storage.protocol import ClaimRequest, DeleteJob, Storage
from tenure_testing.conformance.helpers import settled
from tests.flow.transactions import KINDS

OWNER = Owner("00000000000a11ce", "a test")
QUEUES = ("mail", "reports")
TARGETS = ("redis", "cluster", "sqlite", "postgres")
DATABASES = {"postgresql": "psycopg", "sqlite": "sqlite3"}
KILLS = (
    ("read", 1),
    ("received", 1),
    ("received", 1),
    # The first step deletes the calls of the latest batch again.
    ("settled", 1),
    ("settled", 2),
    ("received", 2),
    ("read", 2),
)


@pytest.fixture
def urls(tmp_path: Path, redis_url: str, cluster_url: str, postgres_urls: Callable[[], str]) -> dict[str, str]:
    """Return the address of an empty storage of each kind, and of an empty outbox of each kind."""
    return {
        "redis": redis_url,
        "cluster": f"{cluster_url}&partitions=3",
        "sqlite": f"sqlite:///{tmp_path}/queue.db",
        "postgres": postgres_urls(),
        "outbox in postgresql": postgres_urls(),
        "outbox in sqlite": f"sqlite:///{tmp_path}/shop.db",
    }


def make_app(url: str, outbox_url: str) -> Tenure:
    app = Tenure(url, outbox=outbox_url)
    for queue in QUEUES:

        @app.task(name=queue, queue=queue)
        async def handle(number: int) -> None: ...

    return app


def box(app: Tenure) -> Outbox:
    assert app.outbox is not None
    return app.outbox


async def committed(app: Tenure, outbox_url: str, *, seed: int, transactions: int, pause: float = 0.0) -> list[str]:
    """Run transactions that end at random; return the ids of the calls that were committed."""
    dice, ids = Random(seed), list[str]()
    async with KINDS[DATABASES[outbox_url.partition(":")[0]]][1](outbox_url) as begin:
        for number in range(transactions):
            async with begin() as transaction:
                names = [f"{seed}-{number}-{call}" for call in range(dice.randint(1, 5))]
                for name in names:
                    task = app.tasks[dice.choice(QUEUES)]
                    await task.options(tx=transaction.tx, id=name).enqueue(number)
                if dice.random() < 0.8:
                    await transaction.commit()
                    ids += names
                else:
                    await transaction.rollback()
            await asyncio.sleep(pause)
    return ids


async def produced(url: str, outbox_url: str) -> list[str]:
    async with make_app(url, outbox_url) as app:
        return await committed(app, outbox_url, seed=2, transactions=800, pause=0.005)


async def worked(storage: Storage, *, room: int = 10_000) -> list[str]:
    """Run up to `room` waiting jobs, and delete their records, as retention does; return their ids."""
    ran: list[str] = []
    while len(ran) < room:
        answer = await storage.exchange(OWNER, order=ClaimRequest(QUEUES, min(100, room - len(ran))))
        if not answer.leases:
            break
        await storage.exchange(OWNER, [settled(lease) for lease in answer.leases])
        await storage.revise([DeleteJob(lease.ref) for lease in answer.leases])
        ran += [lease.ref.id for lease in answer.leases]
    return ran


async def drained(app: Tenure) -> None:
    relay = Relay(app.runtime())
    async with asyncio.timeout(60):
        while await box(app).queues():  # noqa: ASYNC110  # other processes fill and empty it
            await asyncio.sleep(min(0.1, await relay.turn()))


def process(url: str, outbox_url: str, *step: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.system.relay_script", url, outbox_url, *step])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("database", sorted(DATABASES))
async def test_a_relay_killed_after_each_step_loses_and_doubles_nothing(
    urls: dict[str, str], target: str, database: str
) -> None:
    url, outbox_url = urls[target], urls[f"outbox in {database}"]
    async with make_app(url, outbox_url) as app:
        calls = await committed(app, outbox_url, seed=1, transactions=400)
        ran: list[str] = []
        for step, times in KILLS:
            dead = process(url, outbox_url, step, str(times))
            assert await asyncio.to_thread(dead.wait, 60) == -signal.SIGKILL, (step, times)
            # The jobs that have arrived run, and their records are deleted.
            ran += await worked(app.storage)
        assert 0 < len(ran) < len(calls)
        await drained(app)
        ran += await worked(app.storage)
        assert sorted(ran) == sorted(calls)


@pytest.mark.parametrize("target", ["redis", "postgres"])
@pytest.mark.parametrize("database", sorted(DATABASES))
async def test_relays_killed_and_paused_at_random_lose_and_double_nothing(
    urls: dict[str, str], target: str, database: str
) -> None:
    url, outbox_url = urls[target], urls[f"outbox in {database}"]
    dice = Random(7)
    async with make_app(url, outbox_url) as app:
        # In a separate thread: it may wait for the lock of a file that a paused relay holds.
        producing = asyncio.create_task(asyncio.to_thread(asyncio.run, produced(url, outbox_url)))
        relays = [process(url, outbox_url) for _ in range(3)]
        ran: list[str] = []
        kills = pauses = 0
        try:
            while not producing.done() or kills < 12:
                await asyncio.sleep(dice.uniform(0.05, 0.6))
                ran += await worked(app.storage)
                number = dice.randrange(len(relays))
                if dice.random() < 0.4:
                    os.kill(relays[number].pid, signal.SIGSTOP)
                    await asyncio.sleep(dice.uniform(0.1, 1.0))
                    ran += await worked(app.storage)
                    os.kill(relays[number].pid, signal.SIGCONT)
                    pauses += 1
                else:
                    relays[number].kill()
                    await asyncio.to_thread(relays[number].wait, 10)
                    relays[number] = process(url, outbox_url)
                    kills += 1
            calls = await producing
            await drained(app)
        finally:
            for relay in relays:
                relay.kill()
                relay.wait(10)
        ran += await worked(app.storage)
        assert sorted(ran) == sorted(calls)
        assert pauses > 0
