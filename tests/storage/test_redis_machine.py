"""Hypothesis sends the same calls to the model and Redis, and replays old fences: answers, records, events are equal.

`HYPOTHESIS_PROFILE=thorough make test ARGS=tests/storage/test_redis_machine.py` searches longer.
"""

import os

import pytest

from tenure.storage.protocol import Storage
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tenure_testing.conformance.state_machine import equals_the_model
from tests.servers import RedisServer
from tests.storage.profiles import PROFILES


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_answer_and_every_state_is_the_models(redis_server: RedisServer) -> None:
    def make(clock: ManualClock) -> Storage:
        redis_server.command("FLUSHDB")
        return RedisStorage(read(redis_server.url), clock=clock)

    equals_the_model(make, PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "brief")])
