"""The diagnosis: what it finds in a survey and in records, and what it does not."""

from typing import Any

import pytest
from msgspec import structs

from tenure import Timing
from tenure.clock import SECOND
from tenure.core.job import JobRecord, Key, NewJob, Owner, Ref
from tenure.core.leadership import Term
from tenure.core.lifecycle import State
from tenure.core.schedule import Schedule
from tenure.ops.diagnosis import DiagnosisInput, TaskFacts, diagnose
from tenure.storage.protocol import Finding, QueueSurvey, Settings, Survey, UnknownTask, WorkerSurvey

NOW = 1_800_000_000 * SECOND
HOUR = 3600 * SECOND
WORKER = WorkerSurvey(owner=Owner("w", "host:1", "host", 1), queues=("q",), concurrency=10)
LEADER = Term("*", "w", 7, 4 * SECOND)
WELL = Survey(workers=(WORKER,), leaders=(LEADER,), swept_ago=SECOND, now=NOW)


def queue(name: str = "q", *, settings: Settings | None = None, **counts: int) -> QueueSurvey:
    by_state = {State(state): count for state, count in counts.items()}
    waits = 90 * SECOND if counts.get("waiting") else None
    return QueueSurvey(queue=name, counts=by_state, settings=settings or Settings(), oldest_waiting=waits)


def job(id_: str = "a", state: State = State.ACTIVE, **fields: Any) -> JobRecord:
    options_: dict[str, Any] = {"queue": "q", "task": "t", "payload": b"[]", "score": 0, "run_at": NOW, "created": NOW}
    return JobRecord(id=id_, state=state, **(options_ | fields))


def found(survey: Survey = WELL, **evidence: Any) -> list[Finding]:
    """Return the findings that report a problem; each has a remedy."""
    host: dict[str, Any] = {"asked_at": NOW, "answered_at": NOW}
    findings = [
        finding
        for finding in diagnose(DiagnosisInput(survey=survey, **(host | evidence)), Timing())
        if finding.level != "ok"
    ]
    assert all(finding.remedy for finding in findings)
    return findings


def one(survey: Survey = WELL, **evidence: Any) -> Finding:
    (finding,) = found(survey, **evidence)
    return finding


def test_a_healthy_diagnosis_lists_all_subjects() -> None:
    findings = diagnose(DiagnosisInput(survey=WELL, asked_at=NOW, answered_at=NOW, tasks={}), Timing())

    assert {finding.level for finding in findings} == {"ok"}
    assert {finding.subject for finding in findings} == {
        *("clock", "reaper", "leases", "workers", "queues", "parked", "tasks")
    }


@pytest.mark.parametrize(
    ("asked", "answered", "message"),
    [
        (-2 * SECOND, -2 * SECOND, "2.0 s ahead of"),
        (3 * SECOND, 4 * SECOND, "3.0 s behind"),
        (-5 * SECOND, -1 * SECOND, "1.0 s ahead of"),
    ],
)
def test_clocks_that_differ_by_more_than_the_call_took_are_reported(asked: int, answered: int, message: str) -> None:
    finding = one(asked_at=NOW + asked, answered_at=NOW + answered)

    assert (finding.level, finding.subject) == ("warning", "clock")
    assert message in finding.message


def test_a_slow_answer_is_not_a_difference_of_clocks() -> None:
    assert found(asked_at=NOW - 3 * SECOND, answered_at=NOW + 3 * SECOND) == []


def test_active_jobs_without_any_sweep_are_an_error() -> None:
    finding = one(structs.replace(WELL, queues=(queue(active=2),), swept_ago=None, leaders=()))

    assert (finding.level, finding.subject) == ("error", "reaper")
    assert finding.message.startswith("2 jobs are active and no process has ever swept")


def test_missing_sweeps_are_a_warning_while_no_job_is_active() -> None:
    idle = structs.replace(WELL, queues=(queue(delayed=1),), swept_ago=HOUR)

    assert one(idle).subject == "reaper"
    assert one(idle).level == "warning"
    assert found(structs.replace(WELL, queues=(queue(completed=1),), swept_ago=HOUR)) == []


def test_a_job_long_past_its_lease_is_an_error_with_any_reaper() -> None:
    # The recovery bound is 27 s; half the lease of 20 s is added, for a grace after a pause.
    late, suspect = job("late", lease_until=NOW - 38 * SECOND), job("suspect", lease_until=NOW - 36 * SECOND)
    finding = one(active=(late, suspect, job("well", lease_until=NOW + 5 * SECOND)))

    assert (finding.level, finding.subject) == ("error", "leases")
    assert finding.message.startswith("job late in queue 'q' is active")
    assert "log of the leading reaper" in finding.remedy

    unswept = structs.replace(WELL, queues=(queue(active=1),), swept_ago=HOUR)
    assert [finding.remedy for finding in found(unswept, active=(late,))] == [
        "start a worker, or tenure reaper",
        "start a worker, or tenure reaper",
    ]


def test_a_stale_worker_is_a_warning_with_its_name() -> None:
    finding = one(structs.replace(WELL, workers=(WORKER, structs.replace(WORKER, seen_ago=16 * SECOND))))

    assert (finding.level, finding.subject) == ("warning", "workers")
    assert "'host:1' is stale: last seen 16.0 s ago" in finding.message


def test_a_run_that_ignores_its_stop_is_a_warning_with_its_job() -> None:
    worker = structs.replace(WORKER, unstopped=(Ref("q", "a"),))
    finding = one(structs.replace(WELL, workers=(worker,)))

    assert (finding.level, finding.subject) == ("warning", "exclusive")
    assert "'host:1' (pid 1)" in finding.message
    assert "job 'a'" in finding.message
    gone = found(structs.replace(WELL, workers=(structs.replace(worker, died=True), WORKER)))
    assert "exclusive" not in [finding.subject for finding in gone]


def test_jobs_that_wait_where_no_worker_serves_are_an_error() -> None:
    finding = one(structs.replace(WELL, queues=(queue(waiting=1), queue("mail", waiting=3))))

    assert (finding.level, finding.subject) == ("error", "queues")
    assert finding.message == "3 jobs wait in queue 'mail', one of them for 90.0 s, and no live worker serves it"
    assert "-q mail" in finding.remedy


def test_jobs_in_a_paused_queue_are_a_warning_even_without_a_worker() -> None:
    paused = queue("mail", settings=Settings(paused=True), waiting=3)
    finding = one(structs.replace(WELL, queues=(paused,)))

    assert (finding.level, finding.subject) == ("warning", "paused")
    assert finding.remedy.endswith("tenure queues resume mail")


def test_jobs_of_a_paused_task_are_a_warning() -> None:
    parked = job(state=State.WAITING, parked_under="paused:t")
    finding = one(structs.replace(WELL, paused_tasks=("t", "idle")), pending=(parked,))

    assert finding.message == "1 job of task 't' held back, which is paused"


def parked(id_: str, **fields: Any) -> JobRecord:
    return job(id_, State.WAITING, keys=(Key("k"),), **({"parked_under": "k"} | fields))


def test_a_job_parked_under_a_free_key_is_an_error() -> None:
    finding = one(pending=(parked("a"), parked("b")))

    assert (finding.level, finding.subject) == ("error", "parked")
    assert finding.message == "2 jobs in queue 'q' wait for key 'k', and no job holds it"


@pytest.mark.parametrize(
    "evidence",
    [
        {"active": (job("holder", keys=(Key("k"),)),)},
        {"pending": (parked("a"), parked("next", parked_under=None))},
        {"complete": False},
        {"pending": (parked("a", parked_under="rate:queue"),)},
    ],
    ids=["held", "another job is next in line", "not all was seen", "a rate lets it in"],
)
def test_a_job_parked_under_a_held_key_is_not_a_finding(evidence: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"pending": (parked("a"),)} | evidence

    assert found(**fields) == []


def test_a_slot_held_for_hours_by_a_run_without_limit_is_a_warning() -> None:
    holder = job("holder", keys=(Key("k"),), started=NOW - 3 * HOUR)
    finding = one(active=(holder,), pending=(parked("a"),))

    assert (finding.level, finding.subject) == ("warning", "parked")
    assert "which job holder of task 't' has held for 3.0 hours" in finding.message
    assert found(active=(structs.replace(holder, run_until=NOW + HOUR),), pending=(parked("a"),)) == []


def test_a_task_that_no_live_worker_has_known_for_ten_minutes_is_a_warning() -> None:
    def waiting(minutes: int, **known: int) -> Survey:
        unknown = UnknownTask("ship", 2, minutes * 60 * SECOND)
        worker = structs.replace(WORKER, tasks=known)
        return structs.replace(WELL, queues=(structs.replace(queue(waiting=1), unknown=(unknown,)),), workers=(worker,))

    finding = one(waiting(10, ship=1))

    assert (finding.level, finding.subject) == ("warning", "no_handler")
    assert finding.message == (
        "jobs of task 'ship' with payload version 2 wait in queue 'q', one of them for 10.0 minutes, and no live "
        "worker that serves it knows both"
    )
    assert found(waiting(9)) == []
    assert found(waiting(10, ship=2)) == []


def test_an_overdue_schedule_is_an_error() -> None:
    job = NewJob(queue="q", id="", task="t", payload=b"[]")
    due = Schedule(name="nightly", job=job, every=HOUR, next_tick=NOW - 60 * SECOND)
    finding = one(structs.replace(WELL, schedules=(due, structs.replace(due, name="off", paused=True))))

    assert (finding.level, finding.subject) == ("error", "schedules")
    assert finding.message == "1 schedule due and not fired, up to 60.0 s late: nightly"
    assert found(structs.replace(WELL, schedules=(structs.replace(due, next_tick=NOW - SECOND),))) == []


def test_tasks_without_a_timeout_and_jobs_of_unknown_tasks_are_warnings() -> None:
    tasks = {"t": TaskFacts("q", True), **{f"slow{n}": TaskFacts("q", False) for n in range(7)}}
    unbounded, unknown = found(tasks=tasks, pending=(job(state=State.WAITING), job(state=State.DELAYED, task="gone")))

    assert unbounded.message.startswith(
        "7 tasks with neither timeout nor heartbeat_timeout: slow0, slow1, slow2, slow3, slow4 and 2 more;"
    )
    assert unknown.message == "1 job of task 'gone' wait, and the given app has no such task"
    assert (unbounded.level, unknown.level) == ("warning", "warning")


def test_without_an_app_the_finding_on_tasks_names_the_command() -> None:
    findings = diagnose(
        DiagnosisInput(survey=WELL, asked_at=NOW, answered_at=NOW, pending=(job(task="gone"),)), Timing()
    )
    (tasks,) = [finding for finding in findings if finding.subject == "tasks"]

    assert tasks.level == "ok"
    assert "tenure doctor module:app" in tasks.remedy
