"""The order of the cells: in rounds, so that other load on the machine affects all of them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median

from benchmarks.peers.cells import CELLS, Cell
from benchmarks.peers.results import Sample

LATER = {"latency_loaded": ("process_100", "enqueue_callers")}
"""The figures that must be known before a cell can be measured."""

Turn = tuple[str, Cell]

TOGETHER = 6
"""How many of the cells that mostly wait run side by side."""


def chosen(names: Sequence[str]) -> list[Cell]:
    """Return the cells of these names, and those that they need; all for no name.

    Raises:
            ValueError: a name is not that of a cell.
    """
    known = {cell.name: cell for cell in CELLS}
    if unknown := set(names) - set(known):
        raise ValueError(f"unknown cell {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    wanted = {needed for name in names for needed in (name, *LATER.get(name, ()))} or set(known)
    return [cell for cell in CELLS if cell.name in wanted]


def turns(peers: Mapping[str, Sequence[str]], cells: Sequence[Cell], *, number: int, seed: int) -> list[Turn]:
    """Return the turns of one round, numbered from 1, in an order that only the seed and the number decide.

    `peers`: each with the cells that it is measured in; none for all of them.
    Cells that need figures of others come after all of them; cells that mostly wait come last, to run side by side.
    """
    due = [
        (peer, cell)
        for peer, only in peers.items()
        for cell in cells
        if number <= cell.rounds and (not only or cell.name in only)
    ]
    Random(f"{seed} {number}").shuffle(due)
    return sorted(due, key=lambda turn: (not turn[1].alone, turn[1].name in LATER))


def expected(due: Sequence[Turn], samples: Sequence[Sample]) -> float:
    """Return how many seconds these turns will take by the times of their cells before; unknown cells take none."""
    took = defaultdict[Turn, list[float]](list)
    cells = {cell.name: cell for _, cell in due}
    for sample in samples:
        if sample.cell in cells:
            took[sample.peer, cells[sample.cell]].append(sample.took)
    return sum(median(took[turn]) / (1 if turn[1].alone else TOGETHER) for turn in due if turn in took)
