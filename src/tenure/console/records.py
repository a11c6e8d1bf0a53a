"""The parameters and the answers of the admin API; the other answers are the records of `ops`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tenure.console.routes import Payloads
from tenure.console.users import Role
from tenure.core.lifecycle import State
from tenure.ops.job_list import JobRowView
from tenure.ops.task_schemas import PublishedTaskView
from tenure.ops.tasks import TaskView
from tenure.ops.views import LogView, QueueSettingsView, RateView, ReasonView, RunView, ScheduleView, TickView
from tenure.ops.webhooks import DeliveryView, WebhookView
from tenure.ops.workers import ListedWorker, StackView
from tenure.storage.protocol import ListOrder

JOBS_MOST = 200
"""The greatest number of jobs on a page."""

LOOKS = 2_500
"""About how many jobs or events one request looks at."""

SIFTED = 500
"""The same, if the storage cannot check all conditions: each of these jobs is read and checked here."""

EVENTS_MOST = 500
ACTS_MOST = 500
TICKS_MOST = 1_000
STACKS_MOST = 200
QUEUES_MOST = 200

# ── parameters ────────────────────────────────────────────────────────────────────────────────────────────────────────

Cursor = Annotated[str, Meta(min_length=1, max_length=4_000)]


class JobsQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a list of jobs."""

    filter: Annotated[str, Meta(description="Terms that must all hold: `state:failed task:mail.* age:>1h`.")] = ""
    order: Annotated[
        ListOrder,
        Meta(description="`due`: the job that falls due first is the first; only with a filter `state:delayed`."),
    ] = "newest"
    limit: Annotated[int, Meta(ge=1, le=JOBS_MOST, description="How many jobs a page has.")] = 50
    after: Annotated[Cursor | None, Meta(description="`next` of the page before.")] = None


class EventsQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a page of events."""

    after: Annotated[
        Cursor | None, Meta(description="`next` of the page before, or the cursor of an event; `0`: the oldest event.")
    ] = None
    within: Annotated[
        str | None, Meta(description="Begin with the events of this time before now: `10m`. Not together with `after`.")
    ] = None
    kind: Annotated[tuple[str, ...], Meta(description="Only events of these kinds: `failed`, `stalled`.")] = ()
    queue: Annotated[tuple[str, ...], Meta(description="Only events of these queues.")] = ()
    limit: Annotated[int, Meta(ge=1, le=EVENTS_MOST, description="How many events a page has.")] = 100


class JobEventsQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a page of a job's events."""

    after: Annotated[Cursor | None, Meta(description="`next` of the page before; `0`: the oldest event.")] = None
    limit: Annotated[int, Meta(ge=1, le=EVENTS_MOST, description="How many events a page has.")] = 100


class StatsQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a queue's statistics."""

    window: Annotated[str, Meta(description="The time before now: `1h`.")] = "1h"


class FiguresParameters(Struct, frozen=True, kw_only=True):
    """The parameters of figures over time."""

    queue: Annotated[tuple[str, ...], Meta(description="Only these queues, added up; all queues without.")] = ()
    task: Annotated[
        str | None, Meta(description="Only this task; `(others)`: the tasks of a queue beyond the first 200.")
    ] = None
    since: Annotated[
        str, Meta(description="The begin: a time before now (`6h`) or an instant (`2026-05-03T10:00:00Z`).")
    ] = "1h"
    until: Annotated[str | None, Meta(description="The end, in the same way; now without it.")] = None
    step: Annotated[str, Meta(description="The length of a step, in whole minutes: `1m`, `15m`, `6h`.")] = "1m"


class QueuesFiguresParameters(Struct, frozen=True, kw_only=True):
    """The parameters of the figures of each queue."""

    since: Annotated[str, Meta(description="The begin, as for `/figures`.")] = "1h"
    until: Annotated[str | None, Meta(description="The end, in the same way; now without it.")] = None
    step: Annotated[str, Meta(description="The length of a step, in whole minutes; at most 120 steps.")] = "1m"
    limit: Annotated[int, Meta(ge=1, le=QUEUES_MOST, description="How many queues, those with most ends first.")] = 50


class LeasesQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a list of leases."""

    order: Annotated[Literal["left"], Meta(description="`left`: the lease with the least time left first.")] = "left"
    queue: Annotated[tuple[str, ...], Meta(description="Only leases of jobs of these queues.")] = ()
    limit: Annotated[int, Meta(ge=1, le=JOBS_MOST, description="How many leases.")] = 50


class TicksQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a schedule's next ticks."""

    count: Annotated[int, Meta(ge=1, le=TICKS_MOST, description="How many ticks.")] = 5


class StacksQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a worker's stacks."""

    limit: Annotated[int, Meta(ge=1, le=STACKS_MOST, description="How many runs, the longest first.")] = 50


class AuditQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a page of the audit log."""

    actor: Annotated[str | None, Meta(description="Only acts of this operator.")] = None
    action: Annotated[str | None, Meta(description="Only acts of this kind: `jobs.cancel`.")] = None
    target: Annotated[str | None, Meta(description="Only acts on this target: `mail`, or `mail/01J...`.")] = None
    limit: Annotated[int, Meta(ge=1, le=ACTS_MOST, description="How many acts a page has.")] = 50
    after: Annotated[Cursor | None, Meta(description="`next` of the page before.")] = None


class OperationsQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a page of bulk operations."""

    limit: Annotated[int, Meta(ge=1, le=JOBS_MOST, description="How many operations a page has.")] = 50
    after: Annotated[Cursor | None, Meta(description="`next` of the page before.")] = None


class DeliveriesQuery(Struct, frozen=True, kw_only=True):
    """The parameters of a list of deliveries."""

    state: Annotated[tuple[State, ...], Meta(description="Only deliveries in these states: `failed`, `delayed`.")] = ()
    limit: Annotated[int, Meta(ge=1, le=JOBS_MOST, description="How many deliveries a page has.")] = 50
    after: Annotated[Cursor | None, Meta(description="`next` of the page before.")] = None


class DeadGroupsQuery(Struct, frozen=True, kw_only=True):
    """The parameters of the faults."""

    queue: Annotated[tuple[str, ...], Meta(description="Only jobs of these queues.")] = ()
    task: Annotated[tuple[str, ...], Meta(description="Only faults of these tasks.")] = ()
    within: Annotated[
        str | None, Meta(description="Only faults that have occurred within this time before now: `1d`.")
    ] = None


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class RemovedSchedule(Struct, frozen=True, kw_only=True):
    """A schedule that was removed. One that is declared in code returns when a worker starts."""

    name: str


class UserView(Struct, frozen=True, kw_only=True):
    """The user of this request. `queues`: the patterns of the queues that it may see; None: all."""

    name: str
    role: Role
    queues: tuple[str, ...] | None


class LimitsView(Struct, frozen=True, kw_only=True):
    """The limits of the API: of a page of jobs and of events, and `looks`: how many of them one request looks at."""

    jobs: int
    events: int
    looks: int


class MetaView(Struct, frozen=True, kw_only=True):
    """The console. `payloads`: the role that may see arguments, results and data.

    `features`: the parts that this version has.
    """

    version: str
    url: str
    user: UserView
    read_only: bool
    payloads: Payloads
    features: tuple[str, ...]
    limits: LimitsView


class QueuesView(Struct, frozen=True, kw_only=True):
    """The queues with their settings."""

    queues: list[QueueSettingsView]


class JobsView(Struct, frozen=True, kw_only=True):
    """One page of jobs, newest first, and the cursor of the next page (None: this is the last page).

    `looks`: about how many jobs the request looked at most. `short`: it reached this bound, so the page has fewer jobs
    than `limit`; the jobs after `next` were not looked at. `hints`: names in the filter that nothing uses, if the first
    page is empty.
    """

    jobs: list[JobRowView]
    next: str | None
    looks: int
    short: bool
    hints: list[str]


class ReasonsView(Struct, frozen=True, kw_only=True):
    """Why a job does not run now, or how it ended; the first cause decides."""

    reasons: list[ReasonView]


class RunsView(Struct, frozen=True, kw_only=True):
    """The runs of a job, the oldest first, at most the newest 100; `why`: why there is more than one."""

    runs: list[RunView]
    why: str | None


class JobLogView(Struct, frozen=True, kw_only=True):
    """The log of a job; `dropped`: how many lines are missing."""

    log: list[LogView]
    dropped: int


class ListedWorkers(Struct, frozen=True, kw_only=True):
    """The workers."""

    workers: list[ListedWorker]


class StacksView(Struct, frozen=True, kw_only=True):
    """The runs of a worker, the longest first."""

    stacks: list[StackView]


class SchedulesView(Struct, frozen=True, kw_only=True):
    """The schedules, by name."""

    schedules: list[ScheduleView]


class TicksView(Struct, frozen=True, kw_only=True):
    """The next ticks of a schedule, even if it is paused."""

    ticks: list[TickView]


class TaskStatusView(Struct, frozen=True, kw_only=True):
    """A task. `workers`: how many live workers know it; `version`: the newest payload version that one of them reads.

    `waiting_unknown`: it has jobs that no worker can read. `rate`: an operator's, in place of those in the code.
    `declared`: what the app says of it, if the console has an app. `published`: what a worker last said of it, null if
    none has done so for 30 days.
    """

    name: str
    workers: int
    version: int | None
    waiting_unknown: bool
    paused: bool
    rate: RateView | None
    declared: TaskView | None
    published: PublishedTaskView | None


class WebhooksView(Struct, frozen=True, kw_only=True):
    """The webhooks that the code of the app declares, by name."""

    webhooks: list[WebhookView]


class DeliveriesView(Struct, frozen=True, kw_only=True):
    """One page of the deliveries of a webhook, newest first, and the cursor of the next page (None: the last one)."""

    deliveries: list[DeliveryView]
    next: str | None


class TasksView(Struct, frozen=True, kw_only=True):
    """The tasks that a worker, a schedule, a setting or the app names, or that a worker has published."""

    tasks: list[TaskStatusView]
