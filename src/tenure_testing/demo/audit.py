"""The audit of the demo: compares the queue's records with what the handlers wrote down.

Each check answers one question only, so that a single wrong record fails a single check.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from tenure.core.events import JobCompleted, JobReleased, JobStalled, RunFenced, at_micros
from tenure.core.job import JobRecord, RunRecord
from tenure.core.lifecycle import State
from tenure_testing.demo.evidence import DemoEvidence, Fault, HeldRun
from tenure_testing.demo.work import Facts

EXAMPLES = 5


class Check(Struct, frozen=True):
    """The result of one check: what must hold, what was found, and some examples of what is wrong."""

    name: str
    summary: str
    wrong: int = 0
    examples: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if nothing is wrong."""
        return self.wrong == 0


def audit(evidence: DemoEvidence) -> list[Check]:
    """Return all checks in the order in which they are shown."""
    case = _Case(evidence)
    return [
        _none_lost(case),
        _all_completed(case),
        _answers_right(case),
        _one_outcome(case),
        _starts_are_runs(case),
        _runs_have_starts(case),
        _extra_runs_announced(case),
        _faults_fired(case),
        _deaths_recovered(case),
        _pause_recovered(case),
        _woken_was_fenced(case),
        _late_settle_refused(case),
        _post_mortem_names_line(case),
        _gil_holder_kept(case),
    ]


class _Case:
    """The evidence with the indexes that several checks share."""

    def __init__(self, evidence: DemoEvidence) -> None:
        self.evidence = evidence
        self.jobs: dict[str, JobRecord] = {}
        self.runs: dict[str, dict[int, RunRecord]] = {}
        for job, detail in evidence.details.items():
            if detail is not None:
                self.jobs[job] = detail.job
                self.runs[job] = {run.number: run for run in detail.runs}
        events = [event for event in evidence.events if getattr(event, "id", None) in evidence.enqueued]
        self.completed = Counter(event.id for event in events if isinstance(event, JobCompleted))
        self.stalled = [event for event in events if isinstance(event, JobStalled)]
        self.released = [event for event in events if isinstance(event, JobReleased)]
        self.fenced = [event for event in events if isinstance(event, RunFenced)]
        self.starts = [line for line in evidence.lines if line.mark == "start"]
        self.ends = [line for line in evidence.lines if line.mark == "end"]

    def all_runs(self) -> Iterator[tuple[str, RunRecord]]:
        """Yield every run of every job that was found."""
        for job, runs in self.runs.items():
            for run in runs.values():
                yield job, run


def _none_lost(case: _Case) -> Check:
    evidence = case.evidence
    found = Counter(ref.id for ref in evidence.found)
    lost = [job for job in evidence.enqueued if evidence.details.get(job) is None or job not in found]
    strange = [job for job, times in found.items() if job not in evidence.enqueued or times > 1]
    return _check(
        "no job is lost",
        f"{len(evidence.enqueued):,} enqueued, {len(evidence.enqueued) - len(lost):,} found, {len(strange):,} others",
        [*(f"job {job} is gone" for job in lost), *(f"job {job} was not enqueued so" for job in strange)],
    )


def _all_completed(case: _Case) -> Check:
    states = Counter(job.state for job in case.jobs.values())
    return _check(
        "all jobs are completed",
        ", ".join(f"{count:,} {state}" for state, count in sorted(states.items())),
        [
            f"job {job.id} is {job.state}" + (f" ({job.error.message})" if job.error else "")
            for job in case.jobs.values()
            if job.state is not State.COMPLETED
        ],
    )


def _answers_right(case: _Case) -> Check:
    evidence = case.evidence
    answers = [
        (job.id, "the queue's result", _read(job.result))
        for job in case.jobs.values()
        if job.state is State.COMPLETED and job.id in evidence.enqueued
    ]
    answers += [
        (line.job, f"the answer noted by run {line.run}", line.answer)
        for line in case.ends
        if line.answer is not None and line.job in evidence.enqueued
    ]
    return _check(
        "every answer is right",
        f"{len(answers):,} answers compared with {len(evidence.expected):,} files computed one by one",
        [
            f"job {job}: {where} is not the right answer for {evidence.enqueued[job]}"
            for job, where, answer in answers
            if answer != evidence.expected.get(evidence.enqueued[job])
        ],
    )


def _one_outcome(case: _Case) -> Check:
    rows = Counter(job for job, run in case.all_runs() if run.ended == "completed")
    done = {job.id for job in case.jobs.values() if job.state is State.COMPLETED}
    return _check(
        "no job has two outcomes",
        f"{case.completed.total():,} completions announced, {rows.total():,} runs completed",
        [
            f"job {job} was announced as completed {case.completed[job]} times, by {rows[job]} completed runs"
            for job in dict.fromkeys([*done, *case.completed, *rows])
            if job in case.jobs and (case.completed[job], rows[job]) != ((1, 1) if job in done else (0, 0))
        ],
    )


def _starts_are_runs(case: _Case) -> Check:
    wrong: list[str] = []
    apart = 0
    seen: Counter[tuple[str, int]] = Counter()
    for line in case.starts:
        if line.job in case.evidence.enqueued and line.job not in case.jobs:
            continue
        run = case.runs.get(line.job, {}).get(line.run)
        seen[line.job, line.run] += 1
        if run is None:
            wrong.append(
                f"run {line.run} of job {line.job} began in process {line.pid}, and the history has no such run"
            )
        elif (run.fence, run.pid) == (line.fence, line.parent) and line.run > 1:
            # A job that ran in a process that died runs next in an isolated process, a child of its worker.
            apart += 1
        elif (run.fence, run.pid) != (line.fence, line.pid):
            wrong.append(
                f"run {line.run} of job {line.job} began under fence {line.fence} in process {line.pid}; "
                f"the history says fence {run.fence}, process {run.pid}"
            )
    wrong += [f"run {run} of job {job} began {times} times" for (job, run), times in seen.items() if times > 1]
    return _check(
        "every start the handlers noted is a run, with its fence and process",
        f"{len(case.starts):,} starts, {apart} of them in quarantine, below their worker",
        wrong,
    )


def _runs_have_starts(case: _Case) -> Check:
    began = {(line.job, line.run) for line in case.starts}
    answered = {(line.job, line.run) for line in case.ends if line.answer is not None}
    wrong: list[str] = []
    unbegun = total = 0
    for job, run in case.all_runs():
        total += 1
        if run.ended == "completed" and (job, run.number) not in answered:
            wrong.append(f"run {run.number} of job {job} completed, and no handler noted an answer")
        elif (job, run.number) not in began:
            # The job was claimed, and its process was killed before the handler's first line was written.
            unbegun += 1
            if run.ended not in ("stalled", "released"):
                wrong.append(f"run {run.number} of job {job} ended {run.ended}, and no handler noted its start")
    return _check(
        "every run was noted by its handler",
        f"{total:,} runs, {unbegun} lost before their handler's first line"
        + (f", {case.evidence.pieces} lines cut short by a kill" if case.evidence.pieces else ""),
        wrong,
    )


def _extra_runs_announced(case: _Case) -> Check:
    stalled = {(event.id, event.run) for event in case.stalled}
    released = {(event.id, event.run) for event in case.released}
    wrong: list[str] = []
    by_stall = by_release = 0
    for job, record in case.jobs.items():
        for number in range(1, max([record.starts, *case.runs[job]])):
            if (job, number) in stalled:
                by_stall += 1
            elif (job, number) in released:
                by_release += 1
            else:
                wrong.append(f"job {job} ran again after its run {number}, and no event gives the reason")
    return _check(
        "every extra run was announced",
        f"{by_stall + by_release + len(wrong)} extra runs: {by_stall} after a stall, {by_release} after a release",
        wrong,
    )


def _faults_fired(case: _Case) -> Check:
    kills = [fault for fault in case.evidence.faults if fault.kind == "kill"]
    pauses = [fault for fault in case.evidence.faults if fault.kind == "pause"]
    struck = {event.owner for event in case.stalled}
    wrong = [
        f"{_who(fault)} was to be struck while busy, and no run of it stalled"
        for fault in case.evidence.faults
        if fault.owner.id not in struck
    ]
    if len(kills) != case.evidence.kills:
        wrong.append(
            f"{len(kills)} of {case.evidence.kills} kills were possible before the jobs were done; give more --jobs"
        )
    elif kills and not any(fault.led for fault in kills):
        wrong.append("no worker was killed while it led the reaping")
    if not pauses:
        wrong.append("no worker could be paused before the jobs were done; give more --jobs")
    wrong += [f"{_who(fault)} was never woken" for fault in pauses if fault.woken_at is None]
    summary = f"{len(kills)} killed, {len(pauses)} paused and woken"
    leaders = [{"kill": "killed", "pause": "paused"}[fault.kind] for fault in case.evidence.faults if fault.led]
    return _check(
        "busy workers were struck, the leader among them",
        summary + (f"; the leader was {' and '.join(leaders)}" if leaders else ""),
        wrong,
    )


def _deaths_recovered(case: _Case) -> Check:
    return _recovered(
        case, "kill", "a dead worker's jobs were back in time", case.evidence.bounds.death, "process_died"
    )


def _pause_recovered(case: _Case) -> Check:
    name = "the paused worker's jobs were back in time"
    return _recovered(case, "pause", name, case.evidence.bounds.pause, "lease_expired")


def _recovered(case: _Case, kind: str, name: str, bound: int, reason: str) -> Check:
    wrong: list[str] = []
    delays: list[int] = []
    for fault in case.evidence.faults:
        if fault.kind != kind:
            continue
        back = {(event.id, event.run): event for event in case.stalled if event.owner == fault.owner.id}
        for run in fault.held if kind == "pause" else ():
            if (run.job, run.run) not in back:
                wrong.append(f"run {run.run} of job {run.job}, held by {_who(fault)}, never stalled")
        for event in back.values():
            delay = at_micros(event) - fault.at
            delays.append(delay)
            if delay > bound:
                wrong.append(f"job {event.id} was back {seconds(delay)} after {_who(fault)} was lost")
            if event.reason != reason:
                wrong.append(f"job {event.id} came back with the reason {event.reason} instead of {reason}")
    slowest = f", the slowest after {seconds(max(delays))}" if delays else ""
    return _check(name, f"{len(delays)} jobs{slowest}; allowed {seconds(bound)}", wrong)


def _woken_was_fenced(case: _Case) -> Check:
    refused = {(event.id, event.fence): event.write for event in reversed(case.fenced)}
    stopped = {(line.job, line.run) for line in case.ends if line.answer is None}
    wrong: list[str] = []
    by_fence = late = 0
    for fault, run in _paused_runs(case.evidence.faults):
        row = case.runs.get(run.job, {}).get(run.run)
        if row is not None and row.ended != "stalled":
            wrong.append(f"run {run.run} of job {run.job} ended {row.ended} though its lease had passed on")
        elif (run.job, run.fence) not in refused:
            wrong.append(f"run {run.run} of job {run.job} was never informed that {_who(fault)} had lost it")
        elif (run.job, run.run) in stopped:
            by_fence += 1
        else:
            late += 1
    return _check(
        "the woken worker's runs were stopped or refused",
        f"{by_fence + late} runs: {by_fence} stopped by their own fence, {late} answered too late and refused",
        wrong,
    )


def _late_settle_refused(case: _Case) -> Check:
    name = "a settlement under an old fence is refused"
    sent_late = [event for event in case.fenced if event.write == "settle"]
    replay = case.evidence.replay
    if replay is not None:
        summary = (
            f"replayed run {replay.run.run} of job {replay.run.job} under fence {replay.run.fence}: {replay.verdict}"
        )
        return _check(name, summary, [] if replay.verdict == "lost" else ["the storage did not refuse it"])
    wrong = [] if sent_late else ["none was sent late, and none was replayed"]
    return _check(name, f"{len(sent_late)} were sent late in the run itself, and refused", wrong)


def _post_mortem_names_line(case: _Case) -> Check:
    name = "the post-mortem of a hung run names its line"
    job = case.evidence.hung
    if case.evidence.kills < 2:
        return _check(name, "no worker was to be killed for it", [])
    place = next((line.place for line in case.starts if line.job == job and line.run == 1), None)
    reported = next((event.post_mortem for event in case.stalled if event.id == job and event.run == 1), None) or ""
    kept = case.runs[job].get(1) if job in case.runs else None
    wrong: list[str] = []
    if job is None or place is None:
        wrong.append("no handler noted where it hangs")
    elif not reported:
        wrong.append(f"run 1 of job {job} stalled without a post-mortem")
    elif place not in reported:
        wrong.append(f"the handler hung at {place}, and its post-mortem does not say so")
    if kept is not None and (kept.detail or "") != reported:
        wrong.append(f"the history of job {job} has another post-mortem than the event")
    return _check(name, "none" if place is None else place.replace('"', "").rpartition("/")[2], wrong)


def _gil_holder_kept(case: _Case) -> Check:
    name = "a run that held the interpreter beyond its lease kept it"
    job, bound = case.evidence.gil_holder, case.evidence.bounds.gil_holding
    runs = list(case.runs[job].values()) if job in case.runs else []
    held = max([line.held or 0 for line in case.ends if line.job == job], default=0)
    wrong = [] if runs else ["no handler was there to hold it"]
    if runs and held < bound:
        wrong.append(f"it was held for {seconds(held)} only; a run is lost after {seconds(bound)} at the latest")
    if [run.ended for run in runs] not in ([], ["completed"]):
        wrong.append(f"the runs of job {job} ended {', '.join(run.ended or 'never' for run in runs)}")
    lost: list[JobStalled | RunFenced] = [*case.stalled, *case.fenced]
    for event in lost:
        theirs = bool(runs) and event.owner == runs[0].owner
        # Faults may hit its worker after this run.
        if event.id == job or (theirs and runs[0].start <= at_micros(event) <= (runs[0].end or 0)):
            wrong.append(f"run {event.run} of job {event.id} was taken from the worker whose interpreter was held")
    summary = f"nothing else ran for {seconds(held)}; by itself it was lost within {seconds(bound)}"
    return _check(name, summary, wrong)


def _paused_runs(faults: Iterable[Fault]) -> Iterator[tuple[Fault, HeldRun]]:
    for fault in faults:
        if fault.kind == "pause":
            for run in fault.held:
                yield fault, run


def _check(name: str, summary: str, wrong: list[str]) -> Check:
    return Check(name, summary, len(wrong), tuple(wrong[:EXAMPLES]))


def _read(result: bytes | None) -> Facts | None:
    try:
        return msgspec.json.decode(result or b"", type=Facts)
    except msgspec.MsgspecError:
        return None


def _who(fault: Fault) -> str:
    return f"worker {fault.owner.pid}" + (" (the leader)" if fault.led else "")


def seconds(micros: int) -> str:
    """Return a duration as readable text."""
    return f"{micros / 1_000_000:.2f} s"
