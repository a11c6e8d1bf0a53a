"""What workers and sweepers ask of a storage, and what it answers, verb by verb."""

from typing import Literal

from msgspec import Struct

from tenure.core.deduplication import EnqueueAction
from tenure.core.events import Event
from tenure.core.figures import FiguresDelta
from tenure.core.job import Owner, Ref, StallReason
from tenure.core.lane import Lane
from tenure.core.leadership import Term
from tenure.core.lease import Lease
from tenure.core.partition import PartitionState
from tenure.core.reconcile import StaleWait
from tenure.core.schedule import Schedule
from tenure.core.steps import NewStep
from tenure.storage.waiting import OutboxEntry

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

SettleVerdict = Literal["done", "duplicate", "lost", "gone"]


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
    `steps`: records of steps that the run has carried out. Of two records of one name the first stays.
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
    steps: tuple[NewStep, ...] = ()


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
    `stale`: jobs that have waited for `RECONCILE_AFTER` without a token. The caller asks for the ends that they miss.
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
    stale: tuple[StaleWait, ...] = ()


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
