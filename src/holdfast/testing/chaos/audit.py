"""The audit of the chaos: joins producers, handlers and storage, and holds every recovery against its bound.

    asked ── acked ──► found ──► completed, once, by the run that its result names
                         │
           run 1 ── stalled | released | retried ──► run 2: told before it began, under a higher fence,
                         │                            and for a cause: a deed that struck its process
                         └── in time: one second where a supervisor saw the death, else lease + grace + two sweeps

Each check answers one question and leaves to the others what is theirs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec
from msgspec import Struct

from holdfast.clock import SECOND
from holdfast.core.events import (
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
    LeadershipAcquired,
    WorkerDied,
    WorkerStarted,
    at_micros,
)
from holdfast.core.job import JobRecord, RunRecord
from holdfast.core.lifecycle import State
from holdfast.demo.audit import EXAMPLES, Check, seconds
from holdfast.testing.chaos.history import Deed, Evidence

FUZZ = SECOND // 20
"""By so much the storage's instants may differ from ours: a process may sleep between two readings of a clock."""

IN_FLIGHT = 2 * SECOND
"""A claim may reach the storage so long after its process was struck."""

STARTING = 10 * SECOND
"""A process comes to ask for the storage so long after its start, on a machine with much to do."""

RESUME = 5 * SECOND
"""Within so long of an outage's end the next run begins."""


class Recovery(Struct, frozen=True, kw_only=True):
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


class Finding(Struct, kw_only=True):
    """What the audit came to: the checks, and the figures that stand behind them."""

    checks: list[Check]
    recoveries: list[Recovery]
    resumed: list[int]
    jobs: dict[str, int]
    runs: int
    overlaps: int
    """Runs whose handler was still at it when the next one began: their process had been struck."""

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against the promise."""
        return all(check.holds for check in self.checks)


def audit(evidence: Evidence) -> Finding:
    """Return every check, in the order in which they are shown, and the figures."""
    case = _Case(evidence)
    recoveries, uncaused = _recoveries(case)
    resumed, late = _resumed(case)
    overlaps, handed = _overlaps(case)
    return Finding(
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
            uncaused,
            handed,
            _seen_deaths(recoveries),
            _silences(recoveries),
            late,
            _nobody_left(case),
            _sound(case),
            _struck(case),
        ],
        recoveries=recoveries,
        resumed=resumed,
        jobs=dict(Counter(str(job.state) for job in case.jobs.values())),
        runs=sum(len(runs) for runs in case.runs.values()),
        overlaps=overlaps,
    )


class _Case:
    """The evidence with the indexes that several checks look things up in."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.jobs: dict[str, JobRecord] = {job: detail.job for job, detail in evidence.jobs.items()}
        self.runs: dict[str, dict[int, RunRecord]] = {
            job: {run.number: run for run in detail.runs} for job, detail in evidence.jobs.items()
        }
        self.starts = [line for line in evidence.lines if line.what == "start"]
        self.ends = {(line.job, line.run): line for line in evidence.lines if line.what != "start"}
        self.began = {(line.job, line.run): line for line in reversed(self.starts)}
        self.stalled = [event for event in evidence.events if isinstance(event, JobStalled)]
        self.outages = [deed for deed in evidence.deeds if deed.effect == "outage"]
        self._pids = {run.owner: run.pid for detail in evidence.jobs.values() for run in detail.runs}
        self._reigns = [
            (self.told(event), event.owner) for event in evidence.events if isinstance(event, LeadershipAcquired)
        ]

    def out_of_reach(self, since: int, until: int) -> bool:
        """Say whether the storage was out of reach for anybody between two instants."""
        return any(deed.overlaps(since, until) for deed in self.outages)

    def led(self, deed: Deed) -> bool:
        """Say whether a deed struck the one that led the reaping at that time, or may have."""
        if deed.effect == "none" or (deed.effect == "outage" and not deed.pids):
            return False
        leader = next((owner for at, owner in reversed(self._reigns) if at <= deed.at), None)
        if leader is None:
            return True
        # Who never ran a job is one of the reapers.
        return self._pids[leader] in deed.pids if leader in self._pids else deed.where not in self.evidence.hosts

    def at(self, instant: int) -> int:
        """Return the uptime of an instant of the storage's."""
        return instant - self.evidence.offset

    def told(self, event: AnyEvent) -> int:
        """Return the uptime at which an event was recorded."""
        return self.at(at_micros(event))


def _none_lost(case: _Case) -> Check:
    wishes = case.evidence.wishes
    asked = {wish.job for wish in wishes}
    acked = dict.fromkeys(wish.job for wish in wishes if wish.what == "acked")
    doubtful = asked - acked.keys()
    lost = [job for job in acked if job not in case.jobs]
    return _check(
        "no acknowledged job is lost",
        f"{len(acked):,} acknowledged, {len(acked) - len(lost):,} of them found; of {len(doubtful):,} others that were "
        f"asked for, {len(doubtful & case.jobs.keys()):,} are there, too",
        [f"job {job} was acknowledged and is gone" for job in lost],
    )


def _all_over(case: _Case) -> Check:
    return _check(
        "every job is completed",
        _counted(Counter(str(job.state) for job in case.jobs.values())),
        [
            f"job {job.id} is {job.state}" + (f" ({job.error.message})" if job.error else "")
            for job in case.jobs.values()
            if job.state is not State.COMPLETED
        ],
    )


def _nothing_unexpected(case: _Case) -> Check:
    asked = {wish.job for wish in case.evidence.wishes}
    return _check(
        "nothing is there that nobody asked for",
        f"{len(asked):,} asked for, {len(case.jobs):,} found",
        [f"job {job} was asked for by nobody" for job in case.jobs if job not in asked]
        + [f"job {line.job} ran and was asked for by nobody" for line in case.starts if line.job not in asked],
    )


def _one_outcome(case: _Case) -> Check:
    events = case.evidence.events
    told = Counter(
        event.id for event in events if isinstance(event, JobCompleted | JobFailed | JobCancelled | JobExpired)
    )
    rows = Counter(job for job, run in _all_runs(case) if run.ended == "completed")
    done = {job.id for job in case.jobs.values() if job.state is State.COMPLETED}
    return _check(
        "no job has two outcomes",
        f"{told.total():,} outcomes announced, {rows.total():,} runs completed",
        [
            f"job {job} had {told[job]} outcomes announced, and {rows[job]} completed runs"
            for job in dict.fromkeys([*done, *told, *rows])
            if (told[job], rows[job]) != ((1, 1) if job in done else (0, 0))
        ],
    )


def _results_right(case: _Case) -> Check:
    wrong: list[str] = []
    compared = 0
    for job in case.jobs.values():
        row = next((run for run in case.runs[job.id].values() if run.ended == "completed"), None)
        if job.state is not State.COMPLETED or row is None:
            continue
        compared += 1
        if (told := _read(job.result)) != [row.number, row.fence]:
            wrong.append(f"job {job.id} has the result {told}; run {row.number} under fence {row.fence} completed it")
    return _check("every result is that of the run on record", f"{compared:,} compared", wrong)


def _starts_are_runs(case: _Case) -> Check:
    wrong: list[str] = []
    seen = Counter((line.job, line.run) for line in case.starts)
    for line in case.starts:
        run = case.runs.get(line.job, {}).get(line.run)
        if run is None:
            wrong.append(f"run {line.run} of job {line.job} began, and the history has no such run")
        elif (run.fence, run.pid) != (line.fence, line.pid):
            wrong.append(
                f"run {line.run} of job {line.job} began under fence {line.fence} in process {line.pid}; "
                f"the history says fence {run.fence}, process {run.pid}"
            )
    wrong += [f"run {run} of job {job} began {times} times" for (job, run), times in seen.items() if times > 1]
    pieces = f", {case.evidence.pieces} lines cut short by a kill" if case.evidence.pieces else ""
    return _check("every start the handlers noted is a run of its own", f"{len(case.starts):,} starts{pieces}", wrong)


def _completed_were_noted(case: _Case) -> Check:
    total, wrong = 0, list[str]()
    for job, run in _all_runs(case):
        end = case.ends.get((job, run.number))
        if run.ended == "completed":
            total += 1
            if end is None or end.what != "done":
                wrong.append(f"run {run.number} of job {job} completed, and its handler did not say so")
    return _check("every completed run was noted by its handler", f"{total:,} runs", wrong)


def _fences_rise(case: _Case) -> Check:
    wrong: list[str] = []
    for job, runs in case.runs.items():
        for one, next_ in pairwise(runs[number] for number in sorted(runs)):
            if next_.fence <= one.fence:
                wrong.append(f"job {job}: run {next_.number} has fence {next_.fence}, the one before {one.fence}")
    latest: dict[str, int] = {}
    given = 0
    for event in case.evidence.events:
        if isinstance(event, JobStarted):
            given += 1
            if event.fence <= latest.get(event.id, 0):
                wrong.append(f"job {event.id}: fence {event.fence} was given out after {latest[event.id]}")
            latest[event.id] = event.fence
    return _check("fences rise with each job", f"{given:,} given out, in the order of the log", wrong)


def _announced(case: _Case) -> Check:
    """A second run begins only after the log has told what became of the first, by its order and by the clock."""
    wrong: list[str] = []
    why: Counter[str] = Counter()
    told: dict[tuple[str, int], AnyEvent] = {}
    for event in case.evidence.events:
        match event:
            case JobStalled() | JobReleased() | JobRetried():
                told.setdefault((event.id, event.run), event)
            case JobStarted() if event.run > 1:
                before = told.get((event.id, event.run - 1))
                if before is None:
                    wrong.append(f"run {event.run} of job {event.id} was begun before the log told of the one before")
                    continue
                why[_word(before)] += 1
                line = case.began.get((event.id, event.run))
                if line is not None and line.at < case.told(before) - FUZZ:
                    wrong.append(
                        f"the handler's run {event.run} of job {event.id} began "
                        f"{seconds(case.told(before) - line.at)} before the one before was {_word(before)}"
                    )
            case _:
                pass
    for job, record in case.jobs.items():
        for number in range(1, max([record.starts, *case.runs[job]])):
            if (job, number) not in told:
                wrong.append(f"job {job} ran again after its run {number}, and no event told why")
    return _check("every second run was announced before it began", f"{why.total():,}: {_counted(why)}", wrong)


def _recoveries(case: _Case) -> tuple[list[Recovery], Check]:
    """Find the cause of each stall, and how long it took from there."""
    found: list[Recovery] = []
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
    causes = Counter(one.cause for one in found)
    return found, _check("no run was taken without a cause", f"{len(case.stalled):,} stalls: {_counted(causes)}", wrong)


def _recovery(case: _Case, event: JobStalled, run: RunRecord) -> Recovery | None:
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
    return Recovery(
        job=event.id,
        run=event.run,
        cause=cause.kind,
        reason=event.reason,
        delay=max(0, taken - since),
        bound=bound,
        clear=not outages and not reapers and cause.effect != "leave",
        seen=seen,
    )


def _cause(case: _Case, event: JobStalled, pid: int, claimed: int, taken: int, *, again: bool) -> Deed | None:
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


def _seen_deaths(recoveries: list[Recovery]) -> Check:
    name = "jobs of the dead whose supervisor saw it were back in time"
    return _in_time(name, [one for one in recoveries if one.seen])


def _silences(recoveries: list[Recovery]) -> Check:
    name = "all other jobs of the lost were back in time"
    return _in_time(name, [one for one in recoveries if not one.seen])


def _in_time(name: str, recoveries: list[Recovery]) -> Check:
    bounds = sorted({one.bound for one in recoveries})
    allowed = seconds(bounds[0]) if len(bounds) == 1 else "from " + " to ".join(map(seconds, bounds[:1] + bounds[-1:]))
    slowest = (
        f", the slowest after {seconds(max(one.delay for one in recoveries))}; allowed {allowed}" if bounds else ""
    )
    return _check(
        name,
        f"{len(recoveries):,} jobs{slowest}",
        [
            f"run {one.run} of job {one.job} ({one.cause}, {one.reason}) was back after {seconds(one.delay)}; "
            f"allowed {seconds(one.bound)}"
            for one in recoveries
            if one.delay > one.bound
        ],
    )


def _overlaps(case: _Case) -> tuple[int, Check]:
    """Handlers overlap where a stall was announced, and nowhere else."""
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
    told = f"{pairs:,} pairs of runs; {overlaps} overlapped after a stall, none of which could settle"
    return overlaps, _check("no handler was at work on what it had handed back", told, wrong)


def _resumed(case: _Case) -> tuple[list[int], Check]:
    """After each outage that no other follows, and with a host that nothing is done to, runs begin again."""
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
        after = next((at for at in starts if at >= deed.until), None)
        if (
            after is None
            or any(one.effect == "outage" and not one.pids for one in window)
            or idle.issuperset(case.evidence.hosts)
        ):
            continue
        found.append(after - deed.until)
        if after - deed.until > RESUME:
            wrong.append(f"after {deed.kind} no run began for {seconds(after - deed.until)}")
    slowest = f", at the latest after {seconds(max(found))}" if found else ""
    told = f"{len(found)} outages{slowest}; allowed {seconds(RESUME)}"
    return found, _check("after an outage runs begin again in time", told, wrong)


def _nobody_left(case: _Case) -> Check:
    """Nobody ends by itself, but who cannot reach the storage when it starts: whoever started it does so again."""
    evidence = case.evidence
    dead = {pid for deed in evidence.deeds if deed.effect == "death" for pid in deed.pids}
    died = [event for event in evidence.events if isinstance(event, WorkerDied) and event.pid not in dead]
    began = {event.owner for event in evidence.events if isinstance(event, WorkerStarted)}
    wrong = list(evidence.complaints)
    refused = 0
    for event in died:
        if event.owner in began or not case.out_of_reach(case.told(event) - STARTING, case.told(event)):
            how = f"signal {event.signal}, status {event.status}"
            wrong.append(f"worker {event.pid} died ({how}), and nobody had killed it")
        else:
            refused += 1
    for one in evidence.exits:
        if one.status != 1 or not case.out_of_reach(one.began, min(one.at, one.began + STARTING)):
            wrong.append(f"{one.where} ended by itself with the exit status {one.status}")
        else:
            refused += 1
    told = f"{len(evidence.hosts)} hosts; {refused} starts given up as the storage was out of reach"
    return _check("nobody ended who was not made to", told, wrong)


def _sound(case: _Case) -> Check:
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


def _struck(case: _Case) -> Check:
    kinds = Counter(deed.kind for deed in case.evidence.deeds)
    effects = {deed.effect for deed in case.evidence.deeds}
    missing = {"death", "pause"} - effects
    return _check(
        "faults were committed",
        f"{kinds.total():,}: {_counted(kinds)}",
        [f"there was no {effect} among them; give it more time" for effect in sorted(missing)],
    )


def _all_runs(case: _Case) -> Iterator[tuple[str, RunRecord]]:
    for job, runs in case.runs.items():
        for run in runs.values():
            yield job, run


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


def _word(event: AnyEvent) -> str:
    return type(event).__name__.removeprefix("Job").lower()


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())) or "none"


def _check(name: str, told: str, wrong: list[str]) -> Check:
    return Check(name, told, len(wrong), tuple(wrong[:EXAMPLES]))


def _read(result: bytes | None) -> list[int] | None:
    try:
        return msgspec.json.decode(result or b"", type=list[int])
    except msgspec.MsgspecError:
        return None
