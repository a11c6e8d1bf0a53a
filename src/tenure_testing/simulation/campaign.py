"""Runs many simulated worlds on several processes, and returns their figures in the order of their seeds."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

from tenure.storage.memory.model import Model
from tenure_testing.simulation.figures import Failure, WorldFigures
from tenure_testing.simulation.plan import SCENARIOS
from tenure_testing.simulation.violation import Violation
from tenure_testing.simulation.world import World

T = TypeVar("T")
R = TypeVar("R")

BATCH = 10
"""How many worlds a process takes at once."""


def made(seed: int, *, scenario: str = "", without: Sequence[str] = (), model: type[Model] = Model) -> World:
    """Return a world that is drawn from its seed, or a predefined one."""
    return World(seed, SCENARIOS[scenario] if scenario else None, model=model, name=scenario, without=without)


def run_world(seed: int, *, scenario: str = "", without: Sequence[str] = ()) -> WorldFigures:
    """Run one world and return its figures, including a violation."""
    world = made(seed, scenario=scenario, without=without)
    try:
        world.run()
    except Violation as violation:
        return WorldFigures.of(world, violation)
    return WorldFigures.of(world)


def run_worlds(
    seeds: Sequence[int], *, scenario: str = "", without: Sequence[str] = (), processes: int = 0
) -> Iterator[WorldFigures]:
    """Run all these worlds and yield the figures of each, in order."""
    return spread(partial(run_world, scenario=scenario, without=tuple(without)), seeds, processes, batch=BATCH)


def spread(work: Callable[[T], R], items: Iterable[T], processes: int = 0, *, batch: int = 1) -> Iterator[R]:
    """Call a function for each item on several processes (0: one per core), and yield the results in order."""
    if processes == 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(processes or os.cpu_count(), get_context("spawn"), initializer=_log_nothing) as pool:
        yield from pool.map(work, items, chunksize=batch)


def _log_nothing() -> None:
    """Disable logging in a process of worlds: their jobs fail on purpose, tens of thousands of times."""
    logging.disable(logging.CRITICAL)


def processor_seconds(processes: int) -> float:
    """Return how many seconds the work so far would have taken with a core for each process."""
    return sum(os.times()[:4]) / (processes or os.cpu_count() or 1)


def shrunk(failure: Failure, *, without: Sequence[str] = (), model: type[Model] = Model) -> World:
    """Return the failed world without the kinds of fault that its failure does not need, tried one by one."""

    def world(left_out: Sequence[str]) -> World:
        return made(failure.seed, scenario=failure.scenario, without=left_out, model=model)

    left_out = tuple(without)
    for kind in world(left_out).plan.kinds:
        fewer = (*left_out, kind)
        try:
            world(fewer).run()
        except Violation as violation:
            if violation.invariant == failure.invariant:
                left_out = fewer
    return world(left_out)
