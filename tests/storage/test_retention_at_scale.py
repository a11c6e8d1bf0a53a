"""A storage stays as large as its limits say, however many jobs complete at full speed, swept or not."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.clock import SECOND
from tenure.core.events import JobCompleted
from tenure.core.lifecycle import State
from tenure.core.retention import EVENTS_KEPT, KeepRule, RetentionRules
from tenure.storage.protocol import EVENTS_END, RenewRequest, Settings, Storage, Target
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure_testing.conformance.helpers import ALICE, QUEUE, claim, counted, enqueue, new_job, settled
from tests.servers import RedisServer, client_of

pytestmark = pytest.mark.slow

KEPT, JOBS, MORE = 1_000, 20_000, 1.05


async def completed(storage: Storage, first: int, jobs: int) -> None:
    for at in range(first, first + jobs, 100):
        await enqueue(storage, *(new_job(f"job-{number:06}") for number in range(at, at + 100)))
        while leases := await claim(storage):
            await storage.exchange(ALICE, [settled(lease) for lease in leases])


async def stays_as_large(storage: Storage, size: Callable[[], Awaitable[int]]) -> None:
    """Complete jobs without a sweep, and check that counts and size stay as they were after the first half."""
    keep = RetentionRules(completed=KeepRule(3600 * SECOND, KEPT))
    await storage.tune(Target("queue", QUEUE), Settings(retention=keep))
    # The log is full from the start.
    event = JobCompleted(queue=QUEUE, id="job-000000", task="t", run=1, attempt=1, duration=0.5, result=b"3")
    most = EVENTS_KEPT.count or 0
    for _ in range(most // 1_000 + 15):
        await storage.renew(RenewRequest(ALICE, events=(event,) * 1_000))
    await completed(storage, 0, JOBS // 2)
    before = await size()
    await completed(storage, JOBS // 2, JOBS // 2)
    events = (await storage.events(limit=0)).next, (await storage.events(EVENTS_END)).next

    assert KEPT <= (await counted(storage))[State.COMPLETED] <= 1.2 * KEPT
    assert most <= int(events[1]) - int(events[0]) <= 1.2 * most
    assert await size() <= MORE * before


@pytest.mark.redis
async def test_redis_takes_no_more_memory(redis_server: RedisServer) -> None:
    storage = RedisStorage(read(redis_server.url))

    async def memory() -> int:
        client: Any = client_of(redis_server.url)
        with client:
            return int(client.info("memory")["used_memory_dataset"])

    await stays_as_large(storage, memory)
    await storage.close()


async def test_a_sqlite_file_grows_no_more(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db", durability="fast")

    async def length() -> int:
        # All writes are in the file after a close.
        await storage.close()
        await storage.open()
        return os.stat(tmp_path / "jobs.db").st_size

    await storage.open()
    await stays_as_large(storage, length)
    await storage.close()
