"""The memory storage passes the suite."""

from collections.abc import AsyncIterator

import pytest

from holdfast.storage.memory import MemoryStorage
from holdfast.storage.protocol import Storage
from holdfast.testing import ManualClock
from holdfast.testing.conformance import StorageConformance


class TestMemory(StorageConformance):
    @pytest.fixture
    async def storage(self, clock: ManualClock) -> AsyncIterator[Storage]:
        storage = MemoryStorage(clock=clock)
        await storage.open()
        yield storage
        await storage.close()
