"""The memory storage passes the suite."""

from collections.abc import AsyncIterator

import pytest

from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import Storage
from tenure.testing import ManualClock
from tenure_testing.conformance import FlowsConformance, StorageConformance


class TestMemory(StorageConformance, FlowsConformance):
    @pytest.fixture
    async def storage(self, clock: ManualClock) -> AsyncIterator[Storage]:
        storage = MemoryStorage(clock=clock)
        await storage.open()
        yield storage
        await storage.close()
