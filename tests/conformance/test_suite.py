"""The suite itself is sound: no part hides a test of another, and it runs without our configuration."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tenure_testing.conformance import FlowsConformance, NoFlowsConformance, StorageConformance


class _Whole(StorageConformance, FlowsConformance, NoFlowsConformance):
    """All parts of the suite."""


def test_no_test_of_the_suite_hides_another() -> None:
    seen: dict[str, type] = {}
    for part in inspect.getmro(_Whole):
        for name in vars(part):
            if name.startswith("test_"):
                assert name not in seen, f"{name} is in {part.__name__} and in {seen[name].__name__}"
                seen[name] = part


def test_every_test_of_the_suite_is_a_coroutine() -> None:
    tests = [member for name, member in inspect.getmembers(_Whole) if name.startswith("test_")]

    assert tests
    assert all(inspect.iscoroutinefunction(test) for test in tests)


ELSEWHERE = """
import pytest_asyncio
from tenure.storage.memory.storage import MemoryStorage
from tenure_testing.conformance import FlowsConformance, StorageConformance


class TestElsewhere(StorageConformance, FlowsConformance):
    @pytest_asyncio.fixture
    async def storage(self, clock):
        storage = MemoryStorage(clock=clock)
        await storage.open()
        yield storage
        await storage.close()
"""


@pytest.mark.system
def test_a_storage_elsewhere_needs_no_configuration_of_ours(tmp_path: Path) -> None:
    (tmp_path / "test_elsewhere.py").write_text(ELSEWHERE)
    chosen = "claimed_by_one_worker_only or a_lease_settles_once"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "-k", chosen, "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(tenure.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout
