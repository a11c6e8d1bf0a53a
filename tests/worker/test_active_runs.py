"""The runs that a worker holds, and that nothing is left of them once it lets go."""

import gc
import weakref

import pytest
from msgspec import structs

from tenure.core.lease import Lease
from tenure.worker.active_runs import ActiveRun, ActiveRuns
from tenure.worker.scoreboard import Scoreboard
from tests.core.cases import active


@pytest.mark.parametrize("watched", [False, True])
def test_a_run_that_was_let_go_of_is_freed_without_the_garbage_collector(watched: bool) -> None:
    # With it goes its task, and with a task that the collector frees a call of Python code, wherever that happens to
    # run: in the middle of `ast.parse`, say, which then takes what another thread does meanwhile for its own.
    scoreboard = Scoreboard.new(1) if watched else None
    active_runs = ActiveRuns(scoreboard)
    held = ActiveRun(Lease(structs.replace(active(), fence=7)))
    active_runs.add(held)
    held.signs.sign(1.0)
    seen = weakref.ref(held)
    gc.disable()
    try:
        active_runs.drop(held.key)
        del held

        assert seen() is None
    finally:
        gc.enable()
        if scoreboard is not None:
            scoreboard.close()
