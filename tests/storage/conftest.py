"""Fixtures for the tests of the Redis storage, in addition to the servers."""

from collections.abc import AsyncIterator, Callable
from random import Random

import pytest

from tenure.storage.redis.address import read
from tenure.storage.redis.connections import Connections


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], Connections]]:
    made: list[Connections] = []

    def connected(url: str) -> Connections:
        made.append(Connections(read(url), rng=Random(1)))
        return made[-1]

    yield connected
    for job in made:
        await job.close()
