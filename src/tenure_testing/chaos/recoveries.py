"""The recoveries of a chaos test: which fault lost each run, how long its recovery took, and its bound."""

from collections.abc import Iterable

from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.events import JobStalled
from tenure.core.job import RunRecord
from tenure_testing.chaos.evidence import EvidenceIndex
from tenure_testing.chaos.records import Deed

IN_FLIGHT = 2 * SECOND
"""The longest time from a fault of a process until its last claim reaches the storage."""

RESUME = 5 * SECOND
"""The longest time from the end of an outage until the next run begins."""


class ChaosRecovery(Struct, frozen=True, kw_only=True):
    """A run that was taken from a lost process: the cause, the time it took, and its bound, in microseconds.

    `clear`: there was no other fault meanwhile. `seen`: the supervisor saw the death.
    """

    job: str
    run: int
    cause: str
    reason: str
    delay: int
    bound: int
    clear: bool
    seen: bool


def recoveries(case: EvidenceIndex) -> tuple[list[ChaosRecovery], list[str]]:
    """Return the recoveries with their causes, and a line for each run that was taken without a cause."""
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


def _recovery(case: EvidenceIndex, event: JobStalled, run: RunRecord) -> ChaosRecovery | None:
    bounds, claimed, taken = case.evidence.bounds, case.at(run.start), case.recorded_at(event)
    # Another reaper had reclaimed the run before. By then, at the latest, the worker had lost it.
    again = bool(event.owner) and event.owner != run.owner
    heard = taken - round(event.silent_for * SECOND)
    cause = _cause(case, event, run.pid, claimed, heard if again else taken, again=again)
    if cause is None:
        return None
    # A process that was cut off may have renewed now and then. Its lease counts from the last renewal or from the
    # claim.
    since = max(cause.at, heard) if cause.effect == "outage" and cause.pids and not again else max(cause.at, claimed)
    others = [deed for deed in case.evidence.deeds if deed is not cause and deed.at <= taken and _over(deed) >= since]
    # An outage of another host does not matter here, unless that host leads.
    outages = [deed for deed in (*others, cause) if deed.effect == "outage" and not deed.pids]
    # Its own supervisor must have run meanwhile, to see the death and to recover the jobs of the dead process.
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


def _cause(case: EvidenceIndex, event: JobStalled, pid: int, claimed: int, taken: int, *, again: bool) -> Deed | None:
    """Return the fault by which a process lost its run."""
    near = [deed for deed in case.evidence.deeds if deed.strikes(pid) and deed.overlaps(claimed - IN_FLIGHT, taken)]
    deaths = [deed for deed in near if deed.effect == "death" and deed.at >= claimed - IN_FLIGHT]
    if deaths and event.reason == "process_died" and not again:
        return deaths[0]
    end = min([taken, *(deed.at for deed in deaths)])
    # A fault that ended well before is not the cause, because the worker had renewed its lease again.
    holds = [
        deed
        for deed in near
        if deed.overlaps(claimed, taken)
        and (again or deed.until is None or deed.until >= end - case.evidence.bounds.tail)
    ]
    pauses = [deed for deed in holds if deed.effect == "pause"]
    outages = [deed for deed in holds if deed.effect == "outage"]
    # A worker that is asked to stop puts back its jobs, unless it cannot reach the storage.
    leaves = [deed for deed in near if deed.effect == "leave" and any(map(deed.during, case.outages))]
    # The run never began: its worker did not learn that the claim had succeeded, and lets the lease expire.
    unheard = [
        deed
        for deed in near
        if (event.id, event.run) not in case.began and deed.overlaps(claimed - IN_FLIGHT, claimed + IN_FLIGHT)
    ]
    for kind in ([*deaths, *pauses], leaves, outages, unheard):
        if kind:
            return min(kind, key=lambda deed: deed.at)
    return None


def resumed(case: EvidenceIndex) -> tuple[list[int], list[str]]:
    """Return how long after each outage a run began, and a line for each time that this took too long.

    A late start is excused if another outage follows, or if faults hit all hosts.
    """
    starts = sorted(line.at for line in case.starts)
    found: list[int] = []
    wrong: list[str] = []
    for deed in case.outages:
        if deed.pids or deed.until is None or deed.until > case.evidence.ended - RESUME:
            continue
        window = [
            item for item in case.evidence.deeds if item is not deed and item.overlaps(deed.until, deed.until + RESUME)
        ]
        idle = {fault.where for fault in window if fault.effect != "none"}
        struck = any(fault.effect == "outage" and not fault.pids for fault in window) or idle.issuperset(
            case.evidence.hosts
        )
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
    """Return for how long any of these faults lasted in this period."""
    total, reached = 0, since
    for deed in sorted(deeds, key=lambda fault: fault.at):
        end = until if deed.until is None else min(deed.until, until)
        total += max(0, end - max(reached, deed.at))
        reached = max(reached, end)
    return total
