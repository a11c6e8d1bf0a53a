"""The conformance suite, which every storage must pass: the built-in storages and those of other packages.

To use it, subclass it in a test module and define one fixture, an opened storage that reads the suite's clock:

    class TestYourStorage(StorageConformance, FlowsConformance):
        @pytest.fixture
        async def storage(self, clock: ManualClock) -> AsyncIterator[Storage]:
            storage = YourStorage(clock=clock)
            await storage.open()
            yield storage
            await storage.close()

A storage that does not keep flows takes `NoFlowsConformance` instead of `FlowsConformance`.

The suite needs pytest and pytest-asyncio. Register its markers in your configuration. The marker `statement` carries
the numbers of the statements that a test checks. The marker `fault` carries the names of the faults that a test rules
out.
"""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{part.name}" for part in iter_modules(__path__)))

# A rewrite is ordered before these imports.
from tenure_testing.conformance.flows import NoFlowsConformance  # noqa: E402
from tenure_testing.conformance.suite import FlowsConformance, StorageConformance  # noqa: E402

__all__ = ["FlowsConformance", "NoFlowsConformance", "StorageConformance"]
