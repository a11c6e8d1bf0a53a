"""Hypothesis sends the same calls to the model and PostgreSQL, and replays old fences: answers and records are equal.

`HYPOTHESIS_PROFILE=thorough make test ARGS=tests/storage/test_postgres_machine.py` searches longer.
"""

import os

import pytest

from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import Storage
from tenure.testing import ManualClock
from tenure_testing.conformance.state_machine import equals_the_model
from tests.postgres_servers import SharedSchema
from tests.storage.profiles import PROFILES


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_answer_and_every_state_is_the_models(shared_schema: SharedSchema) -> None:
    def make(clock: ManualClock) -> Storage:
        shared_schema.empty()
        return PostgresStorage(read(shared_schema.url), clock=clock)

    equals_the_model(make, PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "brief")])
