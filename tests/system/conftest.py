"""A farm of real processes for each test that asks for one."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.system.farm import Farm


@pytest.fixture
async def farm(tmp_path: Path) -> AsyncIterator[Callable[..., Farm]]:
    """Return what makes a farm; what it has started ends with the test."""
    farms: list[Farm] = []

    def make(**settings: str) -> Farm:
        farms.append(Farm(tmp_path, **settings))
        return farms[-1]

    yield make
    for one in farms:
        await one.close()
