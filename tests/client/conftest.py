"""An app on each storage, in real time, for calls that need no worker."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure import Tenure

STORAGES = [
    "memory",
    "sqlite",
    pytest.param("redis", marks=pytest.mark.redis),
    pytest.param("cluster", marks=[pytest.mark.redis, pytest.mark.cluster]),
]


@pytest.fixture(params=STORAGES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty storage."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'queue.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def app(url: str) -> AsyncIterator[Tenure]:
    """Return an app on an empty storage."""
    async with Tenure(url) as app:
        yield app
