"""The bodies of requests that change something, one Struct for each."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from tenure.core.bulk import BulkAction
from tenure.core.events import OnRequest

CALL_BODY = 2 * 1024 * 1024
"""The greatest size of a call with its arguments, in bytes: that of the arguments is 1 MiB, after JSON's escapes."""

Span = Annotated[str | float, Meta(description="A duration: `30s`, `1.5h`, or a number of seconds.")]

Reason = Annotated[
    Annotated[str, Meta(max_length=500)] | None,
    Meta(description="A reason in your own words, at most 500 characters; the audit log keeps it."),
]

Ended = Annotated[
    Annotated[datetime, Meta(tz=True)] | UnsetType | None,
    Meta(
        description="`finished` of the job as you saw it, also null: if it is another one now, the job has run again "
        "since, nothing is done, and the answer is the problem `changed`. Without it, this is not checked."
    ),
]


class ReasonBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An act without options."""

    reason: Reason = None


class JobBody(ReasonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An act on one job."""

    ended: Ended = UNSET


class RedriveBody(JobBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A redrive."""

    delay: Annotated[Span, Meta(description="The job starts after this time: `5m`, or a number of seconds.")] = 0.0


class RescheduleBody(JobBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new time or priority of a job; give at least one of them."""

    delay: Annotated[
        Span | None, Meta(description="The job starts after this time: `5m`, or a number of seconds; 0: at once.")
    ] = None
    priority: Annotated[int | None, Meta(description="A whole number from -500 to 500; higher starts earlier.")] = None


class RetainBody(JobBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a completed job and its result are kept."""

    ttl: Annotated[Span, Meta(description="The job is kept for this time from now: `1d`, or a number of seconds.")]


class RedeliverBody(ReasonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The delivery whose message is sent again."""

    id: Annotated[str, Meta(description="The id of the delivery.")]


class EnqueueBody(ReasonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a task."""

    task: Annotated[str, Meta(description="The name of the task.")]
    arguments: Annotated[
        dict[str, Any] | list[Any],
        Meta(description="The arguments by name; in order only if the console has the app of the task."),
    ] = {}
    queue: Annotated[str | None, Meta(description="The queue, instead of the task's.")] = None
    id: Annotated[
        str | None, Meta(description="The id of the job; a second job with it is not made. Or send Idempotency-Key.")
    ] = None
    delay: Annotated[Span | None, Meta(description="The job starts after this time: `5m`, or a number of seconds.")] = (
        None
    )
    priority: Annotated[int | None, Meta(description="A whole number from -500 to 500.")] = None
    tags: Annotated[tuple[str, ...], Meta(description="Words by which the job can be found.")] = ()
    force: Annotated[bool, Meta(description="Also enqueue to a task or a queue that nothing uses yet.")] = False


class RateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rate as the API shows it: one start per `every` seconds, and up to `burst` at once after a pause."""

    every: Span
    burst: int = 1


NewRate = Annotated[
    str | RateBody | UnsetType | None,
    Meta(description='How often jobs may start: `100/m`, `{"every": 0.5, "burst": 3}`, or null for no limit.'),
]


class StallBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stall settings for all jobs of a queue; those that are left out stay."""

    lease: Span | None = None
    max_stalls: int | None = None
    start_grace: Span | None = None
    renewed: bool | None = None


class KeepBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long ended jobs are kept: for `age`, and only the newest `count` (null: all)."""

    age: Span
    count: int | None = None


class RetentionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The retention of ended jobs by outcome; outcomes that are left out keep theirs."""

    completed: KeepBody | None = None
    failed: KeepBody | None = None
    cancelled: KeepBody | None = None
    expired: KeepBody | None = None


class TaskPatch(ReasonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New settings of a task in all queues; those that are left out stay."""

    paused: Annotated[bool | UnsetType, Meta(description="true: no job of it starts.")] = UNSET
    rate: NewRate = UNSET


class QueuePatch(ReasonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New settings of a queue; those that are left out stay."""

    paused: Annotated[bool | UnsetType, Meta(description="true: no job of it starts.")] = UNSET
    rate: NewRate = UNSET
    stall: Annotated[StallBody | UnsetType, Meta(description="When its jobs count as stalled.")] = UNSET
    retention: Annotated[RetentionBody | UnsetType, Meta(description="How long its ended jobs are kept.")] = UNSET
    record: Annotated[
        tuple[OnRequest, ...] | UnsetType, Meta(description="The optional events that it records; [] for none.")
    ] = UNSET
    lift: Annotated[
        str | UnsetType,
        Meta(description="End the limit of this rate that a handler has set with RateLimited; `*`: of all."),
    ] = UNSET


class OperationBody(ReasonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bulk operation, or its dry run. The start needs the fields of the dry run, and its `confirm`."""

    action: Annotated[BulkAction, Meta(description="`cancel`, `redrive` or `delete`; a delete needs the role admin.")]
    filter: Annotated[
        str, Meta(description="Terms that must all hold, as in a list of jobs; all that match are changed.")
    ] = ""
    cap: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="At most this many jobs, the newest first; null: all.")
    ] = None
    rate: Annotated[str | None, Meta(description="How many jobs per time: `10/s`; null: no limit.")] = None
    dry_run: Annotated[bool, Meta(description="true: count only, and return `confirm`.")] = False
    confirm: Annotated[str | None, Meta(description="`confirm` of the dry run; it is valid for 10 minutes.")] = None


class ConcurrencyBody(ReasonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many jobs a worker runs at once."""

    concurrency: Annotated[
        int | None, Meta(description="A whole number from 1; null: as many as the worker was started with.")
    ]
