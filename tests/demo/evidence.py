"""A small valid case: jobs that lost their workers to kills and to a pause, were released, or held the interpreter."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
from msgspec import structs

from tenure.core.duration import moment
from tenure.core.events import JobCompleted, JobReleased, JobStalled, RunFenced
from tenure.core.job import JobDetail, JobRecord, Owner, Ref, RunRecord, StallReason
from tenure.core.lifecycle import State
from tenure_testing.demo.evidence import DemoBounds, DemoEvidence, Fault, HeldRun
from tenure_testing.demo.handler_log import HandlerLogLine
from tenure_testing.demo.work import Facts, examine

SECOND = 1_000_000
START = 1_700_000_000 * SECOND

KILLED = Owner("killed", pid=11)
PAUSED = Owner("paused", pid=12)
SOUND = Owner("sound", pid=13)
HUNG = Owner("hung", pid=14)
GIL_HOLDER = Owner("gil_holder", pid=15)

ENQUEUED = {"plain": "a.py", "struck": "b.py", "held": "c.py", "returned": "a.py", "hung": "b.py", "gil_holder": "c.py"}

PLACE = 'File "/demo/bad_handlers.py", line 29'
POST_MORTEM = f"its process was killed\n  {PLACE}, in wait_forever"


def facts(path: str) -> Facts:
    return examine(path.encode(), python=False)


def valid_case() -> DemoEvidence:
    runs = {
        "plain": [run(1, SOUND, "completed")],
        "struck": [run(1, KILLED, "stalled"), run(2, SOUND, "completed")],
        "held": [run(1, PAUSED, "stalled"), run(2, SOUND, "completed")],
        "returned": [run(1, SOUND, "released"), run(2, SOUND, "completed")],
        "hung": [run(1, HUNG, "stalled", detail=POST_MORTEM), run(2, SOUND, "completed")],
        "gil_holder": [run(1, GIL_HOLDER, "completed", end=START + 6 * SECOND)],
    }
    return DemoEvidence(
        enqueued=dict(ENQUEUED),
        expected={path: facts(path) for path in ENQUEUED.values()},
        details={job: detail(job, runs[job]) for job in ENQUEUED},
        found=[Ref("demo", job) for job in ENQUEUED],
        lines=[line for job in ENQUEUED for item in runs[job] for line in noted(job, item)],
        events=[
            stalled("struck", KILLED, "process_died", START + SECOND // 10),
            stalled("held", PAUSED, "lease_expired", START + 3 * SECOND),
            stalled("hung", HUNG, "process_died", START + SECOND // 10, POST_MORTEM),
            JobReleased(queue="demo", id="returned", task="t", run=1, reason="shutdown"),
            RunFenced(
                queue="demo", id="held", task="t", run=2, fence=101, current_fence=102, owner="paused", write="settle"
            ),
            *(completed(job, len(runs[job])) for job in ENQUEUED),
        ],
        faults=[
            Fault("kill", KILLED, True, START, (HeldRun("struck", 1, 101),)),
            Fault("pause", PAUSED, False, START, (HeldRun("held", 1, 101),), START + 4 * SECOND),
            Fault("kill", HUNG, False, START, (HeldRun("hung", 1, 101),)),
        ],
        kills=2,
        hung="hung",
        gil_holder="gil_holder",
        bounds=DemoBounds(death=SECOND, pause=5 * SECOND, gil_holding=5 * SECOND),
    )


def run(number: int, owner: Owner, ended: str, *, end: int = START + SECOND, detail: str | None = None) -> RunRecord:
    return RunRecord(
        number=number,
        fence=100 + number,
        owner=owner.id,
        pid=owner.pid,
        start=START,
        end=end,
        ended=ended,
        detail=detail,
    )


def detail(job: str, runs: list[RunRecord]) -> JobDetail:
    record = JobRecord(
        queue="demo",
        id=job,
        task="t",
        state=State.COMPLETED,
        payload=b"",
        score=0,
        run_at=START,
        created=START,
        fence=100 + len(runs),
        starts=len(runs),
        result=msgspec.json.encode(facts(ENQUEUED[job])),
    )
    return JobDetail(record, tuple(runs))


def noted(job: str, one: RunRecord) -> list[HandlerLogLine]:
    begun = HandlerLogLine(job=job, run=one.number, fence=one.fence, pid=one.pid, parent=10, mark="start")
    # The killed workers' handlers never ended; the paused one's did, too late.
    if one.owner == KILLED.id:
        return [begun]
    if one.owner == HUNG.id:
        return [structs.replace(begun, place=PLACE)]
    if (job, one.number) == ("hung", 2):
        # In quarantine.
        begun = structs.replace(begun, pid=99, parent=one.pid)
    answer = None if one.ended == "released" else facts(ENQUEUED[job])
    held = 6 * SECOND if one.owner == GIL_HOLDER.id else None
    return [begun, structs.replace(begun, mark="end", answer=answer, held=held)]


def stalled(job: str, owner: Owner, reason: StallReason, at: int, post_mortem: str | None = None) -> JobStalled:
    return JobStalled(
        queue="demo",
        id=job,
        task="t",
        run=1,
        count=1,
        action="recovered",
        reason=reason,
        owner=owner.id,
        post_mortem=post_mortem,
        at=moment(at),
    )


def completed(job: str, number: int) -> JobCompleted:
    return JobCompleted(queue="demo", id=job, task="t", run=number, attempt=1, at=moment(START) + timedelta(seconds=5))


def edit_job(case: DemoEvidence, job: str, **changes: object) -> None:
    found = case.details[job]
    assert found is not None
    case.details[job] = structs.replace(found, job=structs.replace(found.job, **changes))


def edit_run(case: DemoEvidence, job: str, number: int, **changes: object) -> None:
    found = case.details[job]
    assert found is not None
    runs = [structs.replace(item, **changes) if item.number == number else item for item in found.runs]
    case.details[job] = structs.replace(found, runs=tuple(runs))


def edit_events(case: DemoEvidence, which: type, job: str, **changes: object) -> None:
    case.events = [
        structs.replace(event, **changes) if isinstance(event, which) and getattr(event, "id", "") == job else event
        for event in case.events
    ]


def drop_events(case: DemoEvidence, which: type, job: str) -> None:
    case.events = [event for event in case.events if not (isinstance(event, which) and getattr(event, "id", "") == job)]


def edit_lines(case: DemoEvidence, change: Callable[[HandlerLogLine], HandlerLogLine | None]) -> None:
    case.lines = [kept for line in case.lines if (kept := change(line)) is not None]
