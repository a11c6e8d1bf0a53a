"""The suite that every storage passes, ours and yours.

Subclass it in a test module of your own and give it one fixture, an opened storage that reads the suite's clock:

    class TestYourStorage(StorageConformance):
        @pytest.fixture
        async def storage(self, clock: ManualClock) -> AsyncIterator[Storage]:
            storage = YourStorage(clock=clock)
            await storage.open()
            yield storage
            await storage.close()

It needs pytest and pytest-asyncio. Register its markers in your configuration: `statement` carries the numbers of the
statements that a test holds a storage to, `fault` the names of the faults that it shows a storage not to have.
"""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{part.name}" for part in iter_modules(__path__)))

from tenure.testing.conformance.suite import StorageConformance  # noqa: E402 - a rewrite is ordered before the import

__all__ = ["StorageConformance"]
