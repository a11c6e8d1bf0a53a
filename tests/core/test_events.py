"""Events: their names, and that the log returns them unchanged."""

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.events import (
    AnyEvent,
    Event,
    EventsTrimmed,
    FlowBroken,
    JobCancelled,
    JobCollected,
    JobCompleted,
    JobDebounced,
    JobDeduplicated,
    JobDeleted,
    JobEnqueued,
    JobEvent,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRedriven,
    JobReleased,
    JobRepaired,
    JobRescheduled,
    JobRetried,
    JobStalled,
    JobStarted,
    JobStopIgnored,
    JobSuspected,
    JobThrottled,
    LeadershipAcquired,
    LeadershipLost,
    LeaseLost,
    QueueDrained,
    QueueLimited,
    QueuePaused,
    QueueResumed,
    ReaperFailed,
    RunFenced,
    ScheduleFired,
    ScheduleMissed,
    ScheduleSkipped,
    StorageLogDeleted,
    StorageReplaced,
    StorageRewound,
    UnreadableEvent,
    WorkerDied,
    WorkerFailed,
    WorkerHung,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
    at_micros,
    from_log,
    name_of,
    stamped,
    to_log,
)
from tests.core.cases import ERROR, NOW

QUEUE, ID, TASK = "größe: ü", "a/b:c", "send"
DUE = datetime(2026, 7, 1, 12, tzinfo=UTC)
OWNER = "00000000000a11ce"

SAMPLES: tuple[AnyEvent, ...] = (
    JobEnqueued(queue=QUEUE, id=ID, task=TASK, due_at=DUE, priority=3),
    JobDeduplicated(queue=QUEUE, id=ID, task=TASK, key="report", existing_id="b"),
    JobDebounced(queue=QUEUE, id=ID, task=TASK, key="report", replaced_by="b"),
    JobThrottled(queue=QUEUE, id=ID, task=TASK, key="report", retry_in=1.5),
    JobCollected(queue=QUEUE, id=ID, task=TASK, key="report", count=7),
    JobRescheduled(queue=QUEUE, id=ID, task=TASK, due_at=DUE, priority=3, by="ops"),
    JobStarted(
        queue=QUEUE, id=ID, task=TASK, run=2, attempt=1, owner=OWNER, host="h", pid=7, fence=NOW, redelivered=True
    ),
    JobProgressed(queue=QUEUE, id=ID, task=TASK, run=2, value=0.5, note="half"),
    JobSuspected(queue=QUEUE, id=ID, task=TASK, run=2, owner=OWNER, silent_for=20.5),
    JobRetried(queue=QUEUE, id=ID, task=TASK, run=2, attempt=1, next_attempt=2, delay=1.5, error=ERROR),
    JobReleased(queue=QUEUE, id=ID, task=TASK, run=2, reason="shutdown", delay=2.0),
    JobStalled(
        queue=QUEUE,
        id=ID,
        task=TASK,
        run=2,
        count=1,
        action="recovered",
        reason="process_died",
        owner=OWNER,
        silent_for=24.0,
        post_mortem="signal 9",
    ),
    JobStopIgnored(queue=QUEUE, id=ID, task=TASK, run=2, owner=OWNER, reason="timeout"),
    JobCompleted(
        queue=QUEUE, id=ID, task=TASK, run=2, attempt=1, duration=0.5, result=b'{"a": "\xff"}', cancel_too_late=True
    ),
    JobFailed(queue=QUEUE, id=ID, task=TASK, run=2, attempt=3, reason="exhausted", error=ERROR),
    JobCancelled(queue=QUEUE, id=ID, task=TASK, run=2, reason="enough", by="ops", was="active"),
    JobExpired(queue=QUEUE, id=ID, task=TASK, ttl=60.0, age=61.5, on_expire="discard"),
    FlowBroken(queue=QUEUE, id=ID, task=TASK, failure_cause="mail/report"),
    JobRedriven(queue=QUEUE, id=ID, task=TASK, run=2, by="ops", was="failed"),
    JobDeleted(queue=QUEUE, id=ID, task=TASK, run=2, by="ops", was="completed"),
    JobRepaired(queue=QUEUE, id=ID, task=TASK, run=2, found="active without a lease", repair="suspected"),
    RunFenced(queue=QUEUE, id=ID, task=TASK, run=2, fence=NOW, current_fence=NOW + 1, owner=OWNER, write="settle"),
    LeaseLost(queue=QUEUE, id=ID, task=TASK, run=2, fence=NOW, owner=OWNER, reason="unreachable"),
    QueuePaused(queue="mail", by="ops"),
    QueueResumed(queue="mail", by="ops"),
    QueueDrained(queue="mail"),
    QueueLimited(queue="mail", rate="key:host", until=DUE, by=ID),
    ScheduleFired(name="nightly", tick=DUE, late_by=0.5, queue=QUEUE, id=ID),
    ScheduleSkipped(name="nightly", tick=DUE, reason="overlap"),
    ScheduleMissed(name="nightly", tick=DUE, ticks=36, policy="latest"),
    LeadershipAcquired(scope="*", owner=OWNER, epoch=7),
    LeadershipLost(scope="*", owner=OWNER, epoch=7, reason="superseded"),
    WorkerStarted(owner=OWNER, host="h", pid=7, queues=("mail", "default"), concurrency=10),
    WorkerStopping(owner=OWNER, reason="SIGTERM"),
    WorkerStopped(owner=OWNER, released=3),
    WorkerDied(owner=OWNER, host="h", pid=7, signal=9, status=None, peak_memory=2**33, jobs=3),
    WorkerHung(owner=OWNER, blocked_for=600.5, stack="somewhere"),
    StorageReplaced(partition="partition 3", old="0123456789abcdef", new="fedcba9876543210"),
    StorageRewound(partition="*", by=16),
    StorageLogDeleted(partition="*"),
    WorkerFailed(error="out of reach", retry_in=0.05),
    ReaperFailed(scope="*", error="out of reach"),
    EventsTrimmed(oldest="41"),
    UnreadableEvent(body='{"event":"from_the_future"}'),
)
"""One of each, every field set."""

LOG_NAMES: dict[type[Event], str] = {
    JobEnqueued: "enqueued",
    JobStalled: "stalled",
    JobCompleted: "completed",
    FlowBroken: "flow_broken",
    JobRedriven: "redriven",
    RunFenced: "run_fenced",
    LeaseLost: "lease_lost",
    QueuePaused: "queue_paused",
    LeadershipAcquired: "leadership_acquired",
    WorkerDied: "worker_died",
    WorkerHung: "worker_hung",
    StorageReplaced: "storage_replaced",
    StorageRewound: "storage_rewound",
    StorageLogDeleted: "storage_log_deleted",
    EventsTrimmed: "events_trimmed",
    UnreadableEvent: "unreadable_event",
}


def test_there_is_a_sample_of_every_event() -> None:
    assert {type(event) for event in SAMPLES} == set(get_args(AnyEvent))
    assert set(leaves(Event)) == set(get_args(AnyEvent))


@pytest.mark.parametrize("event", SAMPLES, ids=name_of)
def test_events_survive_the_encoding_of_the_log(event: AnyEvent) -> None:
    recorded = stamped(event, 17, NOW + 123_456)
    read = from_log(to_log(recorded))

    assert read == recorded
    assert type(read) is type(event)
    assert (read.cursor, read.at) == ("17", moment(NOW + 123_456))
    assert from_log(to_log(recorded).decode()) == recorded


@pytest.mark.parametrize("event", SAMPLES, ids=name_of)
def test_an_event_is_named_in_the_log_by_its_class(event: AnyEvent) -> None:
    assert f'"event":"{name_of(event)}"'.encode() in to_log(event)
    assert name_of(event) == LOG_NAMES.get(type(event), name_of(event))


@pytest.mark.statement(33, 115)
def test_every_event_of_a_job_names_the_job_its_queue_and_its_task() -> None:
    for kind in leaves(JobEvent):
        assert {"queue", "id", "task", "run", "cursor", "at"} <= set(kind.__struct_fields__), kind


def test_default_fields_of_an_event_are_omitted_in_the_log() -> None:
    assert to_log(JobCompleted(queue="q", id="a", task="t", attempt=1)) == (
        b'{"event":"completed","queue":"q","id":"a","task":"t","attempt":1}'
    )


def test_an_unrecorded_event_has_no_instant() -> None:
    event = QueuePaused(queue="mail")

    with pytest.raises(ValueError, match="QueuePaused was never recorded"):
        at_micros(event)
    assert at_micros(stamped(event, "5", NOW + 1)) == NOW + 1


def test_a_retry_says_when_it_is_due_once_it_is_recorded() -> None:
    event = JobRetried(queue="q", id="a", task="t", attempt=1, next_attempt=2, delay=1.5)

    assert event.due_at is None
    assert stamped(event, 1, NOW).due_at == moment(NOW + 1_500_000)
    assert moment(NOW + 1_500_000) - moment(NOW) == timedelta(microseconds=1.5 * SECOND)


def leaves(kind: type[Event]) -> list[type[Event]]:
    """Return the classes below this one that have no subclass."""
    below = kind.__subclasses__()
    return [leaf for child in below for leaf in leaves(child)] if below else [kind]


COMPLETED = '{"event":"completed","queue":"q","id":"i","task":"t","run":1,"attempt":1,"duration":0.5,"result":'


@pytest.mark.parametrize(
    "body",
    [
        *('{"event":"from_the_future","x":1}', "{}", "not json", '{"event":"completed","id":7}'),
        *(f'{COMPLETED}"not base64"}}', f"{COMPLETED}{'[' * 50_000}"),
    ],
    ids=["unknown", "empty", "not json", "wrong type", "not base64", "deep"],
)
def test_an_undecodable_event_becomes_an_unreadable_event(body: str) -> None:
    assert from_log(body) == UnreadableEvent(body=body)
    assert from_log(body.encode()) == UnreadableEvent(body=body)
