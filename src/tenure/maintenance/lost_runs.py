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
from tenure.core.job import JobDetail, JobRecord, Owner, RecordedError, Ref, RunRecord, StallReason, unreadable_record
from tenure.core.outcome import Cancelled, Interrupted, Outcome, Raised, Stalled, StopCode, TimedOut, Unreadable
from tenure.core.postmortem import Ending, Workplace, post_mortem, ran_for, seconds, stall_cause
from tenure.core.settlement import Settlement, outcome_of, settlement
from tenure.errors import StorageError
from tenure.metrics import STALLED, FiguresCounter, MetricsRegistry
from tenure.storage.protocol import SETTLE_LIMIT, RenewRequest, StalledLease, Storage, WorkerSurvey

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
    """What the supervisor knows about a worker process that died. Jobs are named by their references.

    `hung`: the process was killed because its event loop was blocked. `overdue`: jobs whose runs went on beyond their
    timeouts, so that the process was killed. `causes`: jobs whose runs caused the death, if they are known; then the
    other jobs are not charged. `suspects`: jobs whose runs had begun in the process, and so may have ended it; empty if
    there were certainly none, None if that is not known. `isolated`: jobs whose runs had isolated processes. `waiting`:
    jobs whose runs had certainly not begun. `blameless`: the process was killed for a reason that no run has caused.
    `dead_for`: how long the process had been dead when its jobs were taken, in microseconds; this is long if the
    storage was out of reach.
    """

    ending: Ending
    workplace: Workplace = Workplace()
    hung: bool = False
    overdue: frozenset[Ref] = field(default_factory=frozenset[Ref])
    suspects: frozenset[Ref] | None = None
    isolated: frozenset[Ref] = field(default_factory=frozenset[Ref])
    waiting: frozenset[Ref] = field(default_factory=frozenset[Ref])
    blameless: bool = False
    causes: frozenset[Ref] = field(default_factory=frozenset[Ref])
    stopped: Mapping[Ref, StopCode] = field(default_factory=dict[Ref, StopCode])
    """Exclusive runs that the worker had stopped before, and why. They kept their rights, because their handlers went
    on until the process ended. Their outcome follows from this code, however the process died."""
    dead_for: int = 0

    def clears(self, ref: Ref) -> bool:
        """Return True if the run of a job cannot have ended the process: it was in another one, or had not begun."""
        return ref in self.isolated or self.not_begun(ref)

    def may_be_cause(self, ref: Ref) -> bool:
        """Return True if a run may have caused the death from its isolated process: no other cause is known."""
        known = self.blameless or self.hung or bool(self.causes - {ref})
        return ref in self.isolated and not self.not_begun(ref) and not known

    def not_begun(self, ref: Ref) -> bool:
        """Return True if it is known that the run of a job had not begun.

        If all suspects are known, a job that is not listed was claimed, but its worker never received the answer.
        """
        return ref in self.waiting or not (self.suspects is None or ref in self.suspects or ref in self.isolated)


async def settle_stalled(
    storage: Storage,
    owner: Owner,
    stalled: Sequence[StalledLease],
    rng: Random,
    *,
    evidence: CrashEvidence | None = None,
    max_block: int | None = None,
    within: float = LOOK,
    metrics: MetricsRegistry | None = None,
) -> bool:
    """Settle stalled runs under the owner that took them, and count them; for reapers and supervisors.

    Return True if the storage has answered for all of them.

    `within`: seconds to read details for the post-mortems. `max_block`: how long an event loop may be blocked, in
    microseconds; a reaper uses it to explain why a worker was silent.

    Raises:
        StorageError: some runs may not be settled; they are reaped again when the taker's own lease has run out.
    """
    records = await _seen(storage, stalled, workers=evidence is None, within=within)
    settlements: list[Settlement] = []
    length, answered, figures = 0, True, FiguresCounter()
    jobs = {stalled_run.lease.ref: stalled_run.lease.job for stalled_run in stalled}
    for stalled_run in stalled:
        outcome = _outcome(stalled_run, records, evidence, max_block)
        settlements.append(settlement(stalled_run.lease, outcome, rng))
        length += _length(outcome)
        if len(settlements) == SETTLE_LIMIT or length > WRITE_LIMIT:
            answered &= await _send(storage, owner, settlements, jobs, figures, metrics)
            settlements, length = [], 0
    if settlements:
        answered &= await _send(storage, owner, settlements, jobs, figures, metrics)
    await _send_figures(storage, owner, figures, within=within)
    return answered


async def _send_figures(storage: Storage, owner: Owner, figures: FiguresCounter, *, within: float) -> None:
    """Add the settled runs to the figures. These may be lost, and must not delay what follows."""
    with contextlib.suppress(StorageError, TimeoutError):
        async with asyncio.timeout(within):
            while (counted := figures.take()) is not None:
                await storage.renew(RenewRequest(owner, events=(counted,)))


async def _send(
    storage: Storage,
    owner: Owner,
    settlements: Sequence[Settlement],
    jobs: Mapping[Ref, JobRecord],
    figures: FiguresCounter,
    metrics: MetricsRegistry | None,
) -> bool:
    answer = await storage.exchange(owner, settlements)
    done = {(verdict.ref, verdict.fence) for verdict in answer.verdicts if verdict.verdict == "done"}
    for sent in settlements:
        if (sent.ref, sent.fence) in done:
            figures.count([(jobs[sent.ref], sent, outcome_of(sent), 0.0)])
        for event in sent.events:
            if metrics is not None and isinstance(event, JobStalled) and (sent.ref, sent.fence) in done:
                metrics.count(STALLED, event.task, event.reason)
    return len(answer.verdicts) == len(settlements)


class _StalledRuns:
    """The records that could be read about stalled runs and their workers."""

    def __init__(self, stalled: Sequence[StalledLease]) -> None:
        self.details: dict[Ref, JobDetail] = {}
        self.workers: dict[str, WorkerSurvey] = {}
        self.tasks: defaultdict[str, list[tuple[Ref, str]]] = defaultdict(list)
        for stalled_run in stalled:
            self.tasks[stalled_run.owner].append((stalled_run.lease.ref, stalled_run.lease.job.task))

    def run(self, stalled_run: StalledLease) -> RunRecord | None:
        """Return the run that the lease is for."""
        detail = self.details.get(stalled_run.lease.ref)
        runs = () if detail is None else detail.runs
        return next((run for run in reversed(runs) if run.number == stalled_run.lease.run), None)

    def deaths(self, stalled_run: StalledLease) -> int:
        """Return how many earlier runs of the job in a row may have caused the deaths of their workers.

        Runs that had not begun when their workers died, or whose workers died for a known reason, are passed over.
        """
        detail = self.details.get(stalled_run.lease.ref)
        earlier = [] if detail is None else [run for run in detail.runs if run.number < stalled_run.lease.run]
        lost = takewhile(
            lambda run: run.ended == "released" and run.reason in (WORKER_DIED, "process_died", "loop_blocked"),
            reversed(earlier),
        )
        return sum(run.reason == WORKER_DIED for run in lost)

    def other_tasks(self, stalled_run: StalledLease, evidence: CrashEvidence | None) -> list[str]:
        """Return the tasks that ran in the same process, without those known to have run elsewhere or not begun."""
        if evidence is not None and evidence.clears(stalled_run.lease.ref):
            return []
        others = [(ref, task) for ref, task in self.tasks[stalled_run.owner] if ref != stalled_run.lease.ref]
        return [task for ref, task in others if evidence is None or not evidence.clears(ref)]


async def _seen(storage: Storage, stalled: Sequence[StalledLease], *, workers: bool, within: float) -> _StalledRuns:
    records = _StalledRuns(stalled)
    refs = [stalled_run.lease.ref for stalled_run in stalled]
    # An error here only shortens the post-mortem; it must not delay the job's next run.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(within):
            if workers and stalled:
                survey = await storage.survey([])
                records.workers = {worker.owner.id: worker for worker in survey.workers}
            for start in range(0, len(refs), READ_LIMIT):
                found = await storage.get(refs[start : start + READ_LIMIT])
                records.details.update((detail.job.ref, detail) for detail in found if detail is not None)
    return records


def _outcome(
    stalled_run: StalledLease, records: _StalledRuns, evidence: CrashEvidence | None, max_block: int | None
) -> Outcome:
    if stalled_run.lease.job.unreadable is not None:
        return Unreadable(unreadable_record(stalled_run.lease.job.unreadable))
    stopped = None if evidence is None else evidence.stopped.get(stalled_run.lease.ref)
    if stopped is not None:
        return _stopped(stalled_run, stopped, records, evidence)
    if evidence is not None and stalled_run.lease.ref in evidence.overdue:
        return _timed_out(stalled_run, records, evidence, "its process was killed")
    reason = _reason(stalled_run, records, evidence, max_block)
    cause = stall_cause(
        stalled_run.lease.job,
        reason,
        silent_for=stalled_run.silent_for,
        run=records.run(stalled_run),
        ending=None if evidence is None else evidence.ending,
        max_block=max_block,
    )
    begun = evidence is None or not evidence.not_begun(stalled_run.lease.ref)
    isolated = evidence is not None and evidence.may_be_cause(stalled_run.lease.ref)
    deaths = records.deaths(stalled_run) if isolated else 0
    if deaths >= FREE_DEATHS:
        # This many deaths in a row are hardly chance. An isolated run can kill its worker, too.
        cause = f"its worker died while it ran, for the {deaths + 1}th time in a row; {cause}"
    blameless = (
        evidence is not None
        and deaths < FREE_DEATHS
        and (
            evidence.blameless
            or evidence.clears(stalled_run.lease.ref)
            or (bool(evidence.causes) and stalled_run.lease.ref not in evidence.causes)
        )
    )
    text = _text(stalled_run, cause, records, evidence)
    return Stalled(reason, stalled_run.silent_for, stalled_run.owner, text, blameless, begun, isolated=isolated)


def _stopped(
    stalled_run: StalledLease, why: StopCode, records: _StalledRuns, evidence: CrashEvidence | None
) -> Outcome:
    job = stalled_run.lease.job
    match why:
        case "timeout":
            return _timed_out(stalled_run, records, evidence, "its process has ended")
        case "cancelled":
            return Cancelled(job.cancel_reason)
        case "shutdown" | "unreachable" | "worker_failed":
            return Interrupted(why, begun=True)
        case "ended":
            return Raised(RecordedError(UNFINISHED_ERROR, UNFINISHED))
        case "no_progress" | "lease_expired":
            cause = stall_cause(job, why, silent_for=job.stall.lease, run=records.run(stalled_run))
            return Stalled(why, stalled_run.silent_for, stalled_run.owner, _text(stalled_run, cause, records, evidence))
        case _:
            assert_never(why)


def _timed_out(stalled_run: StalledLease, records: _StalledRuns, evidence: CrashEvidence | None, end: str) -> TimedOut:
    message = f"{_overdue(stalled_run, records)}; {end}"
    text = _text(stalled_run, message, records, evidence)
    return TimedOut(RecordedError("TimeoutError", message, f"{text}\nTimeoutError: {message}"))


def _reason(
    stalled_run: StalledLease, records: _StalledRuns, evidence: CrashEvidence | None, max_block: int | None
) -> StallReason:
    if evidence is not None:
        return "loop_blocked" if evidence.hung else stalled_run.reason
    worker = records.workers.get(stalled_run.owner)
    # A worker whose loop is blocked for that long lets its leases run out on purpose, and reports its lag before.
    blocked = worker is not None and max_block is not None and worker.lag >= max_block
    return "loop_blocked" if blocked and stalled_run.reason == "lease_expired" else stalled_run.reason


def _overdue(stalled_run: StalledLease, records: _StalledRuns) -> str:
    job = stalled_run.lease.job
    ran = ran_for(job, records.run(stalled_run))
    limit = "its timeout" if job.timeout is None else f"its timeout of {duration_text(job.timeout)}"
    return f"the run passed {limit} and would not stop{'' if ran is None else f' for {seconds(ran)} in all'}"


def _text(stalled_run: StalledLease, cause: str, records: _StalledRuns, evidence: CrashEvidence | None) -> str:
    detail, worker = records.details.get(stalled_run.lease.ref), records.workers.get(stalled_run.owner)
    place = None if evidence is None else evidence.workplace
    if worker is not None:
        # Take the older of the two times, because another process may have renewed the lease.
        place = Workplace(worker.lag, worker.memory, max(stalled_run.silent_for, worker.seen_ago))
    job, dead_for = stalled_run.lease.job, 0 if evidence is None else evidence.dead_for
    # A stored record may contain anything.
    with contextlib.suppress(Exception):
        return post_mortem(
            # The run ended when its process died, not when the lease was taken.
            structs.replace(job, heard_at=None if job.heard_at is None else job.heard_at - dead_for),
            cause,
            silent_for=max(0, stalled_run.silent_for - dead_for),
            died=stalled_run.reason == "process_died",
            run=records.run(stalled_run),
            log=() if detail is None else detail.log,
            workplace=place,
            ending=None if evidence is None else evidence.ending,
            other_tasks=records.other_tasks(stalled_run, evidence),
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
