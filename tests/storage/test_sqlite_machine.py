"""Hypothesis makes the same calls to the model and SQLite, with old fences too: answers, records and events agree.

`HYPOTHESIS_PROFILE=thorough make test ARGS=tests/storage/test_sqlite_machine.py` runs longer, with new calls each time.
"""

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import Storage
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure.testing import ManualClock
from tenure_testing.conformance.state_machine import equals_the_model
from tenure_testing.mutants import MUTANTS
from tests.storage.profiles import BRIEF, PROFILES

pytestmark = pytest.mark.thorough


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_answer_and_every_state_is_the_models(tmp_path: Path) -> None:
    numbers = count()

    def make(clock: ManualClock) -> Storage:
        return SQLiteStorage(tmp_path / f"{next(numbers)}.db", clock=clock, durability="fast")

    equals_the_model(make, PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "brief")])


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", ["no_fence", "no_owner", "no_state_guard", "no_duplicate_rule", "reclaim_keeps_fence", "run_left_open"]
)
def test_the_state_machine_detects_mutants_of_the_model(broken: str) -> None:
    def make(clock: ManualClock) -> Storage:
        storage = MemoryStorage(clock=clock)
        storage.model = MUTANTS[broken].model(clock)
        return storage

    with pytest.raises(AssertionError):
        equals_the_model(make, settings(BRIEF, max_examples=500, phases=[Phase.generate], report_multiple_bugs=False))


def test_nothing_but_the_machine_needs_hypothesis() -> None:
    code = (
        "import sys\n"
        "sys.modules['hypothesis'] = None\n"
        "import tenure_testing.conformance\n"
        "try:\n"
        "    import tenure_testing.conformance.state_machine\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert "pip install hypothesis" in run.stdout
