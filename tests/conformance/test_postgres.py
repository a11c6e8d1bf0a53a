"""The PostgreSQL storage passes the suite."""

from collections.abc import AsyncIterator

import pytest

from tenure.core.events import JobRepaired
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import Storage
from tenure.testing import ManualClock
from tenure_testing.conformance import StorageConformance
from tenure_testing.conformance.helpers import events_of


@pytest.mark.postgres
class TestPostgres(StorageConformance):
    @pytest.fixture
    async def storage(self, clock: ManualClock, empty_schema: str) -> AsyncIterator[Storage]:
        storage = PostgresStorage(read(empty_schema), clock=clock)
        await storage.open()
        yield storage
        assert await events_of(storage, JobRepaired) == []
        await storage.close()
