"""Checks that no concurrency key of a simulated world has more handlers at work than its limit allows (I6)."""

from collections.abc import Iterable, Iterator, Sequence

from tenure_testing.simulation.job_history import RunHistory
from tenure_testing.simulation.workload import Entry

HandlerRun = tuple[Entry, RunHistory]
"""What a handler did in a run, and what the checker knows of the run."""


def overfull(runs: Iterable[HandlerRun]) -> Iterator[tuple[tuple[str, str], Sequence[Entry]]]:
    """Yield each key (queue and name) of which a handler began while too many were at work, with all of these.

    The latest limit of a key holds, for the claims from then on. All but the last claimed run of those at work were
    active when the last one was claimed, so the limit in force at that claim counts. A job that set a limit counts even
    if it never began or was deleted.
    """
    by_key: dict[tuple[str, str], list[HandlerRun]] = {}
    for entry, run in runs:
        for name in run.limits:
            by_key.setdefault((entry.ref.queue, name), []).append((entry, run))
    for key, holders in by_key.items():
        for second, _ in holders:
            at_work = [item for item in holders if item[0] is second or item[0].began <= second.began < item[0].ended]
            if len(at_work) > max(at_work, key=_place)[1].limits[key[1]]:
                yield key, [entry for entry, _ in at_work]


def _place(item: HandlerRun) -> int:
    return item[1].place
