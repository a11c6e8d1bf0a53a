"""The event classes: one class per kind of event, named in the past tense.

In the log an event's name is in snake case without "Job" (`JobStalled` is `stalled`). The storage sets `cursor` and
`at` when it records the event. On an event that was not recorded, `cursor` is None.
"""

import functools
import re
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, structs

from tenure.core.document import Progress
from tenure.core.duration import micros, moment
from tenure.core.job import DeadReason, OnExpire, RecordedError, StallReason
from tenure.core.outcome import ReleaseReason, StopCode

RESULT_SHOWN = 4096
"""Results up to this many bytes are part of `JobCompleted`; larger ones must be read from the record."""


@functools.cache
def event_name(name: str) -> str:
    """Return the log name of a class of this name."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name.removeprefix("Job")).lower()


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag=event_name):
    """An event."""

    cursor: str | None = None
    at: datetime | None = None


class JobEvent(Event, frozen=True, kw_only=True):
    """An event of a job, in its run of that number (0: before the first)."""

    queue: str
    id: str
    task: str
    run: int = 0


class JobEnqueued(JobEvent, frozen=True, kw_only=True):
    """A job was enqueued. Recorded on request."""

    due_at: datetime
    priority: int = 0


class JobDeduplicated(JobEvent, frozen=True, kw_only=True):
    """A call made no job, because a job that holds its key exists. Recorded on request."""

    key: str
    existing_id: str


class JobDebounced(JobEvent, frozen=True, kw_only=True):
    """A later call replaced this job's own. Recorded on request. `replaced_by`: the id of that call."""

    key: str
    replaced_by: str


class JobThrottled(JobEvent, frozen=True, kw_only=True):
    """A call made no job, because its key's window is full. Recorded on request. `retry_in` in seconds."""

    key: str
    retry_in: float


class JobCollected(JobEvent, frozen=True, kw_only=True):
    """A job collected another call, its `count`-th. Recorded on request."""

    key: str
    count: int


class JobRescheduled(JobEvent, frozen=True, kw_only=True):
    """A job that had not started got another due time or priority. Recorded on request."""

    due_at: datetime
    priority: int = 0
    by: str | None = None


class JobStarted(JobEvent, frozen=True, kw_only=True):
    """A run began. Recorded on request; the run history has it in any case."""

    attempt: int
    owner: str
    host: str = ""
    pid: int = 0
    fence: int
    redelivered: bool = False


class JobProgressed(JobEvent, frozen=True, kw_only=True):
    """A handler reported its progress. Recorded on request."""

    value: Progress
    note: str | None = None


class JobSuspected(JobEvent, frozen=True, kw_only=True):
    """A lease ran out; its grace has begun. Recorded on request. `silent_for` in seconds."""

    owner: str
    silent_for: float


class JobRetried(JobEvent, frozen=True, kw_only=True):
    """A run failed and the job will be tried again after `delay` seconds.

    `waited`: seconds from the due time of the job to the start of this run.
    """

    attempt: int
    next_attempt: int
    delay: float
    error: RecordedError | None = None
    waited: float | None = None

    @property
    def due_at(self) -> datetime | None:
        """When the next attempt may start."""
        return None if self.at is None else self.at + timedelta(seconds=self.delay)


class JobReleased(JobEvent, frozen=True, kw_only=True):
    """A run was handed back without a charge to a budget; the job may run again after `delay` seconds."""

    reason: ReleaseReason | str
    delay: float = 0.0


class JobStalled(JobEvent, frozen=True, kw_only=True):
    """A run lost its worker; the job was put back (`recovered`) or had no stalls left (`failed`).

    `count`: how often the job has stalled; `silent_for`: the seconds since its holder was last heard of.
    """

    count: int
    action: Literal["recovered", "failed"]
    reason: StallReason
    owner: str = ""
    silent_for: float = 0.0
    post_mortem: str | None = None


class JobStopIgnored(JobEvent, frozen=True, kw_only=True):
    """A run with an exclusive right was asked to stop, but its handler goes on and keeps the right until it ends.

    `reason`: why it was asked to stop.
    """

    owner: str
    reason: StopCode | None = None


class JobCompleted(JobEvent, frozen=True, kw_only=True):
    """A job completed with a result. `duration` in seconds; `result` is None above 4 KiB: read the record.

    `waited`: seconds from the due time of the job to the start of its last run. `cancel_too_late`: the job was asked to
    stop, but finished first.
    """

    attempt: int
    duration: float = 0.0
    result: Any = None
    cancel_too_late: bool = False
    waited: float | None = None


class JobFailed(JobEvent, frozen=True, kw_only=True):
    """A job failed permanently and is a dead letter now.

    `waited`: seconds from the due time of the job to the start of its last run.
    """

    attempt: int
    reason: DeadReason | str
    error: RecordedError | None = None
    waited: float | None = None


class JobCancelled(JobEvent, frozen=True, kw_only=True):
    """A job was cancelled; `was` is the state it left."""

    reason: str | None = None
    by: str | None = None
    was: str


class JobExpired(JobEvent, frozen=True, kw_only=True):
    """A job's time to live ran out before it started. `ttl` and `age` in seconds."""

    ttl: float
    age: float
    on_expire: OnExpire


class FlowBroken(JobEvent, frozen=True, kw_only=True):
    """The first member of a flow has failed; the flow itself ends later. Recorded once for each flow.

    `failure_cause`: the queue and the id of the member, with a slash between them.
    """

    failure_cause: str


class JobRedriven(JobEvent, frozen=True, kw_only=True):
    """An operator or a rule put an ended job back in its queue, with new budgets.

    `by`: "rule" for a rule, "dependency" if the job had failed by a job that it needs, and which has completed since.
    """

    by: str | None = None
    was: str


class JobDeleted(JobEvent, frozen=True, kw_only=True):
    """A job was deleted by an operator."""

    by: str | None = None
    was: str


class JobRepaired(JobEvent, frozen=True, kw_only=True):
    """A record was repaired that was unreadable or contradicted its indexes. In a sound storage this never happens."""

    found: str
    repair: str


class RunFenced(JobEvent, frozen=True, kw_only=True):
    """A write under an old fence was refused."""

    fence: int
    current_fence: int
    owner: str
    write: Literal["settle", "renew"]


class LeaseLost(JobEvent, frozen=True, kw_only=True):
    """This process stopped a run whose lease it does not hold any more. Local, not recorded."""

    fence: int
    owner: str
    reason: Literal["lost", "unreachable"]


class QueuePaused(Event, frozen=True, kw_only=True):
    """A queue was paused: it gives out no jobs."""

    queue: str
    by: str | None = None


class QueueResumed(Event, frozen=True, kw_only=True):
    """A queue was resumed: it gives out jobs again."""

    queue: str
    by: str | None = None


class QueueLimited(Event, frozen=True, kw_only=True):
    """A handler raised `RateLimited`: nothing of a rate, or of the whole queue, starts before an instant.

    `rate`: the name of the rate; None: the whole queue. `until`: None if an operator lifted the limit. `by`: the id of
    the job whose handler set the limit, or the operator who lifted it.
    """

    queue: str
    rate: str | None = None
    until: datetime | None = None
    by: str | None = None


class QueueDrained(Event, frozen=True, kw_only=True):
    """The last unfinished job of a queue has ended. Recorded on request."""

    queue: str


class ScheduleFired(Event, frozen=True, kw_only=True):
    """A schedule's tick made a job, or was merged into the job named here. `late_by` in seconds."""

    name: str
    tick: datetime
    late_by: float
    queue: str
    id: str


class ScheduleSkipped(Event, frozen=True, kw_only=True):
    """A schedule's tick made no job.

    `overlap`: a job of an earlier tick is unfinished. `duplicate`: a job of this id, or with the unique key, exists.
    `throttled`: the window of its key is full.
    """

    name: str
    tick: datetime
    reason: Literal["overlap", "duplicate", "throttled"]


class ScheduleMissed(Event, frozen=True, kw_only=True):
    """A schedule's policy gave up `ticks` ticks that had passed; `tick` is the latest of them."""

    name: str
    tick: datetime
    ticks: int
    policy: str


class LeadershipAcquired(Event, frozen=True, kw_only=True):
    """A reaper leads from now on. `scope`: the part of the storage that it leads, `*` for the whole."""

    scope: str
    owner: str
    epoch: int


class LeadershipLost(Event, frozen=True, kw_only=True):
    """A reaper does not lead any more: it `resigned`, was `superseded` or `unreachable`, or its term `expired`."""

    scope: str
    owner: str
    epoch: int
    reason: Literal["resigned", "superseded", "unreachable", "expired"]


class WorkerStarted(Event, frozen=True, kw_only=True):
    """A worker began to claim."""

    owner: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int


class WorkerStopping(Event, frozen=True, kw_only=True):
    """A worker has stopped claiming and drains."""

    owner: str
    reason: str


class WorkerStopped(Event, frozen=True, kw_only=True):
    """A worker has left, after it handed back `released` runs."""

    owner: str
    released: int


class WorkerDied(Event, frozen=True, kw_only=True):
    """A worker process died under its supervisor; `jobs` of its runs were reclaimed. `how`: the cause of its death."""

    owner: str
    host: str
    pid: int
    signal: int | None = None
    status: int | None = None
    peak_memory: int | None = None
    jobs: int = 0
    how: str = ""


class WorkerHung(Event, frozen=True, kw_only=True):
    """A worker was given up: its event loop or its claim loop has not turned for `blocked_for` seconds.

    `stack`: where it hangs.
    """

    owner: str
    blocked_for: float
    stack: str = ""


class StorageReplaced(Event, frozen=True, kw_only=True):
    """A worker found another partition in place of the one that it saw before: the old one's data is lost.

    `old`, `new`: the identities of both; `new` is empty if nothing is in its place yet.
    """

    partition: str
    old: str
    new: str


class StorageRewound(Event, frozen=True, kw_only=True):
    """A worker found that a partition of the storage went back in time: acknowledged writes are lost.

    `by`: at least how many of the last events that the worker had seen are missing from the log; 0 if the log has grown
    past them since.
    """

    partition: str
    by: int


class StorageLogDeleted(Event, frozen=True, kw_only=True):
    """A worker found that the write-ahead log of a SQLite file was deleted or replaced while it was in use.

    The commits in it were copied into the file.
    """

    partition: str


class WorkerFailed(Event, frozen=True, kw_only=True):
    """A worker could not reach the storage and tries again after `retry_in` seconds. Local, not recorded."""

    error: str
    retry_in: float


class ReaperFailed(Event, frozen=True, kw_only=True):
    """A sweep failed; the next one follows. Local, not recorded."""

    scope: str
    error: str


class EventsTrimmed(Event, frozen=True, kw_only=True):
    """A reader came too late: the events between its cursor and `oldest` are deleted."""

    oldest: str


class UnreadableEvent(Event, frozen=True, kw_only=True):
    """An event that this version cannot read, perhaps because a newer one recorded it; `body`: the text in the log."""

    body: str


AnyEvent = (
    JobEnqueued
    | JobDeduplicated
    | JobDebounced
    | JobThrottled
    | JobCollected
    | JobRescheduled
    | JobStarted
    | JobProgressed
    | JobSuspected
    | JobRetried
    | JobReleased
    | JobStalled
    | JobStopIgnored
    | JobCompleted
    | JobFailed
    | JobCancelled
    | JobExpired
    | FlowBroken
    | JobRedriven
    | JobDeleted
    | JobRepaired
    | RunFenced
    | LeaseLost
    | QueuePaused
    | QueueResumed
    | QueueLimited
    | QueueDrained
    | ScheduleFired
    | ScheduleSkipped
    | ScheduleMissed
    | LeadershipAcquired
    | LeadershipLost
    | WorkerStarted
    | WorkerStopping
    | WorkerStopped
    | WorkerDied
    | WorkerHung
    | StorageReplaced
    | StorageRewound
    | StorageLogDeleted
    | WorkerFailed
    | ReaperFailed
    | EventsTrimmed
    | UnreadableEvent
)

E = TypeVar("E", bound=Event)

OnRequest = Literal[
    "enqueued",
    "deduplicated",
    "debounced",
    "throttled",
    "collected",
    "rescheduled",
    "started",
    "progressed",
    "suspected",
    "queue_drained",
]
"""The log names of events that a queue records only on request: they double its writes."""

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def name_of(event: Event) -> str:
    """Return the event's name in the log."""
    return event_name(type(event).__name__)


def stamped(event: E, cursor: int | str, at: int) -> E:
    """Return the event as recorded under this cursor, at this instant (microseconds) of the storage's clock."""
    return structs.replace(event, cursor=str(cursor), at=moment(at))


def to_log(event: Event) -> bytes:
    """Encode an event for the log."""
    return _encode(event)


def from_log(body: bytes | str) -> AnyEvent:
    """Decode an event of the log; an undecodable event must not stop the reader of later ones."""
    try:
        event = _decoder.decode(body)
        if isinstance(event, JobCompleted) and isinstance(event.result, str):
            # The log holds text, but a result is bytes, as its codec made them. Only the field's type could tell, and
            # it is Any.
            event = structs.replace(event, result=msgspec.convert(event.result, bytes))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return UnreadableEvent(body=body if isinstance(body, str) else body.decode(errors="replace"))
    return event


def at_micros(event: Event) -> int:
    """Return when the event was recorded, in microseconds since 1970.

    Raises:
        ValueError: it was never recorded.
    """
    if event.at is None:
        raise ValueError(f"{type(event).__name__} was never recorded")
    return micros(event.at - moment(0))
