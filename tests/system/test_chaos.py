"""A short act of the chaos: real processes are struck, and the audit finds nothing; the long one is `make chaos`."""

import sys

import pytest

from holdfast.clock import SystemClock
from holdfast.options import Timing
from holdfast.testing.chaos.run import Act, play

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc"),
]


async def test_nothing_is_lost_and_nothing_runs_twice_untold_whatever_strikes_a_crew_on_sqlite() -> None:
    # This seed begins with a kill of all workers in a commit and a stop of a host.
    act = Act(name="quick", storage="sqlite", timing=Timing.fast(), seconds=8, seed=1)
    said: list[str] = []

    outcome = await play(act, clock=SystemClock(), say=said.append)

    wrong = {check.name: check.examples for check in outcome.finding.checks if not check.holds}
    assert not wrong, (said, outcome.stderr)
    assert outcome.finding.jobs["completed"] > 0
