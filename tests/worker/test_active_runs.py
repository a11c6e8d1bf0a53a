"""The runs that a worker holds; released ones leave nothing behind."""

import gc
import weakref

import pytest
from msgspec import structs

from tenure.core.lease import Lease
from tenure.worker.active_runs import ActiveRun, ActiveRuns
from tenure.worker.scoreboard import Scoreboard
from tests.core.cases import active


@pytest.mark.parametrize("watched", [False, True])
def test_a_released_run_is_freed_without_the_garbage_collector(watched: bool) -> None:
    # Its task is freed with it. If the collector frees a task, it calls Python code wherever it happens to run, for
    # example in the middle of `ast.parse`, which then takes another thread's activity for its own.
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
