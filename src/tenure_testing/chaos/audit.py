"""The audit of a chaos test: compares producers, handlers and storage, and each recovery with its bound.

    asked ── acked ──► found ──► completed, once, by the run that its result names
                         │
           run 1 ── stalled | released | retried ──► run 2: reported before it began, under a higher fence,
                         │                            and with a cause: a fault that hit its process
                         └── in time: one second where a supervisor saw the death, else lease + grace + two sweeps

Each check answers one question and leaves all other questions to the other checks.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import msgspec
from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.events import (
    AnyEvent,
    EventsTrimmed,
    JobCancelled,
    JobCompleted,
    JobExpired,
    JobFailed,
    JobReleased,
    JobRepaired,
    JobRetried,
    JobStalled,
    JobStarted,
    WorkerDied,
    WorkerStarted,
)
from tenure.core.job import RunRecord
from tenure.core.lifecycle import State
from tenure_testing.chaos.evidence import EvidenceIndex
from tenure_testing.chaos.records import ChaosEvidence
from tenure_testing.chaos.recoveries import RESUME, ChaosRecovery, recoveries, resumed
from tenure_testing.demo.audit import EXAMPLES, Check, seconds

FUZZ = SECOND // 20
"""The longest difference between instants of the storage and of the test: a process may sleep between two readings."""

STARTING = 10 * SECOND
"""The longest time from the start of a process to its first call of the storage, on a busy machine."""


class AuditFinding(Struct, kw_only=True):
    """The result of an audit: the checks, and the figures behind them."""

    checks: list[Check]
    recoveries: list[ChaosRecovery]
    resumed: list[int]
    jobs: dict[str, int]
    runs: int
    overlaps: int
    """Runs whose handler was still running when the next run began: a fault had hit their process."""

    @property
    def ok(self) -> bool:
        """True if every check passes."""
        return all(check.holds for check in self.checks)


def audit(evidence: ChaosEvidence) -> AuditFinding:
    """Return all checks in the order in which they are shown, and the figures."""
    case = EvidenceIndex(evidence)
    found, uncaused = recoveries(case)
    again, late = resumed(case)
    overlaps, handed = _overlaps(case)
    return AuditFinding(
        checks=[
            _none_lost(case),
            _all_over(case),
            _nothing_unexpected(case),
            _one_outcome(case),
            _results_right(case),
            _starts_are_runs(case),
            _completed_were_noted(case),
            _fences_rise(case),
            _announced(case),
            _caused(case, found, uncaused),
            handed,
            _seen_deaths(found),
            _silences(found),
            _in_time_again(again, late),
            _no_unexpected_exits(case),
            _sound(case),
            _struck(case),
            _worked(case),
        ],
        recoveries=found,
        resumed=again,
        jobs=dict(Counter(str(job.state) for job in case.jobs.values())),
        runs=sum(len(runs) for runs in case.runs.values()),
        overlaps=overlaps,
    )


def _none_lost(case: EvidenceIndex) -> Check:
    enqueued_calls = case.evidence.enqueued_calls
    asked = {call.job for call in enqueued_calls}
    acked = dict.fromkeys(call.job for call in enqueued_calls if call.what == "acked")
    doubtful = asked - acked.keys()
    lost = [job for job in acked if job not in case.jobs]
    return _check(
        "no acknowledged job is lost",
        f"{len(acked):,} acknowledged, {len(acked) - len(lost):,} of them found; of {len(doubtful):,} others that were "
        f"asked for, {len(doubtful & case.jobs.keys()):,} are there, too",
        [f"job {job} was acknowledged and is gone" for job in lost],
    )


def _all_over(case: EvidenceIndex) -> Check:
    return _check(
        "every job is completed",
        _counted(Counter(str(job.state) for job in case.jobs.values())),
        [
            f"job {job.id} is {job.state}" + (f" ({job.error.message})" if job.error else "")
            for job in case.jobs.values()
            if job.state is not State.COMPLETED
        ],
    )


def _nothing_unexpected(case: EvidenceIndex) -> Check:
    asked = {call.job for call in case.evidence.enqueued_calls}
    return _check(
        "every job was asked for",
        f"{len(asked):,} asked for, {len(case.jobs):,} found",
        [f"job {job} was never asked for" for job in case.jobs if job not in asked]
        + [f"job {line.job} ran and was never asked for" for line in case.starts if line.job not in asked],
    )


def _one_outcome(case: EvidenceIndex) -> Check:
    events = case.evidence.events
    outcomes = Counter(
        event.id for event in events if isinstance(event, JobCompleted | JobFailed | JobCancelled | JobExpired)
    )
    rows = Counter(job for job, run in _all_runs(case) if run.ended == "completed")
    done = {job.id for job in case.jobs.values() if job.state is State.COMPLETED}
    return _check(
        "no job has two outcomes",
        f"{outcomes.total():,} outcomes announced, {rows.total():,} runs completed",
        [
            f"job {job} had {outcomes[job]} outcomes announced, and {rows[job]} completed runs"
            for job in dict.fromkeys([*done, *outcomes, *rows])
            if (outcomes[job], rows[job]) != ((1, 1) if job in done else (0, 0))
        ],
    )


def _results_right(case: EvidenceIndex) -> Check:
    wrong: list[str] = []
    compared = 0
    for job in case.jobs.values():
        row = next((run for run in case.runs[job.id].values() if run.ended == "completed"), None)
        if job.state is not State.COMPLETED or row is None:
            continue
        compared += 1
        if (result := _read(job.result)) != [row.number, row.fence]:
            wrong.append(f"job {job.id} has the result {result}; run {row.number} under fence {row.fence} completed it")
    return _check("every result is that of the run on record", f"{compared:,} compared", wrong)


def _starts_are_runs(case: EvidenceIndex) -> Check:
    wrong: list[str] = []
    apart = 0
    seen = Counter((line.job, line.run) for line in case.starts)
    for line in case.starts:
        run = case.runs.get(line.job, {}).get(line.run)
        if run is None:
            wrong.append(f"run {line.run} of job {line.job} began, and the history has no such run")
        elif (run.fence, run.pid) == (line.fence, line.parent) and line.run > 1:
            # A job that ran in a process that died runs next in an isolated process, a child of its worker.
            apart += 1
        elif (run.fence, run.pid) != (line.fence, line.pid):
            wrong.append(
                f"run {line.run} of job {line.job} began under fence {line.fence} in process {line.pid}; "
                f"the history says fence {run.fence}, process {run.pid}"
            )
    wrong += [f"run {run} of job {job} began {times} times" for (job, run), times in seen.items() if times > 1]
    pieces = f", {case.evidence.pieces} lines cut short by a kill" if case.evidence.pieces else ""
    return _check(
        "every start the handlers noted is a run of its own",
        f"{len(case.starts):,} starts, {apart:,} in quarantine{pieces}",
        wrong,
    )


def _completed_were_noted(case: EvidenceIndex) -> Check:
    total, wrong = 0, list[str]()
    for job, run in _all_runs(case):
        end = case.ends.get((job, run.number))
        if run.ended == "completed":
            total += 1
            if end is None or end.what != "done":
                wrong.append(f"run {run.number} of job {job} completed, and its handler did not say so")
    return _check("every completed run was noted by its handler", f"{total:,} runs", wrong)


def _fences_rise(case: EvidenceIndex) -> Check:
    wrong: list[str] = []
    for job, runs in case.runs.items():
        for before, after in pairwise(runs[number] for number in sorted(runs)):
            if after.fence <= before.fence:
                wrong.append(f"job {job}: run {after.number} has fence {after.fence}, the one before {before.fence}")
    latest: dict[str, int] = {}
    calls = 0
    for event in case.evidence.events:
        if isinstance(event, JobStarted):
            calls += 1
            if event.fence <= latest.get(event.id, 0):
                wrong.append(f"job {event.id}: fence {event.fence} was given out after {latest[event.id]}")
            latest[event.id] = event.fence
    return _check("fences rise with each job", f"{calls:,} given out, in the order of the log", wrong)


def _announced(case: EvidenceIndex) -> Check:
    """A second run begins only after the log has reported the end of the first, by its order and by the clock."""
    wrong: list[str] = []
    why: Counter[str] = Counter()
    reported: dict[tuple[str, int], AnyEvent] = {}
    for event in case.evidence.events:
        match event:
            case JobStalled() | JobReleased() | JobRetried():
                reported.setdefault((event.id, event.run), event)
            case JobStarted() if event.run > 1:
                before = reported.get((event.id, event.run - 1))
                if before is None:
                    wrong.append(f"run {event.run} of job {event.id} began before the log reported why")
                    continue
                why[_word(before)] += 1
                line = case.began.get((event.id, event.run))
                if line is not None and line.at < case.recorded_at(before) - FUZZ:
                    wrong.append(
                        f"the handler's run {event.run} of job {event.id} began "
                        f"{seconds(case.recorded_at(before) - line.at)} before the one before was {_word(before)}"
                    )
            case _:
                pass
    for job, record in case.jobs.items():
        for number in range(1, max([record.starts, *case.runs[job]])):
            if (job, number) not in reported:
                wrong.append(f"job {job} ran again after its run {number}, and no event gives the reason")
    return _check("every second run was announced before it began", f"{why.total():,}: {_counted(why)}", wrong)


def _caused(case: EvidenceIndex, found: list[ChaosRecovery], wrong: list[str]) -> Check:
    causes = Counter(item.cause for item in found)
    return _check("no run was taken without a cause", f"{len(case.stalled):,} stalls: {_counted(causes)}", wrong)


def _seen_deaths(recoveries: list[ChaosRecovery]) -> Check:
    name = "jobs of the dead whose supervisor saw it were back in time"
    return _in_time(name, [recovery for recovery in recoveries if recovery.seen])


def _silences(recoveries: list[ChaosRecovery]) -> Check:
    name = "all other jobs of the lost were back in time"
    return _in_time(name, [recovery for recovery in recoveries if not recovery.seen])


def _in_time(name: str, recoveries: list[ChaosRecovery]) -> Check:
    bounds = sorted({recovery.bound for recovery in recoveries})
    allowed = seconds(bounds[0]) if len(bounds) == 1 else "from " + " to ".join(map(seconds, bounds[:1] + bounds[-1:]))
    slowest = (
        f", the slowest after {seconds(max(recovery.delay for recovery in recoveries))}; allowed {allowed}"
        if bounds
        else ""
    )
    return _check(
        name,
        f"{len(recoveries):,} jobs{slowest}",
        [
            f"run {item.run} of job {item.job} ({item.cause}, {item.reason}) was back after {seconds(item.delay)}; "
            f"allowed {seconds(item.bound)}"
            for item in recoveries
            if item.delay > item.bound
        ],
    )


def _overlaps(case: EvidenceIndex) -> tuple[int, Check]:
    """Handlers overlap only after the event of a stall."""
    stalled = {(event.id, event.run) for event in case.stalled}
    wrong: list[str] = []
    overlaps = pairs = 0
    for (job, number), line in case.began.items():
        first, end = case.began.get((job, number - 1)), case.ends.get((job, number - 1))
        if first is None:
            continue
        pairs += 1
        if (job, number - 1) in stalled:
            overlaps += end is not None and end.at > line.at
        elif end is not None and end.at > line.at + FUZZ:
            wrong.append(
                f"run {number - 1} of job {job} was handed back and at work {seconds(end.at - line.at)} longer"
            )
    summary = f"{pairs:,} pairs of runs; {overlaps} overlapped after a stall, none of which could settle"
    return overlaps, _check("no handler was at work on what it had handed back", summary, wrong)


def _in_time_again(again: list[int], wrong: list[str]) -> Check:
    slowest = f", at the latest after {seconds(max(again))}" if again else ""
    summary = f"{len(again)} outages{slowest}; allowed {seconds(RESUME)}"
    return _check("after an outage runs begin again in time", summary, wrong)


def _no_unexpected_exits(case: EvidenceIndex) -> Check:
    """A process ends by itself only if it cannot reach the storage when it starts. It is then started again."""
    evidence = case.evidence
    dead = {pid for deed in evidence.deeds if deed.effect == "death" for pid in deed.pids}
    died = [event for event in evidence.events if isinstance(event, WorkerDied) and event.pid not in dead]
    began = {event.owner for event in evidence.events if isinstance(event, WorkerStarted)}
    wrong = list(evidence.complaints)
    refused = 0
    for event in died:
        seen = case.recorded_at(event)
        # A supervisor that was stopped notices the death only after it continues.
        asleep = [deed.at for deed in evidence.deeds if deed.effect == "pause" and deed.overlaps(seen - STARTING, seen)]
        if event.owner in began or not case.out_of_reach(min([seen, *asleep]) - STARTING, seen):
            how = f"signal {event.signal}, status {event.status}"
            wrong.append(f"worker {event.pid} died ({how}), and no fault had killed it")
        else:
            refused += 1
    for exit_ in evidence.exits:
        if exit_.status != 1 or not case.out_of_reach(exit_.began, min(exit_.at, exit_.began + STARTING)):
            wrong.append(f"{exit_.where} ended by itself with the exit status {exit_.status}")
        else:
            refused += 1
    said = f"{len(evidence.hosts)} hosts; {refused} starts given up as the storage was out of reach"
    return _check("no process ended without a cause", said, wrong)


def _sound(case: EvidenceIndex) -> Check:
    wrong = list(case.evidence.flaws)
    wrong += [
        f"job {event.id} was repaired: {event.found}"
        for event in case.evidence.events
        if isinstance(event, JobRepaired)
    ]
    if any(isinstance(event, EventsTrimmed) for event in case.evidence.events):
        wrong.append("events were lost before they could be read, so this audit does not know all")
    if abs(case.evidence.drift) > FUZZ:
        wrong.append(f"the machine's clock was set by {seconds(case.evidence.drift)} meanwhile; run this again")
    return _check(
        "the storage is sound, and the clock was not set", f"{len(case.evidence.events):,} events read", wrong
    )


def _struck(case: EvidenceIndex) -> Check:
    kinds = Counter(deed.kind for deed in case.evidence.deeds)
    effects = {deed.effect for deed in case.evidence.deeds}
    missing = {"death", "pause"} - effects
    return _check(
        "faults were committed",
        f"{kinds.total():,}: {_counted(kinds)}",
        [f"there was no {effect} among them; give it more time" for effect in sorted(missing)],
    )


def _worked(case: EvidenceIndex) -> Check:
    """Fail an audit that has nothing to check. All other checks of jobs pass if there are none."""
    acked = sum(call.what == "acked" for call in case.evidence.enqueued_calls)
    counts = {
        "acknowledged jobs": acked,
        "completed jobs": sum(job.state is State.COMPLETED for job in case.jobs.values()),
        "starts that handlers noted": len(case.starts),
        "events": len(case.evidence.events),
    }
    return _check(
        "there was work to audit",
        ", ".join(f"{count:,} {what}" for what, count in counts.items()),
        [f"there were no {what}" for what, count in counts.items() if not count],
    )


def _all_runs(case: EvidenceIndex) -> Iterator[tuple[str, RunRecord]]:
    for job, runs in case.runs.items():
        for run in runs.values():
            yield job, run


def _word(event: AnyEvent) -> str:
    return type(event).__name__.removeprefix("Job").lower()


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())) or "none"


def _check(name: str, summary: str, wrong: list[str]) -> Check:
    return Check(name, summary, len(wrong), tuple(wrong[:EXAMPLES]))


def _read(result: bytes | None) -> list[int] | None:
    try:
        return msgspec.json.decode(result or b"", type=list[int])
    except msgspec.MsgspecError:
        return None
