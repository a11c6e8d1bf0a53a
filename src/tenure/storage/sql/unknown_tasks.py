"""Unknown tasks in SQL: the jobs that are parked until a worker knows their task and version."""

from collections.abc import Mapping, Sequence
from itertools import islice

from tenure.storage.protocol import (
    LOOK_LIMIT,
    PLACE_LIMIT,
    UNKNOWN,
    UNKNOWN_LOOKS,
    UnknownTask,
    knows,
    task_of_place,
    unknown_place,
)
from tenure.storage.sql.lists import json_names
from tenure.storage.sql.transaction import Transaction

_END = UNKNOWN[:-1] + chr(ord(UNKNOWN[-1]) + 1)
"""The first name after all names that begin with `UNKNOWN`."""

_NO_BOUND = 2**63 - 1
"""The highest possible score."""


def known_places(
    tx: Transaction, queue: str, tasks: Mapping[str, int] | None, most: int = PLACE_LIMIT
) -> tuple[list[str], bool]:
    """Return the names of unknown tasks that a queue's jobs are parked under and that a caller knows.

    At most `most` names are examined. If the queue has more, the caller's own names are looked up. If those are also
    more than `most`, each call examines another part of the queue's names, and the second value is True.
    """
    found = _between(tx, queue, UNKNOWN, _END, most + 1)
    more = len(found) > most
    if more and tasks is not None and sum(tasks.values()) <= most:
        names = [unknown_place(task, version) for task, newest in tasks.items() for version in range(1, newest + 1)]
        return [
            name for (name,) in tx.all("exchange.parking_names_of", {"names": json_names(names), "queue": queue})
        ], False
    if more and tasks is not None:
        first = next(islice(tasks, tx.now % len(tasks), None))
        found = _between(tx, queue, UNKNOWN + first, _END, most)
        found += _between(tx, queue, UNKNOWN, UNKNOWN + first, most - len(found))
    return [name for name in found[:most] if knows(tasks, *task_of_place(name))], more


def first_seqs(tx: Transaction, queue: str, known: Sequence[str], limit: int) -> list[int]:
    """Return the seqs of the first ready jobs and of jobs parked under known names, in the order of their scores."""
    found = tx.all("exchange.first_ready", {"queue": queue, "limit": limit})
    for score, id_, name in sorted(tx.all("exchange.heads", {"names": json_names(known), "queue": queue})):
        last = found[-1] if len(found) == limit else None
        if last is not None and (score, id_) > last[:2]:
            break
        bound = _NO_BOUND if last is None else last[0]
        found = sorted(
            found + tx.all("exchange.first_parked", {"queue": queue, "under": name, "score": bound, "limit": limit})
        )[:limit]
    return [seq for _, _, seq in found]


def survey(tx: Transaction, queue: str) -> tuple[UnknownTask, ...]:
    """Return the unknown tasks of a queue, by task and version."""
    unknown: list[UnknownTask] = []
    for name in _between(tx, queue, UNKNOWN, _END, LOOK_LIMIT):
        row = tx.one("survey.since", {"queue": queue, "under": name, "limit": UNKNOWN_LOOKS})
        if row is not None and row[0] is not None:
            unknown.append(UnknownTask(*task_of_place(name), max(0, tx.now - row[0])))
    return tuple(unknown)


def _between(tx: Transaction, queue: str, first: str, end: str, limit: int) -> list[str]:
    values = {"queue": queue, "first": first, "end": end, "limit": limit}
    return [name for (name,) in tx.all("exchange.parking_names", values)]
