"""The PostgreSQL storage passes the suite."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tenure.clock import Clock
from tenure.core.events import JobRepaired
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import Storage
from tenure.testing import ManualClock
from tenure_testing.conformance import NoFlowsConformance, StorageConformance
from tenure_testing.conformance.helpers import events_of
from tests.postgres_servers import SharedSchema


class ClockOfTest:
    """The clock of the current test."""

    def __init__(self) -> None:
        self.current: Clock = ManualClock()

    def now(self) -> int:
        return self.current.now()

    def uptime(self) -> float:
        return self.current.uptime()


class OneStorage:
    """A storage for all tests: its connections stay open, which saves each test a third of a second."""

    def __init__(self, schema: SharedSchema, url: str | None = None) -> None:
        """`url`: another way to the schema."""
        self.schema = schema
        self.clock = ClockOfTest()
        self.storage = PostgresStorage(read(url or schema.url), clock=self.clock)

    async def begin(self, clock: Clock) -> PostgresStorage:
        """Reset the storage, and give it the clock of a test."""
        self.clock.current = clock
        self.schema.empty()
        self.storage.claims.lanes.clear()
        await self.storage.open()
        return self.storage


@pytest.fixture(scope="module")
def one(shared_schema: SharedSchema) -> Iterator[OneStorage]:
    """Return the storage of all tests."""
    one = OneStorage(shared_schema)
    yield one
    asyncio.run(one.storage.close())


@pytest.mark.postgres
class TestPostgres(StorageConformance, NoFlowsConformance):
    @pytest.fixture
    async def storage(self, clock: ManualClock, one: OneStorage) -> AsyncIterator[Storage]:
        storage = await one.begin(clock)
        yield storage
        assert await events_of(storage, JobRepaired) == []
