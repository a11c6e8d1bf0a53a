"""A small valid case: five jobs; one lost its worker to a kill, one to a stop, one was released, one failed."""

from datetime import timedelta

import msgspec
from msgspec import structs

from tenure.core.duration import moment
from tenure.core.events import (
    AnyEvent,
    JobCompleted,
    JobReleased,
    JobRetried,
    JobStalled,
    JobStarted,
    LeadershipAcquired,
    WorkerDied,
)
from tenure.core.job import JobDetail, JobRecord, Owner, RunRecord, StallReason
from tenure.core.lifecycle import State
from tenure.options import Timing
from tenure_testing.chaos.records import ChaosBounds, ChaosEvidence, Deed, EnqueuedCall, HistoryLine

SECOND = 1_000_000
OFFSET = 1_700_000_000 * SECOND
BEGAN = 1_000 * SECOND
"""When the runs began, as uptime."""

KILLED = Owner("killed", pid=11)
STOPPED = Owner("stopped", pid=12)
SOUND = Owner("sound", pid=13)

BOUNDS = ChaosBounds.of(Timing())

RUNS: dict[str, list[tuple[Owner, str]]] = {
    "plain": [(SOUND, "completed")],
    "struck": [(KILLED, "stalled"), (SOUND, "completed")],
    "held": [(STOPPED, "stalled"), (SOUND, "completed")],
    "returned": [(SOUND, "released"), (SOUND, "completed")],
    "fallen": [(SOUND, "retried"), (SOUND, "completed")],
}
"""Which worker ran which job, and how each run ended."""

TAKEN = {"struck": SECOND // 10, "held": 24 * SECOND, "returned": SECOND, "fallen": SECOND}
"""The time from the first run's start to its end."""


def valid_case() -> ChaosEvidence:
    return ChaosEvidence(
        enqueued_calls=[
            *(EnqueuedCall(job, what, BEGAN - SECOND) for job in RUNS for what in ("asked", "acked")),
            EnqueuedCall("refused", "asked", BEGAN),
            EnqueuedCall("refused", "refused", BEGAN, "StorageUnavailableError"),
        ],
        jobs={job: detail(job) for job in RUNS},
        lines=[line for job in RUNS for line in noted(job)],
        events=[
            *(event for job in RUNS for event in events_of(job)),
            WorkerDied(owner=KILLED.id, host="here", pid=KILLED.pid, signal=9, jobs=1),
            LeadershipAcquired(scope="*", owner=SOUND.id, epoch=1, at=moment(OFFSET)),
        ],
        deeds=[
            Deed(
                kind="kill worker",
                effect="death",
                where="host-0",
                pids=(KILLED.pid,),
                at=BEGAN + 10,
                until=BEGAN + SECOND,
                alone=True,
            ),
            Deed(
                kind="stop worker",
                effect="pause",
                where="host-1",
                pids=(STOPPED.pid,),
                at=BEGAN + 2 * SECOND,
                until=BEGAN + 30 * SECOND,
            ),
        ],
        bounds=BOUNDS,
        offset=OFFSET,
        ended=BEGAN + 60 * SECOND,
        hosts=("host-0", "host-1", "host-2"),
    )


def begin(job: str, number: int) -> int:
    return BEGAN if number == 1 else BEGAN + TAKEN[job] + SECOND // 10


def run(job: str, number: int) -> RunRecord:
    owner, ended = RUNS[job][number - 1]
    return RunRecord(
        number=number, fence=100 + number, owner=owner.id, pid=owner.pid, start=OFFSET + begin(job, number), ended=ended
    )


def detail(job: str) -> JobDetail:
    runs = tuple(run(job, number + 1) for number in range(len(RUNS[job])))
    record = JobRecord(
        queue="chaos",
        id=job,
        task="t",
        state=State.COMPLETED,
        payload=b"",
        score=0,
        run_at=OFFSET,
        created=OFFSET,
        fence=runs[-1].fence,
        starts=len(runs),
        result=msgspec.json.encode([len(runs), runs[-1].fence]),
    )
    return JobDetail(record, runs)


def noted(job: str) -> list[HistoryLine]:
    lines: list[HistoryLine] = []
    for number, (owner, ended) in enumerate(RUNS[job], 1):
        start = HistoryLine(job, number, 100 + number, owner.pid, "start", begin(job, number))
        lines.append(start)
        match ended:
            case "completed":
                lines.append(structs.replace(start, what="done", at=start.at + 10))
            case "retried":
                lines.append(structs.replace(start, what="failed", at=start.at + 10))
            case "released":
                lines.append(structs.replace(start, what="stopped", at=start.at + TAKEN[job]))
            case _ if owner is STOPPED:
                # It was resumed, and ended at the same time as the run that had replaced it.
                lines.append(structs.replace(start, what="done", at=BEGAN + 31 * SECOND))
            case _:
                pass
    return lines


def events_of(job: str) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    for number, (owner, ended) in enumerate(RUNS[job], 1):
        events.append(
            JobStarted(
                queue="chaos",
                id=job,
                task="t",
                run=number,
                attempt=1,
                owner=owner.id,
                fence=100 + number,
                at=moment(OFFSET + begin(job, number)),
            )
        )
        over = moment(OFFSET + BEGAN + TAKEN.get(job, 0))
        match ended:
            case "stalled":
                reason: StallReason = "process_died" if owner is KILLED else "lease_expired"
                events.append(
                    JobStalled(
                        queue="chaos",
                        id=job,
                        task="t",
                        run=number,
                        count=1,
                        action="recovered",
                        reason=reason,
                        owner=owner.id,
                        at=over,
                    )
                )
            case "released":
                events.append(JobReleased(queue="chaos", id=job, task="t", run=number, reason="shutdown", at=over))
            case "retried":
                events.append(
                    JobRetried(
                        queue="chaos", id=job, task="t", run=number, attempt=1, next_attempt=2, delay=0.1, at=over
                    )
                )
            case _:
                end = over + timedelta(seconds=1)
                events.append(JobCompleted(queue="chaos", id=job, task="t", run=number, attempt=1, at=end))
    return events


def edit_job(case: ChaosEvidence, job: str, **changes: object) -> None:
    found = case.jobs[job]
    case.jobs[job] = structs.replace(found, job=structs.replace(found.job, **changes))


def edit_run(case: ChaosEvidence, job: str, number: int, **changes: object) -> None:
    found = case.jobs[job]
    runs = [structs.replace(item, **changes) if item.number == number else item for item in found.runs]
    case.jobs[job] = structs.replace(found, runs=tuple(runs))


def edit_line(case: ChaosEvidence, job: str, number: int, what: str, **changes: object) -> None:
    case.lines = [
        structs.replace(line, **changes) if (line.job, line.run, line.what) == (job, number, what) else line
        for line in case.lines
    ]


def drop_lines(case: ChaosEvidence, job: str, what: str) -> None:
    case.lines = [line for line in case.lines if (line.job, line.what) != (job, what)]


def edit_event(case: ChaosEvidence, which: type, job: str, **changes: object) -> None:
    case.events = [
        structs.replace(event, **changes) if isinstance(event, which) and getattr(event, "id", "") == job else event
        for event in case.events
    ]


def drop_event(case: ChaosEvidence, which: type, job: str) -> AnyEvent:
    (found,) = [event for event in case.events if isinstance(event, which) and getattr(event, "id", "") == job]
    case.events = [event for event in case.events if event is not found]
    return found
