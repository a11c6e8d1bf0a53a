"""Why a job does not run: a case for each cause, made of records and a survey."""

from typing import Any, Literal, get_args

import pytest
from msgspec import structs

from tenure import Timing
from tenure.clock import SECOND
from tenure.core.job import (
    CollectKey,
    DebounceKey,
    JobDetail,
    JobRecord,
    Key,
    Owner,
    Policy,
    RateKey,
    RecordedError,
    Ref,
    RunRecord,
    unreadable_record,
)
from tenure.core.lifecycle import State
from tenure.core.move import MoveMark
from tenure.core.retry import Backoff
from tenure.core.waiting import Links, Need, Wait
from tenure.ops.why import Cause, Reason, WhyInput, explain
from tenure.storage.protocol import QueueSurvey, Settings, StartLimit, Survey, WorkerSurvey

NOW = 1_800_000_000 * SECOND
MINUTE = 60 * SECOND
WORKER = WorkerSurvey(owner=Owner("w", "host:1", "host", 1), queues=("q",), concurrency=2)
SURVEY = Survey(queues=(QueueSurvey(queue="q", counts={State.WAITING: 3}),), workers=(WORKER,), swept_ago=0, now=NOW)


def job(id_: str = "a", state: State = State.WAITING, **fields: Any) -> JobRecord:
    given: dict[str, Any] = {"queue": "q", "task": "t", "payload": b"[]", "score": 0, "run_at": NOW, "created": NOW}
    return JobRecord(id=id_, state=state, **(given | fields))


def active(id_: str = "a", **fields: Any) -> JobRecord:
    given: dict[str, Any] = {"owner": "w", "started": NOW - MINUTE, "lease_until": NOW + SECOND, "starts": 1}
    return job(id_, State.ACTIVE, **(given | fields))


def delayed(**fields: Any) -> JobRecord:
    given: dict[str, Any] = {"run_at": NOW + MINUTE}
    return job(state=State.DELAYED, **(given | fields))


def suspended(want: Literal["all", "any"] = "all") -> JobRecord:
    needs = Need(box="a", source=Ref("q", "a")), Need(box="signal:approved")
    return job(state=State.SUSPENDED, links=Links(Wait(needs, want)))


def ran(ended: str | None, reason: str | None = None) -> RunRecord:
    return RunRecord(number=1, fence=1, owner="w", worker="host:1", start=0, ended=ended, reason=reason)


def tuned(**settings: Any) -> Survey:
    return structs.replace(SURVEY, queues=(QueueSurvey(queue="q", settings=Settings(**settings)),))


def limited(rate: str | None) -> Survey:
    return structs.replace(SURVEY, queues=(QueueSurvey(queue="q", limits=(StartLimit(rate, NOW + MINUTE),)),))


def served(*workers: WorkerSurvey) -> Survey:
    return structs.replace(SURVEY, workers=workers)


def like(**fields: Any) -> WorkerSurvey:
    return structs.replace(WORKER, **fields)


def reasons(record: JobRecord, survey: Survey = SURVEY, *runs: RunRecord, **evidence: Any) -> list[Reason]:
    found = explain(WhyInput(detail=JobDetail(record, runs), survey=survey, **evidence), Timing())
    assert all(reason.text[0].islower() and not reason.text.endswith(".") for reason in found)
    return found


HOLDER = active("holder", keys=(Key("account:7"),), started=NOW - 5 * MINUTE)
KEYED = job(keys=(Key("account:7"),), parked_under="account:7")
ERROR = RecordedError("ValueError", "no such file\nand more")

CASES: list[tuple[Cause, list[Reason], str]] = [
    ("unreadable", reasons(job(error=unreadable_record("policy"))), "policy"),
    ("completed", reasons(job(state=State.COMPLETED, starts=2, finished=NOW)), "completed, after 2 runs"),
    (
        "failed",
        reasons(job(state=State.FAILED, starts=1, reason="rejected", error=ERROR, finished=NOW)),
        "after 1 run: its handler rejected it (ValueError: no such file)",
    ),
    (
        "cancelled",
        reasons(job(state=State.CANCELLED, cancel_by="ann", cancel_reason="a duplicate", finished=NOW)),
        "cancelled by ann, after no run: a duplicate",
    ),
    ("expired", reasons(job(state=State.EXPIRED, ttl=MINUTE, finished=NOW)), "did not start within its time to live"),
    ("redrive_due", reasons(job(state=State.FAILED, redrive_at=NOW + MINUTE)), "puts it back in 60.0 s, at 2027-01-15"),
    (
        "running",
        reasons(active(run_until=NOW + MINUTE)),
        "on worker 'host:1', since 60.0 s ago; it is stopped in 60.0 s",
    ),
    ("stopping", reasons(active(cancel_at=NOW - SECOND, cancel_reason="too slow")), "1.0 s ago: too slow"),
    (
        "unstopped",
        reasons(active(cancel_at=NOW - SECOND), served(like(unstopped=(Ref("q", "a"),)))),
        "goes on although worker 'host:1' has asked it to stop",
    ),
    ("worker_silent", reasons(active(), served(like(seen_ago=MINUTE))), "last beat came 60.0 s ago"),
    ("worker_silent", reasons(active(), served(like(died=True))), "the process of worker 'host:1' has died"),
    ("lease_out", reasons(active(lease_until=NOW - SECOND)), "ran out 1.0 s ago"),
    (
        "suspect",
        reasons(active(lease_until=NOW - SECOND, suspect_until=NOW + 2 * SECOND)),
        "it is recovered in 2.0 s",
    ),
    ("debounced", reasons(delayed(merge=DebounceKey("user:1", MINUTE))), "debounce key 'user:1'"),
    ("collecting", reasons(delayed(merge=CollectKey("all", MINUTE, 50), collected=12)), "12 of 50 so far"),
    (
        "retry_delay",
        reasons(
            delayed(failures=2, starts=2, policy=Policy(retry=Backoff(max_attempts=5))),
            SURVEY,
            ran("raised", "ValueError"),
        ),
        "run 2 failed; attempt 3 of 5 is due in 60.0 s",
    ),
    ("snoozed", reasons(delayed(releases=1), SURVEY, ran("released", "snoozed")), "asked to run later"),
    ("rate_limited", reasons(delayed(releases=1), SURVEY, ran("released", "rate_limited")), "raised RateLimited"),
    ("rate_limited", reasons(job(), limited(None)), "nothing starts in queue 'q' before 2027-01-15"),
    ("rate_limited", reasons(job(parked_under="rate:api"), limited("api")), "under rate 'api' before 2027-01-15"),
    ("delayed", reasons(delayed()), "due in 60.0 s"),
    ("suspended", reasons(suspended()), "waits for the job 'a' of the queue 'q' and 'signal:approved'"),
    ("suspended", reasons(suspended("any")), "waits for the job 'a' of the queue 'q' or 'signal:approved'"),
    ("overdue", reasons(delayed(run_at=NOW - SECOND)), "due for 1.0 s"),
    ("expires_first", reasons(delayed(expires_at=NOW + SECOND)), "expires in 1.0 s"),
    ("expires_first", reasons(job(expires_at=NOW - SECOND)), "ended 1.0 s ago"),
    ("queue_moved", reasons(job(), tuned(moved=MoveMark("redis://there", "1"))), "move to redis://there"),
    ("queue_paused", reasons(job(), tuned(paused=True)), "queue 'q' is paused"),
    ("task_paused", reasons(job(), structs.replace(SURVEY, paused_tasks=("t",))), "task 't' is paused"),
    ("task_paused", reasons(job(parked_under="paused:t")), "task 't' was paused"),
    ("unknown_task", reasons(job(parked_under="unknown:t:1"), served(like(tasks={"u": 1}))), "knows task 't'"),
    ("unknown_task", reasons(job(), served(like(tasks={"u": 1}))), "knows task 't'"),
    (
        "newer_payload",
        reasons(job(parked_under="unknown:t:3"), served(like(tasks={"t": 1}), like(tasks={"t": 2}))),
        "version 3 of task 't', and the workers of its queue read version 2 at most",
    ),
    (
        "rate",
        reasons(job(parked_under="rate:queue"), tuned(rate=RateKey("queue", 10 * SECOND))),
        "the rate of its queue holds it back: one start in 10.0 s",
    ),
    ("rate", reasons(job(parked_under="rate:task:t", rates=(RateKey("task:t", SECOND),))), "the rate of task 't'"),
    (
        "key",
        reasons(KEYED, active=(HOLDER,)),
        "concurrency key 'account:7' is full (1 at once): it is held by job holder, since 5.0 minutes ago",
    ),
    ("key", reasons(KEYED), "held by no active job; the next sweep"),
    ("key", reasons(KEYED, complete=False), "not among the newest active ones"),
    (
        "key",
        reasons(job(parked_under="singleton:t"), active=(active("other", keys=(Key("singleton:t"),)),)),
        "another job of singleton task 't' runs: other",
    ),
    ("no_worker", reasons(job(), served()), "no live worker serves queue 'q'"),
    ("no_worker", reasons(job(), served(like(queues=("other",)))), "no live worker serves queue 'q'"),
    ("no_worker", reasons(job(), served(like(seen_ago=MINUTE))), "no live worker serves queue 'q'"),
    ("workers_quiet", reasons(job(), served(like(quiet=True))), "quiet by order"),
    ("workers_stopping", reasons(job(), served(like(why="no descriptors are left"))), "no descriptors are left"),
    ("workers_stopping", reasons(job(), served(like(stopping=True))), "stops or is quiet"),
    (
        "slots_full",
        reasons(job(), served(like(active=2)), active=(active("young"), active("old", started=NOW - 3 * MINUTE))),
        "all 2 slots of the worker that could run it are taken; job old has run longest, since 3.0 minutes ago",
    ),
    ("quarantined", reasons(job(quarantined=True)), "a process of its own"),
    ("turn", reasons(job(fair_key="acme", run_at=NOW - SECOND)), "3 jobs wait in queue 'q', this one since 1.0 s ago"),
    (
        "reaper_late",
        reasons(active(lease_until=NOW - MINUTE), structs.replace(SURVEY, swept_ago=None))[1:],
        "no process has ever swept",
    ),
]
"""Cause, what was found (it comes first), and a part of its text."""


@pytest.mark.parametrize(("cause", "found", "text"), CASES, ids=[case[0] for case in CASES])
def test_the_decisive_cause_comes_first(cause: Cause, found: list[Reason], text: str) -> None:
    assert found[0].cause == cause
    assert text in found[0].text


def test_each_cause_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(get_args(Cause))


def test_a_job_that_waits_for_a_key_names_its_holder() -> None:
    [reason, *_] = reasons(KEYED, active=(HOLDER,))

    assert reason.blocker == HOLDER.ref
    assert reason.since == HOLDER.started
    assert reason.remedy == "if that run hangs: tenure jobs why holder"


def test_all_other_causes_follow() -> None:
    survey = structs.replace(tuned(paused=True), workers=(), paused_tasks=("t",))

    assert [reason.cause for reason in reasons(KEYED, survey, active=(HOLDER,))] == [
        "queue_paused", "task_paused", "key", "no_worker",
    ]  # fmt: skip
    assert [reason.cause for reason in reasons(delayed(), survey)] == [
        "delayed", "queue_paused", "task_paused", "no_worker",
    ]  # fmt: skip


def test_a_job_that_runs_has_no_cause_to_wait() -> None:
    assert [reason.cause for reason in reasons(active(), tuned(paused=True))] == ["running"]
    assert [reason.cause for reason in reasons(job(state=State.COMPLETED), served())] == ["completed"]
