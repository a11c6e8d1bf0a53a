"""What was taken from whom in a chaos: by which deed it was lost, how long that took, and how long it might."""

from collections.abc import Iterable

from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.events import JobStalled
from tenure.core.job import RunRecord
from tenure.testing.chaos.case import Case
from tenure.testing.chaos.history import Deed

IN_FLIGHT = 2 * SECOND
"""A claim may reach the storage so long after its process was struck."""

RESUME = 5 * SECOND
"""Within so long of an outage's end the next run begins."""


class ChaosRecovery(Struct, frozen=True, kw_only=True):
    """A run that was taken from whoever had lost it: for what cause, after how long, and what was allowed.

    `clear`: nothing else was wrong meanwhile. `seen`: the supervisor saw the death. In microseconds.
    """

    job: str
    run: int
    cause: str
    reason: str
    delay: int
    bound: int
    clear: bool
    seen: bool


def recoveries(case: Case) -> tuple[list[ChaosRecovery], list[str]]:
    """Return the recoveries with their causes, and a line for each run that was taken without one."""
    found: list[ChaosRecovery] = []
    wrong: list[str] = []
    for event in case.stalled:
        run = case.runs.get(event.id, {}).get(event.run)
        if run is None:
            continue
        recovery = _recovery(case, event, run)
        if recovery is None:
            wrong.append(
                f"run {event.run} of job {event.id} was taken from process {run.pid} ({event.reason}, silent for "
                f"{event.silent_for:.1f} s), and nothing had been done to that"
            )
        else:
            found.append(recovery)
    return found, wrong


def _recovery(case: Case, event: JobStalled, run: RunRecord) -> ChaosRecovery | None:
    bounds, claimed, taken = case.evidence.bounds, case.at(run.start), case.told(event)
    # Taken from a reaper that had taken it before: the worker had lost it by then at the latest.
    again = bool(event.owner) and event.owner != run.owner
    heard = taken - round(event.silent_for * SECOND)
    cause = _cause(case, event, run.pid, claimed, heard if again else taken, again=again)
    if cause is None:
        return None
    # Who was cut off may have been heard now and then; its lease counts from the last time, at first the claim.
    since = max(cause.at, heard) if cause.effect == "outage" and cause.pids and not again else max(cause.at, claimed)
    others = [deed for deed in case.evidence.deeds if deed is not cause and deed.at <= taken and _over(deed) >= since]
    # Where others were cut off that is their affair, unless one of them reaps.
    outages = [deed for deed in (*others, cause) if deed.effect == "outage" and not deed.pids]
    # Its own supervisor must have been there to see it, or to bury whom it had seen die.
    watchers = [deed for deed in others if deed.where == cause.where and deed.effect != "none"]
    reapers = sum(map(case.led, others)) + again
    dead = cause.effect == "death" and cause.alone and event.reason == "process_died" and not again
    seen = dead and not outages and not watchers
    bound = bounds.death
    if not seen:
        bound = bounds.silence + reapers * bounds.reaper
        bound += bounds.leave if cause.effect == "leave" else 0
        bound += _length(outages, since, taken) + bounds.outage if outages else 0
    return ChaosRecovery(
        job=event.id,
        run=event.run,
        cause=cause.kind,
        reason=event.reason,
        delay=max(0, taken - since),
        bound=bound,
        clear=not outages and not reapers and cause.effect != "leave",
        seen=seen,
    )


def _cause(case: Case, event: JobStalled, pid: int, claimed: int, taken: int, *, again: bool) -> Deed | None:
    """Return the deed by which a process lost its run."""
    near = [deed for deed in case.evidence.deeds if deed.strikes(pid) and deed.overlaps(claimed - IN_FLIGHT, taken)]
    deaths = [deed for deed in near if deed.effect == "death" and deed.at >= claimed - IN_FLIGHT]
    if deaths and event.reason == "process_died" and not again:
        return deaths[0]
    end = min([taken, *(deed.at for deed in deaths)])
    # One that had ended well before was not what the run was lost by: its worker had been heard again.
    holds = [
        deed
        for deed in near
        if deed.overlaps(claimed, taken)
        and (again or deed.until is None or deed.until >= end - case.evidence.bounds.tail)
    ]
    pauses = [deed for deed in holds if deed.effect == "pause"]
    outages = [deed for deed in holds if deed.effect == "outage"]
    # Who is told to leave hands back what it holds, unless it cannot reach the storage.
    leaves = [deed for deed in near if deed.effect == "leave" and any(map(deed.during, case.outages))]
    # A run that never began: its worker did not hear that the claim had gone through, and lets the lease run out.
    unheard = [
        deed
        for deed in near
        if (event.id, event.run) not in case.began and deed.overlaps(claimed - IN_FLIGHT, claimed + IN_FLIGHT)
    ]
    for kind in ([*deaths, *pauses], leaves, outages, unheard):
        if kind:
            return min(kind, key=lambda deed: deed.at)
    return None


def resumed(case: Case) -> tuple[list[int], list[str]]:
    """Return how long after each outage a run began, and a line for each time that it took too long.

    An outage that another follows, or something that is done to each host, excuses it.
    """
    starts = sorted(line.at for line in case.starts)
    found: list[int] = []
    wrong: list[str] = []
    for deed in case.outages:
        if deed.pids or deed.until is None or deed.until > case.evidence.ended - RESUME:
            continue
        window = [
            one for one in case.evidence.deeds if one is not deed and one.overlaps(deed.until, deed.until + RESUME)
        ]
        idle = {one.where for one in window if one.effect != "none"}
        struck = any(one.effect == "outage" and not one.pids for one in window) or idle.issuperset(case.evidence.hosts)
        after = next((at - deed.until for at in starts if at >= deed.until), None)
        if after is None or (struck and after > RESUME):
            continue
        found.append(after)
        if after > RESUME:
            wrong.append(f"after {deed.kind} no run began for {after / SECOND:.2f} s")
    return found, wrong


def _over(deed: Deed) -> int:
    return deed.at if deed.until is None else deed.until


def _length(deeds: Iterable[Deed], since: int, until: int) -> int:
    """Return for how long any of these lasted between two instants."""
    total, reached = 0, since
    for deed in sorted(deeds, key=lambda one: one.at):
        end = until if deed.until is None else min(deed.until, until)
        total += max(0, end - max(reached, deed.at))
        reached = max(reached, end)
    return total
