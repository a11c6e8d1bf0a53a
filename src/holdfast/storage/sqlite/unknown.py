"""Unknown tasks in SQL: the jobs that are parked until a worker knows their task and version."""

from collections.abc import Mapping, Sequence

from holdfast.storage.protocol import (
    LOOK_LIMIT,
    UNKNOWN,
    UNKNOWN_LOOKS,
    UnknownTask,
    knows,
    task_of_place,
)
from holdfast.storage.sqlite.queries import query
from holdfast.storage.sqlite.step import Step

_PLACES = query("exchange", "places")
_FIRST_IN_LINE = query("exchange", "first_in_line")
_FIRST_PARKED = query("exchange", "first_parked")
_SINCE = query("survey", "since")

_END = UNKNOWN[:-1] + chr(ord(UNKNOWN[-1]) + 1)
"""The first name behind all that begin with `UNKNOWN`."""


def places(step: Step, queue: str) -> list[str]:
    """Return what jobs of a queue are parked under until a worker knows it, at most `LOOK_LIMIT` of these."""
    return _between(step, queue, UNKNOWN, _END)


def known_places(step: Step, queue: str, tasks: Mapping[str, int] | None) -> list[str]:
    """Return what jobs of a queue are parked under, as far as a caller knows the task and the version.

    Where there are very many places, each of the caller's tasks is looked up by itself.
    """
    found = places(step, queue)
    if len(found) == LOOK_LIMIT and tasks is not None:
        ranges = [(UNKNOWN + task + ":", UNKNOWN + task + ";") for task in tasks]
        found = sorted({name for first, end in ranges for name in _between(step, queue, first, end)})
    return [name for name in found if knows(tasks, *task_of_place(name))]


def first_seqs(step: Step, queue: str, known: Sequence[str], limit: int) -> list[int]:
    """Return the seqs of the first in line and under known places, in the order of their scores."""
    found = step.all(_FIRST_IN_LINE, (queue, limit))
    for name in known:
        found += step.all(_FIRST_PARKED, (queue, name, limit))
    return [seq for _, _, seq in sorted(found)[:limit]]


def survey(step: Step, queue: str) -> tuple[UnknownTask, ...]:
    """Return the unknown tasks of a queue, by task and version."""
    told: list[UnknownTask] = []
    for name in places(step, queue):
        row = step.one(_SINCE, (queue, name, UNKNOWN_LOOKS))
        if row is not None and row[0] is not None:
            told.append(UnknownTask(*task_of_place(name), max(0, step.now - row[0])))
    return tuple(told)


def _between(step: Step, queue: str, first: str, end: str) -> list[str]:
    asked = {"queue": queue, "from": first, "to": end, "limit": LOOK_LIMIT}
    return [name for (name,) in step.all(_PLACES, asked)]
