"""What a storage can be asked for without changing it: pages of jobs, surveys, events and acts of operators."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from tenure.core.audit import OperatorAct
from tenure.core.events import AnyEvent
from tenure.core.figures import FiguresCell
from tenure.core.fingerprint import FaultSurvey
from tenure.core.job import JobRecord, Owner, RateKey, Ref
from tenure.core.leadership import Term
from tenure.core.lifecycle import State
from tenure.core.schedule import Schedule
from tenure.errors import UsageError
from tenure.storage.cursors import DuePlace, due_cursor
from tenure.storage.revisions import Settings

EVENT_LOAN = 5_000_000
"""How long a batch of events is reserved for one caller of a named reader, in microseconds."""


class Finding(Struct, frozen=True):
    """A problem or an all-clear that `examine` reports, with its remedy."""

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str
    remedy: str = ""


ListOrder = Literal["newest", "due"]


class Query(Struct, frozen=True, kw_only=True):
    """Which jobs to list. `after` is the previous page's cursor; an invalid cursor raises ValueError.

    `order`: "newest": the job that was enqueued last comes first. "due": delayed jobs only, without an id or a merge
    key; the job that falls due first comes first, then by queue and id.
    `merge`: only unfinished jobs with this key (`merge_name`). `reasons`: why they failed. `tags`: jobs that have all
    of these. `owner`: the id of the owner that runs them. `key`: the name of one of their concurrency keys. `fault`:
    the fingerprint of the fault that made them fail. `created_after` (inclusive) and `created_before` (exclusive): the
    instants between which the jobs were enqueued. `ended_after` (inclusive) and `ended_before` (exclusive): the
    instants between which the jobs ended.
    `looks`: about how many jobs one call may look at, so that it ends soon although few of them match. Its page may be
    short, or empty, and still have a cursor. None: as many as it takes. With an id or a merge key it has no effect.
    """

    queues: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    tasks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    owner: str | None = None
    key: str | None = None
    schedule: str | None = None
    fault: str | None = None
    created_after: int | None = None
    created_before: int | None = None
    ended_after: int | None = None
    ended_before: int | None = None
    id: str | None = None
    merge: str | None = None
    limit: int = 50
    after: str | None = None
    looks: int | None = None
    order: ListOrder = "newest"

    def __post_init__(self) -> None:
        """Check the order.

        Raises:
            UsageError: the jobs that the query selects have no such order.
        """
        if self.order == "due" and (
            set(self.states) != {State.DELAYED} or self.id is not None or self.merge is not None
        ):
            raise UsageError(
                'order = "due" lists delayed jobs only, and not by id; select the state "delayed" alone, or take the '
                'order "newest"'
            )


class Page(Struct, frozen=True):
    """One page of records, and the cursor of the next page (None: this was the last page)."""

    jobs: tuple[JobRecord, ...] = ()
    next: str | None = None


def due_place_of(job: JobRecord) -> DuePlace:
    """Return the place of a job in the order in which jobs fall due."""
    return job.run_at, job.queue, job.id


def page_of_due(found: Sequence[tuple[DuePlace, JobRecord]], limit: int, bound: DuePlace | None) -> Page:
    """Return a page of the first jobs that were found. `bound`: jobs after it were not looked at; None: all were."""
    looked_at = [one for one in found if bound is None or one[0] <= bound]
    shown = looked_at[:limit]
    end = shown[-1][0] if len(looked_at) > len(shown) else bound
    return Page(tuple(job for _, job in shown), None if end is None else due_cursor(end))


class UnknownTask(Struct, frozen=True):
    """A task and payload version that no worker knows yet; jobs of a queue are parked under it.

    `waited`: microseconds that the longest-waiting of these jobs has waited, judged by the first `UNKNOWN_LOOKS` of
    them.
    """

    task: str
    version: int
    waited: int


class StartLimit(Struct, frozen=True):
    """A limit that `RateLimited` has set: nothing starts before `until`, an instant in microseconds.

    `rate`: the name of the rate that it applies to; None: the whole queue.
    """

    rate: str | None
    until: int


class QueueSurvey(Struct, frozen=True, kw_only=True):
    """Statistics of one queue. `oldest_waiting`: microseconds that its longest-waiting job has waited.

    `parked`: how many of the waiting jobs are parked. `discarded`: how many jobs ever expired without a record.
    `unknown`: the task versions that jobs are parked under until a worker knows them, sorted by task and version; at
    most `LOOK_LIMIT`. `limits`: the limits on its starts that are in force, at most `LOOK_LIMIT`, sorted by rate.
    """

    queue: str
    counts: dict[State, int] = {}
    oldest_waiting: int | None = None
    parked: int = 0
    discarded: int = 0
    unknown: tuple[UnknownTask, ...] = ()
    settings: Settings = Settings()
    limits: tuple[StartLimit, ...] = ()

    @property
    def paused(self) -> bool:
        """True if the queue gives out no jobs."""
        return bool(self.settings.paused)


class WorkerSurvey(Struct, frozen=True, kw_only=True):
    """Statistics of one worker. `seen_ago` and `turned_ago` are in microseconds; stale after three beats of either.

    `died`: its process is known to be dead. A worker that did not sign off is shown for ten minutes after its last
    beat.
    """

    owner: Owner
    queues: tuple[str, ...] = ()
    concurrency: int = 0
    active: int = 0
    started: int = 0
    seen_ago: int = 0
    turned_ago: int = 0
    stopping: bool = False
    died: bool = False
    lag: int = 0
    memory: int = 0
    quiet: bool = False
    tasks: dict[str, int] | None = None
    unstopped: tuple[Ref, ...] = ()
    why: str = ""
    alarm: str = ""


class Survey(Struct, frozen=True, kw_only=True):
    """Statistics of the whole storage; `now` is its clock, `swept_ago` the microseconds since a leader last swept.

    `task_rates`: by task name, the rates that are set in place of the tasks' own rates. `faults`: if requested, the
    faults of these queues, the one with the most failed jobs first. `figures`: if requested, the cells of these queues,
    ordered by queue and start; a minute or hour in which nothing was counted has no cell.
    """

    queues: tuple[QueueSurvey, ...] = ()
    paused_tasks: tuple[str, ...] = ()
    task_rates: dict[str, RateKey] = {}
    workers: tuple[WorkerSurvey, ...] = ()
    leaders: tuple[Term, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    faults: tuple[FaultSurvey, ...] = ()
    figures: tuple[FiguresCell, ...] = ()
    swept_ago: int | None = None
    now: int = 0


class EventReader(Struct, frozen=True):
    """A named reader of the event log, and the process that asks in its name.

    `begin`: the cursor to start at if the storage does not know the reader yet; None: at the end of the log.
    """

    name: str
    caller: str
    begin: str | None = None


class EventPage(Struct, frozen=True):
    """Events in order without a gap, and the cursor that follows them.

    `incomplete`: one of several servers was unreachable; this cursor returns its events when it is reachable again.
    """

    events: tuple[AnyEvent, ...] = ()
    next: str = ""
    incomplete: bool = False


class ActsQuery(Struct, frozen=True, kw_only=True):
    """Which records of the audit log to list, newest first; `after` is the previous page's cursor."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    limit: int = 50
    after: str | None = None


class ActsPage(Struct, frozen=True):
    """One page of the audit log, and the cursor of the next page (None: this was the last page)."""

    acts: tuple[OperatorAct, ...] = ()
    next: str | None = None


EVENTS_END = "$"
"""The cursor after the newest event."""
