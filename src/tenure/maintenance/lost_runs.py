"""Settles stalled runs, which were taken from workers that died or fell silent, like any other outcome.

stalled leases ──► their records (get, survey) ──► post-mortem ──► Stalled ──► decide ──► settle
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from random import Random
from typing import assert_never

from msgspec import Struct, field, structs

from tenure.core.decision import WORKER_DIED
from tenure.core.duration import duration_text
from tenure.core.events import JobStalled
from tenure.core.job import JobDetail, Owner, RecordedError, Ref, RunRecord, StallReason, unreadable_record
from tenure.core.outcome import Cancelled, Interrupted, Outcome, Raised, Stalled, StopCode, TimedOut, Unreadable
from tenure.core.postmortem import Ending, Workplace, post_mortem, ran_for, seconds, stall_cause
from tenure.core.settlement import Settlement, settlement
from tenure.metrics import STALLED, MetricsRegistry
from tenure.storage.protocol import SETTLE_LIMIT, StalledLease, Storage, WorkerSurvey

FREE_DEATHS = 3
"""The number of worker deaths in a row for which an isolated run is not charged; the next one is a stall."""

UNFINISHED_ERROR = "HandlerUnfinishedError"
UNFINISHED = "the call of the handler had ended, but its thread went on until its process ended"
"""The error of an exclusive run that kept its right for that reason."""

LOOK = 0.5
"""Seconds for all reads about stalled runs. The jobs must run again even if nothing can be read about them."""

READ_LIMIT = 20
"""The number of jobs that one call reads, with their logs."""

WRITE_LIMIT = 262_144
"""Characters of post-mortems that go into one call; the storage keeps each of them two or three times."""


class CrashEvidence(Struct, frozen=True):
    """What the supervisor knows of a worker process that died. Jobs are named by their references.

    `hung`: the process was killed because its event loop was blocked. `overdue`: jobs whose runs went on beyond their
    timeouts, so that the process was killed. `culprits`: jobs whose runs caused the death, if they are known; then the
    other jobs are not charged. `suspects`: jobs whose runs had begun in the process, and so may have ended it; empty if
    there were certainly none, None if that is not known. `apart`: jobs whose runs had isolated processes. `waiting`:
    jobs whose runs had certainly not begun. `blameless`: the process was killed for a reason that no run has caused.
    `dead_for`: how long the process had been dead when its jobs were taken, in microseconds; this is long if the
    storage was out of reach.
    """

    ending: Ending
    workplace: Workplace = Workplace()
    hung: bool = False
    overdue: frozenset[Ref] = field(default_factory=frozenset[Ref])
    suspects: frozenset[Ref] | None = None
    apart: frozenset[Ref] = field(default_factory=frozenset[Ref])
    waiting: frozenset[Ref] = field(default_factory=frozenset[Ref])
    blameless: bool = False
    culprits: frozenset[Ref] = field(default_factory=frozenset[Ref])
    stopped: Mapping[Ref, StopCode] = field(default_factory=dict[Ref, StopCode])
    """Exclusive runs that the worker had stopped before, and why. They kept their rights, because their handlers went
    on until the process ended. Their outcome follows from this code, however the process died."""
    dead_for: int = 0

    def clears(self, ref: Ref) -> bool:
        """Return True if the run of a job cannot have ended the process: it was in another one, or had not begun."""
        return ref in self.apart or self.not_begun(ref)

    def allows(self, ref: Ref) -> bool:
        """Return True if a run may have caused the death from its isolated process: no other cause is known."""
        known = self.blameless or self.hung or bool(self.culprits - {ref})
        return ref in self.apart and not self.not_begun(ref) and not known

    def not_begun(self, ref: Ref) -> bool:
        """Return True if it is known that the run of a job had not begun.

        If all suspects are known, a job that is not listed was claimed, but its worker never received the answer.
        """
        return ref in self.waiting or not (self.suspects is None or ref in self.suspects or ref in self.apart)


async def settle_stalled(
    storage: Storage,
    owner: Owner,
    stalled: Sequence[StalledLease],
    rng: Random,
    *,
    witness: CrashEvidence | None = None,
    max_block: int | None = None,
    within: float = LOOK,
    figures: MetricsRegistry | None = None,
) -> bool:
    """Settle stalled runs under the owner that took them, and count them; for reapers and supervisors.

    Return True if the storage has answered for all of them.

    `within`: seconds to read details for the post-mortems. `max_block`: how long an event loop may be blocked, in
    microseconds; a reaper uses it to explain why a worker was silent.

    Raises:
        StorageError: some runs may not be settled; they are reaped again when the taker's own lease has run out.
    """
    seen = await _seen(storage, stalled, workers=witness is None, within=within)
    coming: list[Settlement] = []
    length, answered = 0, True
    for one in stalled:
        outcome = _outcome(one, seen, witness, max_block)
        coming.append(settlement(one.lease, outcome, rng))
        length += _length(outcome)
        if len(coming) == SETTLE_LIMIT or length > WRITE_LIMIT:
            answered &= await _send(storage, owner, coming, figures)
            coming, length = [], 0
    if coming:
        answered &= await _send(storage, owner, coming, figures)
    return answered


async def _send(storage: Storage, owner: Owner, coming: Sequence[Settlement], figures: MetricsRegistry | None) -> bool:
    answer = await storage.exchange(owner, coming)
    done = {(verdict.ref, verdict.fence) for verdict in answer.verdicts if verdict.verdict == "done"}
    for asked in coming:
        for event in asked.events:
            if figures is not None and isinstance(event, JobStalled) and (asked.ref, asked.fence) in done:
                figures.count(STALLED, event.task, event.reason)
    return len(answer.verdicts) == len(coming)


class _StalledRuns:
    """The records that could be read about stalled runs and their workers."""

    def __init__(self, stalled: Sequence[StalledLease]) -> None:
        self.details: dict[Ref, JobDetail] = {}
        self.workers: dict[str, WorkerSurvey] = {}
        self.tasks: defaultdict[str, list[tuple[Ref, str]]] = defaultdict(list)
        for one in stalled:
            self.tasks[one.owner].append((one.lease.ref, one.lease.job.task))

    def run(self, one: StalledLease) -> RunRecord | None:
        """Return the run that the lease is for."""
        detail = self.details.get(one.lease.ref)
        runs = () if detail is None else detail.runs
        return next((run for run in reversed(runs) if run.number == one.lease.run), None)

    def deaths(self, one: StalledLease) -> int:
        """Return how many earlier runs of the job in a row may have caused the deaths of their workers.

        Runs that had not begun when their workers died, or whose workers died for a known reason, are passed over.
        """
        detail = self.details.get(one.lease.ref)
        earlier = [] if detail is None else [run for run in detail.runs if run.number < one.lease.run]
        lost = takewhile(
            lambda run: run.ended == "released" and run.reason in (WORKER_DIED, "process_died", "loop_blocked"),
            reversed(earlier),
        )
        return sum(run.reason == WORKER_DIED for run in lost)

    def beside(self, one: StalledLease, witness: CrashEvidence | None) -> list[str]:
        """Return the tasks that ran in the same process, without those known to have run elsewhere or not begun."""
        if witness is not None and witness.clears(one.lease.ref):
            return []
        others = [(ref, task) for ref, task in self.tasks[one.owner] if ref != one.lease.ref]
        return [task for ref, task in others if witness is None or not witness.clears(ref)]


async def _seen(storage: Storage, stalled: Sequence[StalledLease], *, workers: bool, within: float) -> _StalledRuns:
    seen = _StalledRuns(stalled)
    refs = [one.lease.ref for one in stalled]
    # An error here only shortens the post-mortem; it must not delay the job's next run.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(within):
            if workers and stalled:
                survey = await storage.survey([])
                seen.workers = {worker.owner.id: worker for worker in survey.workers}
            for start in range(0, len(refs), READ_LIMIT):
                found = await storage.get(refs[start : start + READ_LIMIT])
                seen.details.update((detail.job.ref, detail) for detail in found if detail is not None)
    return seen


def _outcome(one: StalledLease, seen: _StalledRuns, witness: CrashEvidence | None, max_block: int | None) -> Outcome:
    if one.lease.job.unreadable is not None:
        return Unreadable(unreadable_record(one.lease.job.unreadable))
    stopped = None if witness is None else witness.stopped.get(one.lease.ref)
    if stopped is not None:
        return _stopped(one, stopped, seen, witness)
    if witness is not None and one.lease.ref in witness.overdue:
        return _timed_out(one, seen, witness, "its process was killed")
    reason = _reason(one, seen, witness, max_block)
    cause = stall_cause(
        one.lease.job,
        reason,
        silent_for=one.silent_for,
        run=seen.run(one),
        ending=None if witness is None else witness.ending,
        max_block=max_block,
    )
    begun = witness is None or not witness.not_begun(one.lease.ref)
    apart = witness is not None and witness.allows(one.lease.ref)
    deaths = seen.deaths(one) if apart else 0
    if deaths >= FREE_DEATHS:
        # This many deaths in a row are hardly chance. An isolated run can kill its worker, too.
        cause = f"its worker died while it ran, for the {deaths + 1}th time in a row; {cause}"
    blameless = (
        witness is not None
        and deaths < FREE_DEATHS
        and (
            witness.blameless
            or witness.clears(one.lease.ref)
            or (bool(witness.culprits) and one.lease.ref not in witness.culprits)
        )
    )
    text = _text(one, cause, seen, witness)
    return Stalled(reason, one.silent_for, one.owner, text, blameless, begun, isolated=apart)


def _stopped(one: StalledLease, why: StopCode, seen: _StalledRuns, witness: CrashEvidence | None) -> Outcome:
    job = one.lease.job
    match why:
        case "timeout":
            return _timed_out(one, seen, witness, "its process has ended")
        case "cancelled":
            return Cancelled(job.cancel_reason)
        case "shutdown" | "unreachable" | "worker_failed":
            return Interrupted(why, begun=True)
        case "ended":
            return Raised(RecordedError(UNFINISHED_ERROR, UNFINISHED))
        case "no_progress" | "lease_expired":
            cause = stall_cause(job, why, silent_for=job.stall.lease, run=seen.run(one))
            return Stalled(why, one.silent_for, one.owner, _text(one, cause, seen, witness))
        case _:
            assert_never(why)


def _timed_out(one: StalledLease, seen: _StalledRuns, witness: CrashEvidence | None, end: str) -> TimedOut:
    message = f"{_overdue(one, seen)}; {end}"
    text = _text(one, message, seen, witness)
    return TimedOut(RecordedError("TimeoutError", message, f"{text}\nTimeoutError: {message}"))


def _reason(one: StalledLease, seen: _StalledRuns, witness: CrashEvidence | None, max_block: int | None) -> StallReason:
    if witness is not None:
        return "loop_blocked" if witness.hung else one.reason
    worker = seen.workers.get(one.owner)
    # A worker whose loop is blocked for that long lets its leases run out on purpose, and reports its lag before.
    blocked = worker is not None and max_block is not None and worker.lag >= max_block
    return "loop_blocked" if blocked and one.reason == "lease_expired" else one.reason


def _overdue(one: StalledLease, seen: _StalledRuns) -> str:
    job = one.lease.job
    ran = ran_for(job, seen.run(one))
    limit = "its timeout" if job.timeout is None else f"its timeout of {duration_text(job.timeout)}"
    return f"the run passed {limit} and would not stop{'' if ran is None else f' for {seconds(ran)} in all'}"


def _text(one: StalledLease, cause: str, seen: _StalledRuns, witness: CrashEvidence | None) -> str:
    detail, worker = seen.details.get(one.lease.ref), seen.workers.get(one.owner)
    place = None if witness is None else witness.workplace
    if worker is not None:
        # Take the older of the two times, because another process may have renewed the lease.
        place = Workplace(worker.lag, worker.memory, max(one.silent_for, worker.seen_ago))
    job, dead_for = one.lease.job, 0 if witness is None else witness.dead_for
    # A stored record may contain anything.
    with contextlib.suppress(Exception):
        return post_mortem(
            # The run ended when its process died, not when the lease was taken.
            structs.replace(job, heard_at=None if job.heard_at is None else job.heard_at - dead_for),
            cause,
            silent_for=max(0, one.silent_for - dead_for),
            died=one.reason == "process_died",
            run=seen.run(one),
            log=() if detail is None else detail.log,
            workplace=place,
            ending=None if witness is None else witness.ending,
            other_tasks=seen.beside(one, witness),
        )
    return cause


def _length(outcome: Outcome) -> int:
    match outcome:
        case Stalled(detail=detail):
            return len(detail or "")
        case TimedOut(error):
            return len(error.traceback)
        case _:
            return 0
