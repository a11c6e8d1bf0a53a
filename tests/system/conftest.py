"""Fixtures of the system tests: fleets of real worker processes."""

import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.system.groups import can_be_made
from tests.system.worker_fleet import WorkerFleet

# A shell starts background processes with some signals ignored. A worker keeps ignoring them, and these tests send it
# such signals.
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests in which processes are killed for memory where that cannot be done: a skip would fail CI."""
    dropped = [item for item in items if item.get_closest_marker("memory") is not None and not can_be_made()]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report which tests were not run because a control group cannot be created."""
    if not can_be_made():
        terminalreporter.line("NOT TESTED: a real kill for memory (no control group can be made here)", red=True)


@pytest.fixture
async def make_fleet(tmp_path: Path) -> AsyncIterator[Callable[..., WorkerFleet]]:
    """Return a function that makes worker fleets; their processes end with the test."""
    fleets: list[WorkerFleet] = []

    def make(**settings: str) -> WorkerFleet:
        fleets.append(WorkerFleet(tmp_path, **settings))
        return fleets[-1]

    yield make
    for fleet in fleets:
        await fleet.close()
