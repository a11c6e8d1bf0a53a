"""The contract of every storage: seventeen verbs, each one atomic step and one round trip.

A storage knows job states, guards, indexes, limits and its own clock. It does not know tasks, policies or retries: the
core decides what happens to a job after a run, and the caller passes that decision in as a settlement. Requests carry
durations; the storage adds them to its own clock. Every verb may be called from several event loops of one process, and
may be repeated after a reply was lost.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.deduplication import EnqueueAction
from tenure.core.events import AnyEvent, Event, OnRequest
from tenure.core.figures import FiguresCell, FiguresDelta, FiguresQuery
from tenure.core.fingerprint import FaultSurvey
from tenure.core.job import JobDetail, JobRecord, NewJob, Owner, RateKey, Ref, StallReason, StallSetting
from tenure.core.lane import Lane
from tenure.core.leadership import Term
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.move import MoveMark
from tenure.core.partition import PartitionState
from tenure.core.published import PublishedTask
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.schedule import Schedule
from tenure.core.settlement import Settlement
from tenure.errors import UsageError
from tenure.storage.cursors import DuePlace, due_cursor
from tenure.storage.waiting import OutboxEntry, WaitingRevision

SETTLE_LIMIT = 256
CLAIM_LIMIT = 128
RENEW_LIMIT = 500
SWEEP_LIMIT = 200
PROMOTE_LIMIT = 100
EXPIRE_LIMIT = 200
TRIM_LIMIT = 500
WINDOW_LIMIT = 5_000
"""How many expired key windows one sweep deletes. They are small, and there may be one per job."""

FIGURES_LIMIT = 5_000
"""How many cells of figures one sweep deletes, of minutes and of hours each."""

PASSED_LIMIT = 5_000
"""How many unused rates and tenants one sweep deletes. They are as small as windows."""

SCAN_LIMIT = 500
"""How many jobs one claim examines: the jobs that it starts, and those that are expired or blocked."""

RUNS_KEPT = 100

LOG_LINES_KEPT = 1000
"""How many lines a job's log keeps. The oldest lines are dropped first."""

CALLS_KEPT = 10_000
"""How many later calls a debounced job answers for. The id of an older call is unknown again."""

WORKER_KEPT = 600_000_000
"""How long after its last beat a worker that did not sign off is shown, in microseconds."""

LOOK_LIMIT = 500
"""How many keys one sweep checks for jobs that are parked although the key has room."""

CHORE_LIMITS = {
    "reclaimed": SWEEP_LIMIT,
    "suspected": SWEEP_LIMIT,
    "expired": EXPIRE_LIMIT,
    "promoted": PROMOTE_LIMIT,
    "unparked": PROMOTE_LIMIT,
    "redriven": SWEEP_LIMIT,
    "trimmed": TRIM_LIMIT,
    "forgotten": TRIM_LIMIT,
}
"""How many items of each chore one sweep handles. If a limit is reached, the next sweep follows at once."""

DUE_LIMIT = 100
"""How many due schedules a sweep returns, and how many schedule changes one call may make."""

EVENT_LOAN = 5_000_000
"""How long a batch of events is reserved for one caller of a named reader, in microseconds."""

SettleVerdict = Literal["done", "duplicate", "lost", "gone"]


class Finding(Struct, frozen=True):
    """A problem or an all-clear that `examine` reports, with its remedy."""

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str
    remedy: str = ""


class EnqueueResult(Struct, frozen=True, gc=False):
    """The result of one enqueue. `ref` is the live job: the new one, or the one that already existed.

    `created`: a new job was made. `duplicate`: a job with this id, or one that holds its unique key, already existed.
    `replaced`: this call replaced the call that the debounced job was waiting with. `collected`: a collecting job added
    this call to its batch. `throttled`: no job was made; `ref` is the latest job of the key, and the key has room again
    after `retry_in` microseconds. `pending`: the call is part of a user's transaction, and its result is decided
    after the commit.
    """

    action: EnqueueAction
    ref: Ref
    retry_in: int | None = None


class ClaimRequest(Struct, frozen=True):
    """A claim: up to `room` due jobs from these queues, in the given queue order.

    `lane`: numbers the call, so that it claims only once however often it arrives, and acknowledges earlier calls. A
    call without a lane is never refused, and the jobs that it claims are never handed back.
    `tasks`: the tasks that the caller knows, each with the newest payload version that the caller can read. None means
    all tasks. A caller sends the same dict object in each claim as long as its tasks are the same.
    """

    queues: tuple[str, ...]
    room: int
    lane: Lane | None = None
    tasks: dict[str, int] | None = None


class SettlementResult(Struct, frozen=True, gc=False):
    """The result of one settlement.

    `done`: applied. `duplicate`: the same settlement was applied before. `lost`: another run is the current one by now;
    nothing was written except a `RunFenced` event. `gone`: the job does not exist.
    """

    ref: Ref
    fence: int
    verdict: SettleVerdict


class ExchangeResult(Struct, frozen=True):
    """The answer to an exchange: one verdict per settlement, the leases claimed, and when to ask again.

    A storage of several servers answers for the servers that it reaches. The caller repeats settlements whose verdicts
    are missing. If a server claimed jobs but did not answer, the claim's lane hands them back.
    `left`: ready jobs remain, because the caller had no room, the call reached its scan limit, or its answer became
    long.
    `next_due`: microseconds until the next delayed job of the claimed queues falls due, or until a rate that holds jobs
    back lets one start; None if neither exists.
    `seen`: the call's number was seen before, so nothing was claimed; the jobs that it claimed then are not
    acknowledged.
    `outbox`: entries that the call wrote, which the caller may carry out at once. The sweeps carry out the others.
    """

    verdicts: tuple[SettlementResult, ...] = ()
    leases: tuple[Lease, ...] = ()
    left: bool = False
    next_due: int | None = None
    seen: bool = False
    outbox: tuple[OutboxEntry, ...] = ()


class NewLogLine(Struct, frozen=True):
    """A log line that is not stored yet; `ago` is how many microseconds before the beat it was written.

    `number`: the lines of a run are counted from 1, so that a line that is sent twice is stored once. 0: not counted.
    """

    level: str
    message: str
    fields: dict[str, str]
    ago: int = 0
    number: int = 0


class LeaseRenewal(Struct, frozen=True):
    """A request to extend one lease. `sign`: the handler itself sent a heartbeat since the last beat.

    `extend=False` only asks whether the caller still holds the run and whether it should go on. It is used for a lease
    that only the handler renews. `ran` and `silent`: how long the run has lasted, and how long ago its last heartbeat
    was, in microseconds of the holder's uptime.
    `trace`: the handler's current position in its code, if it differs from the one that the last beat sent; at most
    `TRACE_KEPT` characters. It is stored with the run, even if the lease is not extended, until the run's end is
    recorded.
    `progress`: a number, or an object as JSON text. `data`: the job's data as JSON. It replaces the stored data if its
    number is higher, so a message that arrives late changes nothing.
    `exclusive`: the run holds an exclusive right, which must not pass to another run while its handler goes on. Its
    worker stops the run at its limits and settles it when the handler has ended, so the limits do not bound this lease.
    """

    ref: Ref
    fence: int
    sign: bool = False
    extend: bool = True
    exclusive: bool = False
    ran: int | None = None
    silent: int | None = None
    progress: float | str | None = None
    note: str | None = None
    data: bytes | None = None
    data_number: int = 0
    log: tuple[NewLogLine, ...] = ()
    trace: str | None = None


class WorkerInfo(Struct, frozen=True):
    """What a worker reports about itself in each beat.

    `turned_ago`: microseconds since its claim loop last completed a turn. `lag`: the longest delay of its event loop
    since the beat before, in microseconds. `memory`: the memory that its process uses, in bytes; 0 if unknown.
    `quiet`: an operator ordered it to stop claiming. `tasks`: the tasks that it knows, each with the newest payload
    version that it can read; None means all. `unstopped`: the first few runs that were asked to stop but go on and keep
    their exclusive rights. `why`: why it stopped claiming by itself; empty if it claims. `alarm`: a problem that it
    found with the storage as a whole; empty if none. `schema`: the newest schema that it knows, 0 if the storage does
    not ask for it.
    """

    queues: tuple[str, ...] = ()
    concurrency: int = 0
    active: int = 0
    turned_ago: int = 0
    stopping: bool = False
    lag: int = 0
    memory: int = 0
    quiet: bool = False
    tasks: dict[str, int] | None = None
    unstopped: tuple[Ref, ...] = ()
    why: str = ""
    alarm: str = ""
    schema: int = 0


class RenewRequest(Struct, frozen=True):
    """One renewal of all leases of an owner, with the events, and the deltas of figures, that its process reports."""

    owner: Owner
    renewals: tuple[LeaseRenewal, ...] = ()
    worker: WorkerInfo | None = None
    events: tuple[Event | FiguresDelta, ...] = ()
    """A delta is not recorded as an event but added to the figures. It has a number of its own among the events."""
    last: bool = False
    """The owner signs off: the storage deletes its worker record with this beat."""
    guarding: bool = False
    """The sender watches the owner's process and will reclaim from it. No other process may treat the owner as dead
    before that, if it can see that the owner's process is alive. The owner's leases are still reclaimed when they run
    out."""
    first_event: int | None = None
    """The number of the first event. Events of an owner are counted from 1, so that an event that is sent twice is
    recorded once, as long as the owner's record exists. None: they are not counted."""
    answer_within: int | None = None
    """The time limit for the answer, in microseconds. A storage of several parts waits no longer than this for any
    part, and reports the renewals that the part did not answer. None leaves the limit to the storage."""
    lanes: tuple[Lane, ...] = ()
    """The state of its claims. Runs of finished calls whose answers were lost are handed back."""
    seen: tuple[PartitionState, ...] | None = None
    """The state of each partition that the owner last saw. None: the answer need not report partitions."""


class CancelRequest(Struct, frozen=True):
    """A run that was asked to stop."""

    ref: Ref
    fence: int
    reason: str | None = None


class RenewResult(Struct, frozen=True):
    """The answer to a beat. It lists exceptions only: lost runs, runs to stop, and the operator's orders.

    `incomplete`: runs that could not be renewed because their server, one of several, was unreachable. `orders`: all
    orders in force ("quiet", "stop", "concurrency:5", "outdated:why"). None: the server that stores them was
    unreachable. That server also stores the worker's record and events, which may not have arrived, so the caller sends
    them again.
    `partitions`: if the beat contains `seen`, the state of each partition that the beat reached, before the events of
    the beat were recorded.
    """

    lost: tuple[tuple[Ref, int], ...] = ()
    cancelling: tuple[CancelRequest, ...] = ()
    orders: tuple[str, ...] | None = ()
    incomplete: tuple[tuple[Ref, int], ...] = ()
    partitions: tuple[PartitionState, ...] = ()


class SweepRequest(Struct, frozen=True):
    """A request to sweep. `term`: how long to lead, or None to sweep without election. Durations in microseconds.

    `max_skip`: how long a storage of many parts may skip a part that has no work for a sweep. The caller remains its
    leader meanwhile. With 0 every part is swept. A storage of one part ignores this.
    """

    owner: Owner
    term: int | None = 4_000_000
    every: int = 2_000_000
    grace: int = 3_000_000
    max_skip: int = 0


class StalledLease(Struct, frozen=True):
    """A lease taken from a holder that died or fell silent. The caller holds it for five seconds under a new fence."""

    lease: Lease
    reason: StallReason
    owner: str
    silent_for: int = 0


class SweepResult(Struct, frozen=True):
    """The result of one turn of the leader.

    `retry_in`: microseconds until the current leader's term ends; None for the leader and without election. `more`: a
    limit was reached, so sweep again at once. `did`: how many jobs were suspected, reclaimed, promoted, expired,
    unparked, redriven and trimmed, and how many events were deleted. A deleted job counts once for each call that it
    answers for.
    `troubles`: chores that failed, one line each; the other chores ran.
    `due`: schedules with a tick that is due at `now`, the storage's clock. The caller advances them. It also contains
    schedules whose last tick lies after `now` (`Schedule.is_ahead`). `next_tick`: microseconds until the next tick of
    any schedule, None without one. All three are for the leader only.
    `outbox`: entries that are to be carried out: their dependents are notified, then the entries are advanced.
    """

    terms: tuple[Term, ...] = ()
    retry_in: int | None = None
    stalled: tuple[StalledLease, ...] = ()
    did: dict[str, int] = {}
    more: bool = False
    troubles: tuple[str, ...] = ()
    due: tuple[Schedule, ...] = ()
    next_tick: int | None = None
    now: int = 0
    outbox: tuple[OutboxEntry, ...] = ()


class ReclaimResult(Struct, frozen=True):
    """The jobs that a dead owner held. The caller now holds them for five seconds. `more`: call again.

    `incomplete`: the caller may hold jobs that no answer named. It can reclaim them from itself under another owner id.
    Either a part of the storage did not answer, or the caller held jobs before this call. Those come from an earlier
    answer and are not settled yet, or from an answer that was lost: a network may deliver a request twice and return
    the second answer.
    """

    stalled: tuple[StalledLease, ...] = ()
    more: bool = False
    incomplete: bool = False


class CancelJob(Struct, frozen=True, tag="cancel"):
    """Cancel a job. A job that is not active ends at once; the run of an active job is asked to stop.

    `ended`: see `Revision`.
    """

    ref: Ref
    reason: str | None = None
    by: str | None = None
    ended: int | None = None


class RedriveJob(Struct, frozen=True, tag="redrive"):
    """Put an ended job back in its queue with new budgets and a new time to live, due in `delay` microseconds.

    `ended`: see `Revision`.
    """

    ref: Ref
    by: str | None = None
    delay: int = 0
    ended: int | None = None


class DeleteJob(Struct, frozen=True, tag="delete"):
    """Delete a job that is not active. `ended`: see `Revision`.

    `move`: only while the jobs of its queue are moved to another storage by the move of this id.
    """

    ref: Ref
    by: str | None = None
    ended: int | None = None
    move: str | None = None


class RescheduleJob(Struct, frozen=True, tag="reschedule"):
    """Change the due time (microseconds from now) or the priority of a job that has not started.

    `ended`: see `Revision`.
    """

    ref: Ref
    delay: int | None = None
    priority: int | None = None
    boost: int | None = None
    by: str | None = None
    ended: int | None = None


class RetainJob(Struct, frozen=True, tag="retain"):
    """Keep a completed job with its result for `ttl` microseconds from now. This replaces any earlier lifetime.

    `ended`: see `Revision`.
    """

    ref: Ref
    ttl: int
    ended: int | None = None


Revision = CancelJob | RedriveJob | DeleteJob | RescheduleJob | RetainJob | WaitingRevision
"""A change of a job by an operator, or of what jobs wait for.

`ended`: apply it only if the job's end is still the one at this instant; 0: only if it has none. A caller that chose
the job from a listing sets it; otherwise it might change a job that has run again since, which it has not seen.
"""


class RevisionResult(Struct, frozen=True):
    """The result of one revision. `state`: the job's state before the revision.

    `changed`: the job's end is not `ended` of the revision, so nothing was done. `refused`: its state does not allow
    the revision. `holder`: the redrive was refused because of this job: it is unfinished and holds the unique key of
    both jobs, or it has failed and the job needs it completed.
    """

    ref: Ref
    verdict: Literal["done", "asked", "refused", "changed", "gone"]
    state: State | None = None
    holder: Ref | None = None


class PutSchedule(Struct, frozen=True, tag="put"):
    """Create a schedule, or change the schedule of that name; its progress stays as it is (`redefined`)."""

    schedule: Schedule

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.schedule.name


class PauseSchedule(Struct, frozen=True, tag="pause"):
    """Pause a schedule, or resume it at `next_tick`. Ticks that fell into the pause do not count as missed."""

    name: str
    paused: bool
    next_tick: int | None = None


class RemoveSchedule(Struct, frozen=True, tag="remove"):
    """Delete a schedule; the jobs that it has made stay."""

    name: str


class Tick(Struct, frozen=True, tag="tick"):
    """Advance a schedule to a tick and enqueue its job, if its last tick is the expected one and it is not paused.

    `job`: None if the tick makes no job. `missed`: how many ticks up to this one are skipped by this step.
    """

    name: str
    expected: int
    tick: int
    next_tick: int | None
    job: NewJob | None = None
    missed: int = 0


Change = PutSchedule | PauseSchedule | RemoveSchedule | Tick


def jobs_of_ticks(changes: Iterable[Change]) -> list[NewJob]:
    """Return the jobs that are enqueued by the ticks among some changes."""
    return [change.job for change in changes if isinstance(change, Tick) and change.job is not None]


class ScheduleResult(Struct, frozen=True):
    """The result of a schedule change. `ref`: the job that a tick made, or the job that its call was merged into."""

    name: str
    verdict: Literal["done", "superseded", "gone"]
    ref: Ref | None = None


class Target(Struct, frozen=True):
    """The queue, task or worker that a setting applies to."""

    kind: Literal["queue", "task", "worker"]
    name: str


class Settings(Struct, frozen=True, omit_defaults=True):
    """Settings of a queue, a task or a worker that every worker must know; None leaves a field unchanged.

    `record`: which of the optional events a queue records. `rate`: how often jobs of a queue may start, or how often
    jobs of a task may start in each queue; a task's rate replaces the rates that its jobs carry.
    `lift`: end the limit that `RateLimited` has set for a rate of the queue, `QUEUE_RATE` for the queue itself, or "*"
    for the first `LOOK_LIMIT` of them. It is an action and is not stored. `concurrency`: how many jobs a worker runs at
    once; 0: as many as it was started with. `moved`: the jobs of a queue move to another storage: it gives out no
    jobs and refuses new ones. For a worker: tells it where they went.
    """

    paused: bool | None = None
    rate: RateKey | None = None
    stall: StallSetting | None = None
    retention: RetentionRules | None = None
    record: tuple[OnRequest, ...] | None = None
    quiet: bool | None = None
    stop: bool | None = None
    lift: str | None = None
    concurrency: int | None = None
    moved: MoveMark | None = None

    @property
    def closed(self) -> bool:
        """True if a queue with these settings gives out no jobs."""
        return bool(self.paused) or self.moved_to is not None

    @property
    def moved_to(self) -> str | None:
        """The address of the storage that a queue's jobs are moved to; None if they are not."""
        return None if self.moved is None else self.moved.to or None

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders of a worker with these settings, as the answer to its beat names them."""
        names: tuple[str, ...] = tuple(name for name in ("quiet", "stop") if getattr(self, name))
        if self.concurrency:
            names = (*names, f"{CONCURRENCY}{self.concurrency}")
        return names if self.moved_to is None else (*names, f"{MOVED}{self.moved_to}")

    def agrees(self, expected: "Settings", change: "Settings") -> bool:
        """Return True if the fields that `change` sets have their expected values. `lift` is an action, so it has none.

        A field that is not set is the same as False.
        """
        names = [name for name in change.__struct_fields__ if name != "lift" and getattr(change, name) is not None]
        return all(_set(getattr(self, name)) == _set(getattr(expected, name)) for name in names)

    def under(self, other: "Settings") -> "Settings":
        """Return these settings with `other` laid over them; stall terms and retention are merged field by field."""
        stall = other.stall if self.stall is None or other.stall is None else self.stall.updated_with(other.stall)
        kept = other.retention
        if self.retention is not None:
            kept = self.retention if kept is None else self.retention.updated_with(kept)
        return Settings(
            paused=self.paused if other.paused is None else other.paused,
            rate=self.rate if other.rate is None else other.rate,
            stall=self.stall if stall is None else stall,
            retention=kept,
            record=self.record if other.record is None else other.record,
            quiet=self.quiet if other.quiet is None else other.quiet,
            stop=self.stop if other.stop is None else other.stop,
            concurrency=self.concurrency if other.concurrency is None else other.concurrency,
            moved=self.moved if other.moved is None else other.moved,
        )


def _set(value: object) -> object:
    return False if value is None else value


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


class Notifications(Protocol):
    """Hints that something changed, coalesced: each iteration yields once, however many changes came in between."""

    def __aiter__(self) -> AsyncIterator[None]:
        """Return itself."""
        ...

    async def __anext__(self) -> None:
        """Wait for the next hint. Cancelling the wait loses nothing."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Storage(Protocol):
    """Stores jobs, schedules, settings and events."""

    url: str
    """Its address, without secrets."""

    shared: bool
    """True if other processes can use the same data."""

    remote: bool
    """True if a server works concurrently with its callers: it pays to send a request before the last answer."""

    flows: bool
    """True if jobs can wait for others here. If not, a call with links, a suspension or a token raises FlowError."""

    async def open(self) -> None:
        """Prepare for use. Idempotent.

        Raises:
            SchemaMismatchError: the data is not Tenure's, or has another schema version; it is left unchanged.
        """
        ...

    async def close(self) -> None:
        """Release all resources. Idempotent; no acknowledged write is lost."""
        ...

    async def examine(self, *, deep: bool = True) -> list[Finding]:
        """Check for conditions that could lose or repeat jobs; each finding names its remedy.

        `deep`: also run checks that take longer the more data there is, such as an audit of all counters. Without it
        every storage answers within seconds, however much data it holds.
        """
        ...

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store each new job once. Per queue, the call stores all of its jobs or none of them.

        Guard: the (queue, id) is unknown, or its result's lifetime is over, and its unique key is free. Otherwise the
        result is `duplicate` and names the existing job. An id that was merged into another job is known, too. With a
        debounce or collect key, a call is merged into the job that holds the key, as long as that job has not started.
        A throttle key admits no more jobs than its window allows. The limit that a call brings for a concurrency key
        applies to the key from now on.

        Raises:
            StorageFullError: the storage has no room; nothing was written.
            StorageMovedError: the jobs of one of the queues are moved to another storage; nothing was written.
        """
        ...

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """Apply each settlement whose run is still the current one, then claim jobs: one step, one round trip.

        A settlement with a limit lets nothing start under the job's own rate (`limit_name`), else in its queue, before
        that instant; of several instants the latest applies, and a new one is recorded (`QueueLimited`).

        Guard of a settlement: the job is active, and fence and owner match, even if the lease has run out. A put-back
        of a job that was asked to stop ends the job as cancelled.

        Guard of a claim: the job is due and not expired, its queue and task are not paused, all its keys have room, and
        all its rates and its queue's rate allow a start. A claim raises the fence, counts a start, takes the time of
        the job's rates and opens a run. It moves jobs that it cannot start out of the way. A job that is too old
        expires. A job without room is parked under its first full key, else under its first rate that is not open. When
        a job leaves a key, the best job that is parked under that key is released. Under a rate, passing time releases
        jobs.

        A run that is put back `until_known` costs its rates nothing: the job keeps its score and is parked under its
        task and version. If the caller knows both, its claim takes such jobs in score order with the others; it looks
        at up to `PLACE_LIMIT` task versions. A job that has started before and whose task the caller does not know is
        parked in the same way.

        If a queue has more completed jobs than `KeepRule.most`, a call that completes some also deletes a bounded
        number of the jobs that completed first (`KeepRule.deleted_at_once`). At most 256 settlements and 128 jobs a
        call.

        A claim with a lane claims nothing if its number, or a later one of this owner and lane, was seen before. Runs
        that earlier calls of the lane gave out, and that its `answered` does not cover, are handed back first: without
        a charge, as never begun, with the job's score kept. A storage deletes a lane ten minutes after its last use.
        """
        ...

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """Record that an owner is alive, and extend every named lease that it still holds, even if it has run out.

        Guard: fence and owner match. A lease never extends past the run's limit or its progress deadline, unless the
        renewal says that the run is exclusive. A suspicion ends only if the new lease end lies ahead. A renewal of a
        run that the owner no longer holds is refused and recorded (`RunFenced`).

        The beat's events are recorded unchanged. A delta is added to the figures of the current minute and hour: to
        the cells of its tasks, and to the cell of each queue. A log line, an event or a delta that was received before,
        by its number, is skipped, and so are data with a number that is not higher than that of the stored data. At
        most 500 renewals a call. The request's lanes hand back runs as a claim's lane does, but the runs of a call that
        is still under way stay. A partition that has lost its identity gets it back from the owner's `seen` if only the
        identity is missing, and gets a new one if all data is lost.
        """
        ...

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """Elect or renew the caller (unless it asks for no term), then run one bounded turn of the chores.

        In this order: reclaim jobs whose owner died or whose grace is over; mark expired leases as suspect; expire jobs
        that are too old to start; promote jobs that fell due; release parked jobs that have room; redrive by rule;
        trim jobs, events and figures. The record's own state guards each step, so two leaders do no harm. A chore that
        fails does not prevent the others.

        Queues are promoted in the order in which the first delayed job of each fell due, and by name where these
        instants are equal; in a queue, the job that fell due first is the first. A storage of many parts does so in
        each part.
        """
        ...

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """Take every active job of an owner known to be dead, without grace; up to 200 a call.

        If a caller uses an owner id only for this call, it can recover the jobs of a lost answer: it reclaims them from
        that id under another one.
        """
        ...

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """Cancel, redrive, delete, reschedule or retain jobs that are not active; ask an active one to stop.

        The worker of a run that is asked to stop is notified at once, on its owner's topic.
        """
        ...

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Change schedules, and advance a schedule by a tick if and only if its last tick is the expected one.

        A tick's job is enqueued in the same step, unless the schedule's overlap rule forbids it: `skip` while a job of
        an earlier tick is unfinished, `queue_one` while one has yet to start. The result of a tick is recorded. At most
        100 changes a call.
        """
        ...

    async def tune(
        self, target: Target, settings: Settings, *, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """Change settings that every worker must know; return the settings in force. Idempotent; unset fields stay.

        `expected`: the settings that the caller has read. If a field that `settings` sets is another one now, nothing
        changes (`Settings.agrees`). The caller compares the settings in force with those that it wants.

        `lift` ends limits of a queue at once; each limit that it ends is recorded.

        A worker is notified of an order at once, on its topic.
        """
        ...

    async def resign(self, term: Term) -> None:
        """Give up this leader term and no other."""
        ...

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        """Store what a worker knows of its tasks, or renew it: the same digest is written once. Idempotent.

        Of what live workers publish, the highest version stays, and of equal versions the latest (`replaces`).
        `renewal`: the worker has published them before, so it replaces no equal version of a live worker. At most
        `PUBLISH_LIMIT` tasks a call. A storage forgets a task after `PUBLISHED_KEPT`, and of more than
        `PUBLISHED_MOST` tasks those that were published first.

        Raises:
            StorageFullError: the storage has no room; nothing was written.
        """
        ...

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """Return each job with its runs and log. None means unknown; it never means pending.

        A completed job whose own result lifetime is over is unknown, even if no sweep has deleted it yet.
        """
        ...

    async def find(self, query: Query) -> Page:
        """Return one page of records, in the order of the query. Without queues, of all but the internal ones."""
        ...

    async def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """Return the tasks that workers have published, by name: those named, or all of them without their schemas."""
        ...

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        """Return job counts, queues and workers, computed from counters; this works without any worker.

        Without names, of all queues but the internal ones, and without workers that serve only these.
        `faults`: also return up to this many faults of these queues, those with the most failed jobs. `figures`: also
        return these cells of these queues.
        """
        ...

    async def events(
        self,
        cursor: str | None = None,
        *,
        limit: int = 100,
        reader: EventReader | None = None,
        ref: Ref | None = None,
    ) -> EventPage:
        """Return what happened after the cursor, in order and without a gap; `EventsTrimmed` first if it was cut.

        With a `ref`: only events of that job.

        With a reader's name the storage keeps the cursor. The call states how far its last batch was handled, and
        reserves the next batch for this caller for five seconds (asking again renews the loan). The page is empty while
        the batch is on loan to another caller, but the stated progress counts anyway. If a reader brings a cursor but
        the storage does not know the reader, the reader was lost together with the log that the cursor belonged to. It
        then starts at the oldest event. A cursor of None starts at the kept cursor (for a new reader at
        `EventReader.begin`), or without a reader at the oldest event. `EVENTS_END` starts after the newest. Without a
        reader, a cursor of `cursors.recorded_within` starts after the last event that is older than the given age. An
        invalid cursor raises ValueError.
        """
        ...

    async def record_act(self, act: OperatorAct, *, keep: KeepRule = ACTS_KEPT) -> OperatorAct:
        """Write an operator's act into the audit log, and return the record as it is now.

        A write without a verdict asks for the act, a write with one ends it; the storage's clock stamps both. Guard:
        the id is unknown, or its record has no verdict yet (`OperatorAct.written`). A new record also deletes up to
        `TRIM_BATCH` of the oldest records that are older than `keep.age`, or that exceed `keep.count`.

        Like a settlement, this is written even if the storage refuses new jobs because its memory is full. The texts
        must be those of `core.audit.fitted`.
        """
        ...

    async def acts(self, query: ActsQuery) -> ActsPage:
        """Return one page of the audit log, newest first. An invalid cursor raises ValueError."""
        ...

    def notices(self, topics: Iterable[str]) -> Notifications:
        """Listen for hints on these topics; hints may be lost, merged or late, and promise nothing."""
        ...


class StorageTransaction(Protocol):
    """A handler's transaction in the database of the storage, which also completes the handler's job.

    Its calls block. Any thread may make them, one at a time, except the thread of the event loop that the transaction
    was made for.
    """

    @property
    def connection(self) -> Any:
        """The connection or session that the handler writes with."""
        ...

    @property
    def late_error(self) -> Exception | None:
        """The error of a hook that the library of the connection called after the commit."""
        ...

    def begin(self) -> None:
        """Begin the transaction, with a connection of its own if the handler gave none.

        Raises:
            UsageError: the handler's connection cannot be used: it leads to another database, or is in a transaction.
            StorageError: the database is out of reach.
        """
        ...

    def prepare(self) -> None:
        """Prepare the completion: from here on no other transaction may change jobs, so `complete` must follow at once.

        Raises:
            UsageError: the handler has ended the transaction itself.
            StorageError: the database is out of reach, or busy for too long.
        """
        ...

    def complete(self, beat: RenewRequest, settlement: Settlement) -> SettleVerdict:
        """Renew and settle, then commit. Nothing is committed unless the verdict is `done`.

        If the answer to the commit is lost, this asks the database whether it took place.

        Raises:
            StorageError: nothing was committed; or the message says that this cannot be found out.
        """
        ...

    def close(self) -> None:
        """Roll back what is not committed, and close a connection of its own. Idempotent; never raises."""
        ...

    def interrupt(self) -> None:
        """Make the call that waits fail, if that is possible. Any thread may call this."""
        ...

    def abandon(self) -> None:
        """Roll back if others wait for this transaction, because its handler does not end. Any thread may call this.

        The handler writes nothing more. A completion that has begun goes on.
        """
        ...


@runtime_checkable
class SupportsTransactions(Protocol):
    """A storage in whose database a handler can write: its own writes and its completion are one transaction."""

    def transaction(self, connection: object, loop: asyncio.AbstractEventLoop | None) -> StorageTransaction:
        """Return a transaction that has not begun.

        `connection`: the handler's connection or session; None: the transaction opens its own. `loop`: the event loop
        of a coroutine, where the calls of its asynchronous connection are awaited; None in a thread without one.

        Raises:
            UsageError: the storage cannot use a connection of this kind, or not here.
        """
        ...


def queue_topic(queue: str) -> str:
    """Return the topic for hints that a queue has work."""
    return f"queue:{queue}"


def job_topic(ref: Ref) -> str:
    """Return the topic for hints that a job changed; names hold no NUL, so the topic belongs to one job only."""
    return f"job:{ref.queue}\0{ref.id}"


def owner_topic(owner: str) -> str:
    """Return the topic for hints that an owner should send a beat at once."""
    return f"owner:{owner}"


def knows(tasks: Mapping[str, int] | None, task: str, version: int) -> bool:
    """Return True if a caller with these tasks knows this task in this payload version."""
    return tasks is None or tasks.get(task, 0) >= version


def unknown_place(task: str, version: int) -> str:
    """Return the name of the key under which jobs are parked until a worker knows their task and version."""
    return f"{UNKNOWN}{task}:{version}"


def task_of_place(name: str) -> tuple[str, int]:
    """Return the task and version of the key name that jobs are parked under; the inverse of `unknown_place`."""
    task, _, version = name.removeprefix(UNKNOWN).rpartition(":")
    return task, int(version)


UNKNOWN = "unknown:"
"""The prefix of key names under which jobs of unknown tasks are parked."""

UNKNOWN_LOOKS = 100
"""How many jobs of an unknown task a survey examines to find the longest-waiting one."""

PLACE_LIMIT = 250
"""How many names of unknown tasks one claim looks at, over all of its queues.

If a queue has more of them and the caller knows more tasks, each claim looks at another part of the names."""

PAUSED = "paused:"
"""The prefix of key names under which the jobs of a paused task are parked."""

RATE = "rate:"
"""The prefix of key names under which jobs are parked until their rate lets them start."""

QUEUE_RATE = "queue"
"""The name of the rate that is set for a queue."""

LIMIT = "limit:"
"""The prefix of the name under which a limit is kept that `RateLimited` has set for a rate."""

TASK_RATE = "task:"
"""The prefix of the names of task rates, both those that are set and those that jobs carry."""

CONCURRENCY = "concurrency:"
"""The prefix of the order that sets how many jobs a worker runs at once; the number follows."""

OUTDATED = "outdated:"
"""The prefix of the order to stop that a worker gets if it knows only an older schema; the reason follows."""

MOVED = "moved:"
"""The prefix of the order that tells a worker where the jobs went; the address follows."""

EVENTS_END = "$"
"""The cursor after the newest event."""

EVENTS_TOPIC = "events"
"""The topic for hints that there are new events."""
