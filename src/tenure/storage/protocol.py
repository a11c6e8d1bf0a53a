"""What every storage promises: fourteen verbs, each one atomic step and one round trip.

A storage knows states, guards, indexes, limits and its own clock. It knows no task, no policy and no retry: what
becomes of a job is decided by the core and handed in as a settlement. Requests carry durations; the storage adds them
to its own now. All verbs may be called from several event loops of one process, and repeated after a lost reply.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from tenure.core.deduplication import Made
from tenure.core.events import AnyEvent, Event, OnRequest
from tenure.core.job import JobDetail, JobRecord, NewJob, Owner, RateKey, Ref, StallReason, StallSetting
from tenure.core.lane import Lane
from tenure.core.leadership import Term
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.partition import PartitionState
from tenure.core.retention import RetentionRules
from tenure.core.schedule import Schedule
from tenure.core.settlement import Settlement

SETTLE_LIMIT = 256
CLAIM_LIMIT = 128
RENEW_LIMIT = 500
SWEEP_LIMIT = 200
PROMOTE_LIMIT = 100
EXPIRE_LIMIT = 200
TRIM_LIMIT = 500
WINDOW_LIMIT = 5_000
"""How many keys that were held for a time a sweep forgets: they are small, and there may be one for each job."""

PASSED_LIMIT = 5_000
"""How many rates and tenants a sweep forgets of whom nothing is to be said any more: they are as small."""

SCAN_LIMIT = 500
"""How many jobs a claim looks at: those that it starts, and those that it finds expired or without a slot."""

RUNS_KEPT = 100

LOG_LINES_KEPT = 1000
"""How many lines a job's log keeps, the newest."""

CALLS_KEPT = 10_000
"""How many later calls a debounced job answers for, the latest; the id of an older one is unknown again."""

WORKER_KEPT = 600_000_000
"""For how long after its last beat a worker that took no leave is shown, in microseconds."""

LOOK_LIMIT = 500
"""How many keys a sweep looks at, whether those parked under them have room after all."""

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
"""How much of each chore one sweep does; where a limit is reached, the next sweep comes at once."""

DUE_LIMIT = 100
"""How many due schedules a sweep names, and how many changes of schedules one call may make."""

EVENT_LOAN = 5_000_000
"""How long a batch of events is lent to one caller of a named reader, in microseconds."""

SettleVerdict = Literal["done", "duplicate", "lost", "gone"]


class Finding(Struct, frozen=True):
    """Something `examine` noticed, with its remedy."""

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str
    remedy: str = ""


class EnqueueResult(Struct, frozen=True, gc=False):
    """What became of one enqueue: `ref` is the job that lives, be it the new one or the one that was there.

    `created`: a new job. `duplicate`: a job of this id, or one that holds its unique key, was there. `replaced`: this
    call took the place of the one that the job was waiting with. `gathered`: the job took this call in, too.
    `throttled`: nothing was made; `ref` is the latest job of the key, and after `retry_in` microseconds there is room.
    """

    made: Made
    ref: Ref
    retry_in: int | None = None


class ClaimRequest(Struct, frozen=True):
    """A claim: up to `room` due jobs from these queues, the first named first.

    `lane`: numbers the call, so that it claims once however often it arrives, and acknowledges earlier ones. Without
    it a call is never refused, and what it claims is never handed back.
    `tasks`: the tasks that the caller knows, each with the newest version of its payload that the caller can read.
    None means all. A claim sends the same dict as the claim before as long as the tasks are the same.
    """

    queues: tuple[str, ...]
    room: int
    lane: Lane | None = None
    tasks: dict[str, int] | None = None


class SettlementResult(Struct, frozen=True, gc=False):
    """What became of one settlement.

    `done`: applied. `duplicate`: this very settlement was applied before. `lost`: the run is no longer the current
    one; nothing was written but a `RunFenced`. `gone`: no such job.
    """

    ref: Ref
    fence: int
    verdict: SettleVerdict


class ExchangeResult(Struct, frozen=True):
    """The answer to an exchange: a verdict each, the leases won, and when to ask again.

    A storage of several servers answers for those of them that it reaches. Verdicts that are missing are asked for
    again; what a server claimed that did not answer is handed back by the order's lane.
    `left`: ready jobs were left behind: there was no room, the call had looked at as many as one may, or its answer
    had become long. `next_due`: microseconds until the next delayed job of the ordered queues falls due, or a rate that
    holds jobs back lets one start; None if there is neither.
    `seen`: the call's number was seen before, so nothing was claimed; what it claimed then is not acknowledged.
    """

    verdicts: tuple[SettlementResult, ...] = ()
    leases: tuple[Lease, ...] = ()
    left: bool = False
    next_due: int | None = None
    seen: bool = False


class NewLogLine(Struct, frozen=True):
    """A line on its way to the log; `ago` is how many microseconds before the beat it was written.

    `number`: the lines of a run are counted from 1, so that a line that is sent again is kept once. 0: not counted.
    """

    level: str
    message: str
    fields: dict[str, str]
    ago: int = 0
    number: int = 0


class LeaseRenewal(Struct, frozen=True):
    """One lease to extend. `sign`: the handler itself gave a sign of life since the last beat.

    `extend=False` only asks whether the run is still ours and wanted: for a lease that the handler alone renews. `ran`
    and `silent`: for how long the run has gone on, and since its last sign, in microseconds of the holder's uptime.
    `trace`: where the handler is, if that is not where the last beat found it; at most `TRACE_KEPT` characters. It is
    kept with the run whether the lease is extended or not, until the run's end is recorded.
    `exclusive`: the run holds an exclusive right, which must not pass to another run while its handler goes on. Its
    worker stops it at its limits and settles it when the handler has ended, so the limits do not bound this lease.
    """

    ref: Ref
    fence: int
    sign: bool = False
    extend: bool = True
    exclusive: bool = False
    ran: int | None = None
    silent: int | None = None
    progress: float | None = None
    note: str | None = None
    log: tuple[NewLogLine, ...] = ()
    trace: str | None = None


class WorkerInfo(Struct, frozen=True):
    """What a worker tells of itself with each beat.

    `turned_ago`: microseconds since its claim loop last turned. `lag`: the longest that its event loop kept anything
    waiting since the beat before, in microseconds. `memory`: what its process occupies, in bytes; 0 where nobody knows.
    `quiet`: an operator has told it to claim no more. `tasks`: the tasks that it knows, each with the newest version of
    its payload that it can read; None means all. `unstopped`: the runs that were told to stop, go on, and keep their
    exclusive rights; the first few of them. `why`: why it claims no more by itself; empty if it does.
    `alarm`: what it found wrong with the storage as a whole; empty if nothing.
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


class RenewRequest(Struct, frozen=True):
    """One renewal of everything an owner holds, and what its process has to announce."""

    owner: Owner
    renewals: tuple[LeaseRenewal, ...] = ()
    worker: WorkerInfo | None = None
    events: tuple[Event, ...] = ()
    last: bool = False
    """The owner takes its leave: its worker record goes with this beat."""
    guarding: bool = False
    """Sent by who watches over the owner's process, and will reclaim from it: nobody else shall take the owner for dead
    before, where its life can be seen. What it holds is lost to the silent all the same, when its leases are out."""
    first_event: int | None = None
    """The number of the first of the events: those of an owner are counted from 1, so that an event that is sent again
    is recorded once, as long as the owner's record is there. None: they are not counted."""
    answer_within: int | None = None
    """The microseconds after which the sender wants an answer. A storage of several parts waits no longer for any of
    them, and reports what that one did not answer; None leaves the limit to the storage."""
    lanes: tuple[Lane, ...] = ()
    """How far its claims have come: what calls gave out that are over and were not answered is handed back."""
    seen: tuple[PartitionState, ...] | None = None
    """What the owner last saw of each partition. None: the answer need not tell."""


class CancelRequest(Struct, frozen=True):
    """A run that somebody asked to stop."""

    ref: Ref
    fence: int
    reason: str | None = None


class RenewResult(Struct, frozen=True):
    """The answer to a beat, exceptions only: what is no longer ours, what shall stop, what the operator ordered.

    `unanswered`: what could not be renewed, for the one of several servers that keeps it was out of reach. `orders`:
    all that are in force ("quiet", "stop"); None: the server that keeps them was out of reach, and the worker's record
    and events, which it keeps too, may not have reached it. Send them again. `partitions`: if the beat tells what the
    owner saw, the state of each partition that the beat came to, before the events of the beat were recorded.
    """

    lost: tuple[tuple[Ref, int], ...] = ()
    cancelling: tuple[CancelRequest, ...] = ()
    orders: tuple[str, ...] | None = ()
    unanswered: tuple[tuple[Ref, int], ...] = ()
    partitions: tuple[PartitionState, ...] = ()


class SweepRequest(Struct, frozen=True):
    """A request to sweep. `term`: how long to lead, or None to sweep without election. Durations in microseconds.

    `rest`: for how long a storage of many parts may leave one alone in which nothing waits for a sweep; its leader
    leads it meanwhile. By 0 all are swept. A storage of one part takes no rest.
    """

    owner: Owner
    term: int | None = 4_000_000
    every: int = 2_000_000
    grace: int = 3_000_000
    rest: int = 0


class StalledLease(Struct, frozen=True):
    """A lease taken from a holder that died or fell silent; the taker's for five seconds, under a new fence."""

    lease: Lease
    reason: StallReason
    owner: str
    silent_for: int = 0


class SweepResult(Struct, frozen=True):
    """What one turn of the leader did.

    `retry_in`: microseconds until the reigning term ends, None for a leader or without election. `more`: a limit was
    reached, sweep again at once. `did`: how many jobs were suspected, reclaimed, promoted, expired, unparked, redriven,
    trimmed, and how many events were forgotten. A job that is forgotten counts as many as the calls it answers for.
    `troubles`: chores that failed, one line each; the others were done all the same.
    `due`: schedules with a tick that has come by `now`, the storage's clock, for whoever swept to move on, and those
    that have got further than it (`Schedule.is_ahead`); `next_tick`: microseconds until the next schedule has one, None
    if none will. All three are for the leader only. `again_in`: microseconds after which the next sweep finds
    more to do than it would at once; None if the rhythm is the reaper's own.
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
    again_in: int | None = None


class ReclaimResult(Struct, frozen=True):
    """What a dead owner held, now the caller's for five seconds. `more`: call again.

    `doubtful`: the caller may hold jobs that no answer named, and can reclaim them from itself in another name. A part
    of the storage did not answer, or the caller held jobs before this call: those of an earlier answer that it has not
    settled yet, or of one that was lost: a network may carry out a request twice and pass the second answer on.
    """

    stalled: tuple[StalledLease, ...] = ()
    more: bool = False
    doubtful: bool = False


class CancelJob(Struct, frozen=True, tag="cancel"):
    """Cancel a job: at once unless it is active; then its run is asked to stop."""

    ref: Ref
    reason: str | None = None
    by: str | None = None


class RedriveJob(Struct, frozen=True, tag="redrive"):
    """Put a job that is over back in line, with new budgets and a new time to live; `delay` microseconds from now.

    `ended`: only if it still is at the end that it came to at that instant. Whoever chose the job from a listing says
    so, or it might be redriven for a failure that nobody has looked at.
    """

    ref: Ref
    by: str | None = None
    delay: int = 0
    ended: int | None = None


class DeleteJob(Struct, frozen=True, tag="delete"):
    """Forget a job that is not active. `ended`: only if it still is at the end that it came to at that instant."""

    ref: Ref
    by: str | None = None
    ended: int | None = None


class RescheduleJob(Struct, frozen=True, tag="reschedule"):
    """Give a job that has not started another due time (microseconds from now) or another priority."""

    ref: Ref
    delay: int | None = None
    priority: int | None = None
    boost: int | None = None
    by: str | None = None


class RetainJob(Struct, frozen=True, tag="retain"):
    """Keep a completed job with its result for `ttl` microseconds from now, whatever was said before."""

    ref: Ref
    ttl: int


Revision = CancelJob | RedriveJob | DeleteJob | RescheduleJob | RetainJob


class RevisionResult(Struct, frozen=True):
    """What became of one revision. `state`: where the job stood when it was refused, asked, or changed.

    `holder`: a redrive was refused because this job, unfinished, holds the unique key that both have.
    """

    ref: Ref
    verdict: Literal["done", "asked", "refused", "gone"]
    state: State | None = None
    holder: Ref | None = None


class PutSchedule(Struct, frozen=True, tag="put"):
    """Make a schedule, or change what one of its name does; how far that has got stays as it is (`put_over`)."""

    schedule: Schedule

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.schedule.name


class PauseSchedule(Struct, frozen=True, tag="pause"):
    """Pause a schedule, or let it go on at `next_tick`: what went by in a pause is not missed."""

    name: str
    paused: bool
    next_tick: int | None = None


class RemoveSchedule(Struct, frozen=True, tag="remove"):
    """Forget a schedule; the jobs it has made stay."""

    name: str


class Tick(Struct, frozen=True, tag="tick"):
    """Move a schedule on to a tick, if its last one is the expected one and it is not paused, and enqueue its job.

    `job`: None where the tick makes none. `missed`: how many ticks up to this one are given up by this step.
    """

    name: str
    expected: int
    tick: int
    next_tick: int | None
    job: NewJob | None = None
    missed: int = 0


Change = PutSchedule | PauseSchedule | RemoveSchedule | Tick


class ScheduleResult(Struct, frozen=True):
    """What became of a change to a schedule. `ref`: the job that a tick made or that took its call in, if one did."""

    name: str
    verdict: Literal["done", "superseded", "gone"]
    ref: Ref | None = None


class Target(Struct, frozen=True):
    """What a setting is for."""

    kind: Literal["queue", "task", "worker"]
    name: str


class Settings(Struct, frozen=True, omit_defaults=True):
    """What every worker must know of a queue, a task or a worker; None leaves a field as it is.

    `record`: which of the events that are recorded on request a queue records. `rate`: how often jobs of a queue may
    start, or those of a task in each queue, whatever they bring along.
    """

    paused: bool | None = None
    rate: RateKey | None = None
    stall: StallSetting | None = None
    retention: RetentionRules | None = None
    record: tuple[OnRequest, ...] | None = None
    quiet: bool | None = None
    stop: bool | None = None

    def under(self, told: "Settings") -> "Settings":
        """Return these settings with all that is told laid over them, stall terms and retention field by field."""
        stall = told.stall if self.stall is None or told.stall is None else self.stall.under(told.stall)
        kept = told.retention
        if self.retention is not None:
            kept = self.retention if kept is None else self.retention.under(kept)
        return Settings(
            paused=self.paused if told.paused is None else told.paused,
            rate=self.rate if told.rate is None else told.rate,
            stall=self.stall if stall is None else stall,
            retention=kept,
            record=self.record if told.record is None else told.record,
            quiet=self.quiet if told.quiet is None else told.quiet,
            stop=self.stop if told.stop is None else told.stop,
        )


class Query(Struct, frozen=True, kw_only=True):
    """Which jobs to list, newest first. `after` is the cursor of the page before; what is none is a ValueError.

    `merge`: only unfinished ones with this key (`merge_name`). `reasons`: why they failed. `tags`: all of these.
    `ended_after` (inclusive) and `ended_before` (exclusive): between which instants they came to their end.
    """

    queues: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    tasks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    ended_after: int | None = None
    ended_before: int | None = None
    id: str | None = None
    merge: str | None = None
    limit: int = 50
    after: str | None = None


class Page(Struct, frozen=True):
    """One page of records, and the cursor of the next (None: this was the last)."""

    jobs: tuple[JobRecord, ...] = ()
    next: str | None = None


class UnknownTask(Struct, frozen=True):
    """A task and a version of its payload that jobs of a queue are parked under until a worker knows both.

    `waited`: microseconds that the longest-waiting of these jobs has waited, as far as the first of them tell
    (`UNKNOWN_LOOKS`).
    """

    task: str
    version: int
    waited: int


class QueueSurvey(Struct, frozen=True, kw_only=True):
    """One queue at a glance. `oldest_waiting`: microseconds that its longest-waiting job has waited.

    `parked`: how many of the waiting have no slot to go to. `discarded`: how many ever expired without a record.
    `unknown`: what jobs are parked under until a worker knows it, at most `LOOK_LIMIT` of these, by task and version.
    """

    queue: str
    counts: dict[State, int] = {}
    oldest_waiting: int | None = None
    parked: int = 0
    discarded: int = 0
    unknown: tuple[UnknownTask, ...] = ()
    settings: Settings = Settings()

    @property
    def paused(self) -> bool:
        """Whether it gives out no jobs."""
        return bool(self.settings.paused)


class WorkerSurvey(Struct, frozen=True, kw_only=True):
    """One worker at a glance. `seen_ago` and `turned_ago` in microseconds; stale after three beats of either.

    `died`: its process is known to be dead. A worker that took no leave is shown for ten minutes after its last beat.
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
    """The whole storage at a glance; `now` is its clock, `swept_ago` the microseconds since a leader last swept.

    `task_rates`: what tasks are set in the place of their own rates, by their names.
    """

    queues: tuple[QueueSurvey, ...] = ()
    paused_tasks: tuple[str, ...] = ()
    task_rates: dict[str, RateKey] = {}
    workers: tuple[WorkerSurvey, ...] = ()
    leaders: tuple[Term, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    swept_ago: int | None = None
    now: int = 0


class EventReader(Struct, frozen=True):
    """A named reader of the event log, and the one process of it that asks.

    `begin`: the cursor where it begins if the storage does not know it yet; None: at the end.
    """

    name: str
    caller: str
    begin: str | None = None


class EventPage(Struct, frozen=True):
    """Events in order without a gap, and the cursor that follows them.

    `unanswered`: one of several servers was out of reach; what it has comes by this cursor when it is back.
    """

    events: tuple[AnyEvent, ...] = ()
    next: str = ""
    unanswered: bool = False


class Notifications(Protocol):
    """Hints that something changed, coalesced: each turn yields once, whatever happened in between."""

    def __aiter__(self) -> AsyncIterator[None]:
        """Return itself."""
        ...

    async def __anext__(self) -> None:
        """Wait for the next hint. Cancelling the wait loses nothing."""
        ...

    def close(self) -> None:
        """Listen no more."""
        ...


class Storage(Protocol):
    """Where jobs are remembered."""

    url: str
    """Its address, without secrets."""

    shared: bool
    """Whether other processes can see it."""

    apart: bool
    """Whether it works while its callers do, so that it pays to ask for more before it has answered."""

    async def open(self) -> None:
        """Make ready for use. Idempotent.

        Raises:
            SchemaMismatchError: what lies there is not ours, or of another version; it is left untouched.
        """
        ...

    async def close(self) -> None:
        """Let go of everything held open. Idempotent; nothing acknowledged is lost."""
        ...

    async def examine(self, *, deep: bool = True) -> list[Finding]:
        """Look for whatever endangers the promise, each finding with its remedy.

        `deep`: also what takes the longer the more is kept, such as an audit of all counters. Without it every
        storage answers within seconds, however much lies in it.
        """
        ...

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Remember each new job once; all of this call's jobs for one queue, or none of them.

        Guard: the (queue, id) is unknown, or its result's lifetime is over, and its unique key is free; otherwise the
        receipt is `duplicate` and names the job that is there. An id that a job has taken in is known, too: with a
        debounce or collect key a call comes to the job that holds the key, as long as that has not started. A key that
        is throttled lets no more jobs be made than its window allows. The limit that comes with a key holds for the
        key from now on.

        Raises:
            StorageFullError: no room; nothing was written.
        """
        ...

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """Apply each settlement if its run still is the current one, then claim what is ordered: one step, one trip.

        Guard of a settlement: active, and fence and owner match, be the lease out or not. A put-back of a job that
        was asked to stop ends it as cancelled. Guard of a claim: due, not expired, its queue and task not paused, all
        its keys have room, all its rates and its queue's allow. A claim raises the fence, counts a start, takes the
        time of its rates and opens a run. What it meets on its way is moved out of the way: too old, it expires;
        without a slot or before its rate allows, it is parked under the first key that is full, else the first rate
        that is not open. Whoever leaves a slot lets the best one parked there back in line; so does time, under a rate.
        A run that is put back `until_known` costs its rates nothing: the job keeps its score and is parked under its
        task and version. A claim takes jobs that are parked so, if the caller knows both, in the order of their scores
        with the others; it looks at up to `PLACE_LIMIT` of these names. A job that has started before and that the
        caller does not know is parked in the same way.
        Where a queue has more completed jobs than `Keep.most`, a call that completes some also forgets a bounded
        number of the longest completed (`Keep.forgotten_at_once`). At most 256 settlements and 128 jobs a call.

        An order with a lane claims nothing if its number, or a later one of this owner and lane, was seen before. Runs
        that earlier calls of the lane gave out, and that its `answered` does not cover, are handed back first:
        uncharged, unbegun, with the job's score kept. A storage forgets a lane ten minutes after it last heard of it.
        """
        ...

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """Remember that an owner lives, and extend every lease it names that nobody has taken, out or not.

        Guard: fence and owner match. Never past the run's limit or its progress clock, unless the renewal says that
        the run is exclusive; a suspicion ends only where the new end lies ahead. A renewal of a run that is no longer
        the owner's is refused and recorded (`RunFenced`). The beat's events are recorded as they are. A log line or an
        event that came before, by its number, is left out. At most 500 renewals a call. Its lanes hand back what an
        order's lane does; what a call gave out that is still under way stays. A partition that has lost its identity
        gets it back from what the owner saw, if only that is missing, and another one if all is lost.
        """
        ...

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """Elect or renew the bidder (unless it asks for no term), then do one bounded turn of the chores.

        In this order: reclaim what died or whose grace is over, make suspects of leases that have run out, expire what
        is too old to start, promote what fell due, let back in line what has room, redrive by rule, trim. Each step is
        guarded by the record's own state, so two leaders do no harm. One chore that fails keeps none of the others from
        being done.
        """
        ...

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """Take every active job of an owner known to be dead, without grace; up to 200 a call.

        Whoever calls in the name of an owner that it uses for nothing else can reclaim from that one, in another name,
        what it was given by a call whose answer was lost.
        """
        ...

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """Cancel, redrive, delete, reschedule or retain jobs that are not active; ask an active one to stop.

        Who is asked to stop is hinted at once: by the owner's topic.
        """
        ...

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Change schedules, and move one on by a tick if and only if its last tick is the expected one.

        A tick's job is enqueued in the same step, unless its schedule's overlap forbids: an unfinished job of an
        earlier tick with `skip`, one that has yet to start with `queue_one`. What became of a tick is recorded. At most
        100 changes a call.
        """
        ...

    async def tune(self, target: Target, settings: Settings, *, by: str | None = None) -> Settings:
        """Set what every worker must know; return the settings in force. Idempotent; an unset field stays.

        An order for a worker is hinted at once: by its topic.
        """
        ...

    async def resign(self, term: Term) -> None:
        """Give up that term and no other."""
        ...

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """Return each job with its runs and log; None is unknown, never pending.

        A completed job whose own result lifetime is over is unknown, swept or not.
        """
        ...

    async def find(self, query: Query) -> Page:
        """Return one page of records, newest first."""
        ...

    async def survey(self, queues: Sequence[str] = ()) -> Survey:
        """Return counts and workers at a glance, from counters, also with zero workers."""
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

        With a `ref`: only what happened to that job.

        With a reader's name the storage keeps the cursor: the call says how far its last batch was handled, and the
        next batch is lent to this caller alone for five seconds (asking again renews the loan). Empty while it is on
        loan to another caller; how far that was handled counts all the same.
        A reader that comes with a cursor and that the storage does not know was lost with the log that the cursor was
        of: it starts at the oldest event.
        A cursor of None starts at the kept cursor (a new reader's is `Reader.begin`), or without a reader at the oldest
        event; `EVENTS_END` starts behind the newest. Without a reader, one of `cursors.recorded_within` starts behind
        the last event that is older than this. What is no cursor is a ValueError.
        """
        ...

    def notices(self, topics: Iterable[str]) -> Notifications:
        """Listen for hints on these topics; hints may be lost, merged or late, and promise nothing."""
        ...


def queue_topic(queue: str) -> str:
    """Return the topic that hints at work in a queue."""
    return f"queue:{queue}"


def job_topic(ref: Ref) -> str:
    """Return the topic that hints at a change of a job; names hold no NUL, so it names one job only."""
    return f"job:{ref.queue}\0{ref.id}"


def owner_topic(owner: str) -> str:
    """Return the topic that hints at something an owner should ask for at once."""
    return f"owner:{owner}"


def knows(tasks: Mapping[str, int] | None, task: str, version: int) -> bool:
    """Return True if a caller that knows these tasks knows one in this version of its payload."""
    return tasks is None or tasks.get(task, 0) >= version


def unknown_place(task: str, version: int) -> str:
    """Return the name of the key under which jobs are parked until a worker knows their task and version."""
    return f"{UNKNOWN}{task}:{version}"


def task_of_place(name: str) -> tuple[str, int]:
    """Return the task and the version that jobs are parked under by this name."""
    task, _, version = name.removeprefix(UNKNOWN).rpartition(":")
    return task, int(version)


UNKNOWN = "unknown:"
"""What the name of the key begins with under which jobs are parked that no claiming worker has known so far."""

UNKNOWN_LOOKS = 100
"""How many jobs of an unknown task a survey looks at for the longest-waiting one."""

PLACE_LIMIT = 250
"""How many names of unknown tasks a claim looks at, in all of its queues.

If a queue has more of them and the caller knows more tasks, each claim looks at another part of the names.
"""

PAUSED = "paused:"
"""What the name of the key begins with under which the jobs of a paused task are parked."""

RATE = "rate:"
"""What the name of the key begins with under which jobs are parked until their rate allows them to start."""

QUEUE_RATE = "queue"
"""The name of the rate that a queue is set."""

TASK_RATE = "task:"
"""What the name of a task's rate begins with, be it set or brought along by its jobs."""

EVENTS_END = "$"
"""The cursor that stands behind the newest event, whatever that is."""

EVENTS_TOPIC = "events"
"""The topic that hints at new events."""
