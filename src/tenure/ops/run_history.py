"""Explains why a job ran more than once: its run history in plain words."""

from collections.abc import Sequence
from itertools import groupby

from tenure.core.job import JobRecord, RunRecord
from tenure.core.lifecycle import State
from tenure.core.postmortem import first_line

_LOST = {
    "process_died": "its process died",
    "lease_expired": "its worker was silent for longer than the lease",
    "no_progress": "it gave no sign of progress in time",
    "loop_blocked": "its event loop was blocked",
}

_HANDED_BACK = {
    "shutdown": "was handed back by a worker that shut down",
    "prefetch": "was handed back before it began",
    "snoozed": "asked to run later",
    "worker_died": "was handed back because its worker died",
    "worker_failed": "was handed back because its worker failed",
    "unreachable": "was stopped because its worker could not reach the storage",
    "unknown_task": "was claimed by a worker that does not know the task",
    "newer_payload": "was claimed by a worker that is too old for its arguments",
}


def why_again(job: JobRecord, runs: Sequence[RunRecord]) -> str | None:
    """Explain in one line of text why a job ran more than once; return None if it did not."""
    if job.starts < 2 or not runs:
        return None
    parts = [_several(list(same), fate) for fate, same in groupby(runs, _fate)]
    if runs[0].number > 1:
        parts.insert(0, f"the first {runs[0].number - 1} runs are no longer kept")
    causes = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])}, and {parts[-1]}"
    by_hand = "; in between it was redriven by hand" if _redriven(job, runs[-1]) else ""
    return f"It started {job.starts} times: {causes}{by_hand}."


def _several(runs: list[RunRecord], fate: str) -> str:
    first, last = runs[0].number, runs[-1].number
    if first == last:
        return f"run {first} {fate}"
    return f"runs {first} {'and' if last == first + 1 else 'to'} {last} each {fate}"


def _fate(run: RunRecord) -> str:
    match run.ended:
        case None:
            return "is still going"
        case "completed":
            return "completed"
        case "stalled":
            return f"was lost because {first_line(run.detail) if run.detail else _lost(run.reason)}"
        case "raised":
            return f"raised {run.reason}"
        case "timed_out":
            return "passed its time limit"
        case "rejected":
            return "was rejected by its handler"
        case "undecodable":
            return f"could not be read or its result not be kept ({run.reason})"
        case "released":
            return _HANDED_BACK.get(run.reason or "", f"was handed back ({run.reason})")
        case "cancelled":
            return "was cancelled"
        case other:
            return f"ended as {other}"


def _lost(reason: str | None) -> str:
    return _LOST.get(reason or "", reason or "of a stall")


def _redriven(job: JobRecord, last: RunRecord) -> bool:
    # Each start is charged to a budget, except the last start of a job that runs, is completed, or was cancelled while
    # it ran. A redrive resets the budgets and keeps the number of starts.
    free = job.state in (State.ACTIVE, State.COMPLETED) or (job.state is State.CANCELLED and last.ended == "cancelled")
    return job.starts - job.failures - job.stalls - job.releases > int(free)
