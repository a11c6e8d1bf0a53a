"""A Hypothesis state machine that makes the same calls to a storage and to the model, and compares all answers.

    from tenure_testing.conformance.state_machine import equals_the_model

    def test_the_storage_equals_the_model() -> None:
        equals_the_model(lambda clock: YourStorage(clock=clock))

Each example asks for a new, empty storage that reads the given clock. Every answer must equal the model's answer. After
every step, these must be equal too: all records with their runs and log lines, the survey, the listing, and the events
recorded since the last step. The machine keeps all leases, so that it can replay old fences and former owners. Only
cursors are not compared.

This module is the only one in the package that needs Hypothesis. `settings` control how long Hypothesis searches.
Hypothesis shrinks each failure that it finds.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar, get_args

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.events import AnyEvent, Event, EventsTrimmed, OnRequest, WorkerStarted
from tenure.core.figures import HOUR, FiguresDelta, FiguresQuery, TaskCounts, end_of
from tenure.core.fingerprint import fingerprint
from tenure.core.job import (
    CollectKey,
    DebounceKey,
    JobRecord,
    Key,
    MergeKey,
    NewJob,
    Owner,
    Policy,
    RateKey,
    RecordedError,
    Redriving,
    Ref,
    StallSetting,
    StallTerms,
    ThrottleKey,
    UniqueKey,
)
from tenure.core.lane import Lane
from tenure.core.leadership import Term
from tenure.core.lease import Lease
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    RateLimitHit,
    Rejected,
    Returned,
    Snoozed,
    Stalled,
    TimedOut,
    Unknown,
    Unreadable,
)
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.retry import Backoff
from tenure.core.schedule import Schedule
from tenure.core.settlement import Settlement, settlement
from tenure.storage.memory.model import Model
from tenure.storage.protocol import (
    EVENTS_END,
    ActsQuery,
    CancelJob,
    Change,
    ClaimRequest,
    DeleteJob,
    EventPage,
    EventReader,
    LeaseRenewal,
    NewLogLine,
    PauseSchedule,
    PutSchedule,
    Query,
    RedriveJob,
    RemoveSchedule,
    RenewRequest,
    RescheduleJob,
    RetainJob,
    Revision,
    Settings,
    Storage,
    SweepRequest,
    Target,
    Tick,
    WorkerInfo,
)
from tenure.testing.clock import ManualClock

try:
    from hypothesis import settings as HypothesisSettings
    from hypothesis import strategies as st
    from hypothesis.stateful import (
        Bundle,
        MultipleResults,
        RuleBasedStateMachine,
        consumes,
        initialize,
        invariant,
        multiple,
        rule,
        run_state_machine_as_test,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tenure_testing.conformance.state_machine needs Hypothesis: install it, as in pip install hypothesis",
        name=error.name,
    ) from error

T = TypeVar("T")

Make = Callable[[ManualClock], Storage]
"""Creates a new, empty storage that reads the given clock."""

QUEUES = ("a", "ü:/.")
TASKS = ("t", "u")
OWNERS = tuple(Owner(f"{number:016x}", f"w{number}", "h", number) for number in range(1, 4))
ERROR = RecordedError("ValueError", "no ☃", "trace")
DAY = 86_400 * SECOND

# ── strategies for the parts of calls ─────────────────────────────────────────────────────────────────────────────────

queues = st.sampled_from(QUEUES)
tasks = st.sampled_from(TASKS)
owners = st.sampled_from(OWNERS)
optional_durations = st.sampled_from((None, None, None, None, None, None, 30 * SECOND, 6 * SECOND, SECOND, 0))


@dataclass(frozen=True)
class Moment:
    """When a call is made: some seconds after the last call, or within a microsecond of an instant that is due."""

    seconds: float = 0.0
    due: int | None = None
    offset: int = 0


instants = st.builds(Moment, due=st.integers(0, 3), offset=st.sampled_from((0, 1, -1)))
moments = st.one_of(
    st.just(Moment()),
    st.just(Moment()),
    st.builds(Moment, st.sampled_from((0.000_001, 0.1, 1, 4))),
    st.builds(Moment, st.sampled_from((9, 25, 61, -0.000_001, -6, -40))),
    instants,
)
pauses = st.builds(Moment, st.sampled_from((4, 4, 25, 25, 61, -40, 8 * 86_400))) | instants
positions = st.integers(0, 15)
"""Selects a job. Four kinds alternate: active, over, in the queue, and not existing."""


keys = st.sampled_from(
    (
        (),
        (),
        (Key("k"),),
        (Key("k", 2),),
        (Key("k", 2),),
        (Key("k", 3), Key("l")),
        (Key("l"), Key("k")),
        (Key("singleton:t"),),
    )
)

waits = st.sampled_from((SECOND, 4 * SECOND, 0))
longest_waits = st.sampled_from((None, None, 0, 6 * SECOND))
names = st.sampled_from(("m", "m", "m", "n"))
merges: st.SearchStrategy[MergeKey | None] = st.one_of(
    st.none(),
    st.none(),
    st.builds(UniqueKey, names, st.sampled_from(("unfinished", "queued"))),
    st.builds(UniqueKey, names, window=st.sampled_from((1, 4 * SECOND, 25 * SECOND))),
    st.builds(DebounceKey, names, waits, longest_waits),
    st.builds(CollectKey, names, waits, st.sampled_from((2, 3, 1)), longest_waits),
)
throttles = st.none() | st.none() | st.builds(ThrottleKey, names, st.sampled_from((1, 2)), st.just(9 * SECOND))
rates = st.sampled_from(
    (
        (),
        (),
        (),
        (),
        (RateKey("r", SECOND),),
        (RateKey("r", SECOND, 2),),
        (RateKey("s", 4 * SECOND), RateKey("r", SECOND)),
        (RateKey("task:t", SECOND // 10, 3), RateKey("task/9:t", 9 * SECOND)),
    )
)

stalls = st.sampled_from(
    (
        StallTerms(),
        StallTerms(),
        StallTerms(lease=8 * SECOND, max_stalls=3, renewed=False),
        StallTerms(lease=4 * SECOND, max_stalls=0),
        StallTerms(start_grace=15 * SECOND, pinned=("start_grace", "lease")),
    )
)

policies = st.sampled_from(
    (
        Policy(),
        Policy(),
        Policy(retry=Backoff(max_attempts=9, kind="fixed", jitter=0.0), version=3),
        Policy(retry=Backoff(max_attempts=1), redrive=Redriving(after=2 * SECOND, times=1)),
        Policy(retry=Backoff(max_attempts=2, base=1), redrive=Redriving(after=SECOND)),
        Policy(retry=Backoff(max_attempts=1), on_worker_lost="fail", redrive=Redriving(after=SECOND)),
        Policy(on_expire="discard", result_ttl=5 * SECOND),
        Policy(result_ttl=0, on_expire="discard"),
    )
)

jobs = st.builds(
    NewJob,
    queue=queues,
    id=st.sampled_from(("", "", "", "", "j0", "j1", "j4")),
    task=tasks,
    payload=st.builds(bytes, st.sampled_from((2, 0, 9000))),
    headers=st.sampled_from(({}, {"k": "v ☃"})),
    tags=st.sampled_from(((), ("x", "y"), ("x",))),
    delay=st.sampled_from((0, 0, 0, 0, 1, SECOND, 20 * SECOND)),
    run_at=st.sampled_from((None, None, None, None, -SECOND, 0, 3 * SECOND)),
    priority=st.sampled_from((0, 0, 5, -3)),
    boost=st.sampled_from((0, 0, 300 * SECOND, -SECOND)),
    lifo=st.sampled_from((False, False, False, True)),
    fair_key=st.sampled_from((None, None, None, "one", "two")),
    weight=st.sampled_from((1, 1, 3)),
    ttl=optional_durations,
    timeout=optional_durations,
    deadline=st.sampled_from((None, None, None, SECOND, 60 * SECOND)),
    heartbeat_timeout=optional_durations,
    keys=keys,
    merge=merges,
    throttle=throttles,
    rates=rates,
    stall=stalls,
    policy=policies,
    schedule=st.sampled_from((None, "s")),
    parent=st.sampled_from((None, "p")),
)
"""New jobs. An empty id stands for the next new id. `run_at` and `deadline` are relative to now."""

outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Returned, st.builds(bytes, st.sampled_from((2, 2, 5000)))),
    st.sampled_from((Raised(ERROR), Raised(ERROR), Raised(ERROR, after=0), Raised(ERROR, final=True), TimedOut(ERROR))),
    st.sampled_from(
        (TimedOut(ERROR, final=True), Rejected(ERROR), Unreadable(ERROR), Cancelled(), Cancelled("why", "me"))
    ),
    st.sampled_from(
        (
            Interrupted("shutdown"),
            Interrupted("prefetch", SECOND),
            Snoozed(3 * SECOND),
            Snoozed(0),
            RateLimitHit(2 * SECOND),
        )
    ),
    st.sampled_from((Stalled("process_died", 12, "owner", "signal 9"), Stalled("lease_expired"), Unknown())),
    st.sampled_from((Stalled("no_progress"), Unknown("newer_payload"))),
    st.sampled_from((Interrupted("worker_failed", begun=True), Raised(ERROR, shortage=True))),
)

LANE_KEPT = 100 * SECOND
"""How long every storage remembers a lane."""

claim_requests = st.builds(
    ClaimRequest,
    st.sampled_from((QUEUES, ("a",), ("ü:/.", "a", "none"), ("a", "a", "ü:/."))),
    st.sampled_from((5, 1, 2, 128, 0)),
    tasks=st.sampled_from((None, None, {}, {"t": 1, "u": 3}, {"t": 3})),
)


@dataclass(frozen=True)
class CallNumbering:
    """How a call is numbered: its lane and its kind. The answer of a `lost` call is not acknowledged."""

    lane: int
    kind: str


numberings = st.none() | st.builds(CallNumbering, st.integers(0, 1), st.sampled_from(("answered", "lost", "again")))

log_lines = st.sampled_from(
    (
        (),
        (),
        (NewLogLine("info", "done", {"n": "1"}, ago=5),),
        (NewLogLine("warning", "☃", {}), NewLogLine("debug", "", {"a": "b"}, ago=2 * SECOND)),
    )
)


@dataclass(frozen=True)
class RenewalTemplate:
    """The content of one renewal, apart from the lease that it renews."""

    sign: bool
    extend: bool
    exclusive: bool
    ran: int | None
    silent: int | None
    progress: float | str | None
    data: bytes | None
    data_number: int
    note: str | None
    log: tuple[NewLogLine, ...]
    times: int
    """How often each log line is repeated. A log keeps a thousand lines."""

    trace: str | None

    def of(self, lease: Lease) -> LeaseRenewal:
        """Return the renewal of a lease."""
        return LeaseRenewal(
            lease.ref,
            lease.fence,
            sign=self.sign,
            extend=self.extend,
            exclusive=self.exclusive,
            ran=self.ran,
            silent=self.silent,
            progress=self.progress,
            data=self.data,
            data_number=self.data_number,
            note=self.note,
            log=self.log * self.times,
            trace=self.trace,
        )


renewal_templates = st.builds(
    RenewalTemplate,
    sign=st.booleans(),
    extend=st.sampled_from((True, True, True, False)),
    exclusive=st.sampled_from((False, False, True)),
    ran=optional_durations,
    silent=optional_durations,
    progress=st.sampled_from((None, 0.5, 1.0, '{"page":1}')),
    data=st.sampled_from((None, None, b"{}", b'{"at":"\xe2\x98\x83"}')),
    data_number=st.sampled_from((1, 2, 3)),
    note=st.sampled_from((None, "half")),
    log=log_lines,
    times=st.sampled_from((1, 1, 600)),
    trace=st.sampled_from((None, None, "here ☃", "there", "")),
)

infos = st.none() | st.builds(
    WorkerInfo,
    queues=st.sampled_from((QUEUES, ())),
    concurrency=st.just(10),
    active=st.sampled_from((0, 3)),
    turned_ago=st.sampled_from((0, SECOND)),
    stopping=st.booleans(),
    lag=st.sampled_from((0, SECOND // 10)),
    memory=st.sampled_from((0, 1 << 40)),
    quiet=st.booleans(),
    unstopped=st.sampled_from(((), (), (Ref("q", "j0"), Ref("r", "☃")))),
    why=st.sampled_from(("", "it has 3 free descriptors ☃")),
)

callers = st.sampled_from((None, "me"))
no_ref = st.just(Ref("", ""))
guards = st.sampled_from((None, None, None, 0, 1))
revisions: st.SearchStrategy[Revision] = st.one_of(
    st.builds(CancelJob, no_ref, st.sampled_from(("enough", "why", None)), callers, guards),
    st.builds(RedriveJob, no_ref, callers, st.sampled_from((0, 0, 1, 4 * SECOND)), guards),
    st.builds(DeleteJob, no_ref, callers, guards),
    st.builds(
        RescheduleJob,
        no_ref,
        delay=st.sampled_from((None, 0, 1, 5 * SECOND)),
        priority=st.sampled_from((None, 2)),
        boost=st.sampled_from((None, 9, -SECOND)),
        by=callers,
        ended=guards,
    ),
    st.builds(RetainJob, no_ref, st.sampled_from((0, SECOND, DAY)), guards),
)
"""Revisions without the job that they change. `ended` is relative to the end of the job."""

changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(
        PutSchedule,
        st.builds(
            Schedule,
            name=st.sampled_from(("s", "ü")),
            job=jobs,
            every=st.sampled_from((SECOND, 9 * SECOND)),
            missed=st.sampled_from(("latest", "skip", "all")),
            overlap=st.sampled_from(("skip", "queue_one", "allow")),
            next_tick=st.sampled_from((SECOND, 0, 9 * SECOND, None)),
        ),
    ),
    st.builds(
        Tick,
        name=st.sampled_from(("s", "s", "ü", "none")),
        expected=st.sampled_from((0, 0, 0, -1)),
        tick=st.sampled_from((0, -SECOND)),
        next_tick=st.sampled_from((SECOND, 9 * SECOND, None)),
        job=st.none() | jobs | jobs,
        missed=st.sampled_from((0, 0, 3)),
    ),
    st.builds(PauseSchedule, st.sampled_from(("s", "none")), st.booleans(), st.sampled_from((None, SECOND))),
    st.builds(RemoveSchedule, st.sampled_from(("ü", "none"))),
)
"""Changes of schedules. Instants are relative to now; the `expected` of a tick is relative to the last tick."""

on_request: tuple[OnRequest, ...] = get_args(OnRequest)
keeps = st.sampled_from((None, KeepRule(0), KeepRule(2 * SECOND), KeepRule(DAY, 0), KeepRule(DAY, 1), KeepRule(DAY, 2)))
queue_settings = st.one_of(
    st.builds(Settings, paused=st.sampled_from((False, True, False))),
    st.builds(
        Settings,
        stall=st.builds(
            StallSetting,
            lease=st.sampled_from((None, 5 * SECOND)),
            max_stalls=st.sampled_from((None, 0, 3)),
            start_grace=st.sampled_from((None, 0, 10 * SECOND)),
            renewed=st.sampled_from((None, False)),
        ),
    ),
    st.builds(Settings, rate=st.sampled_from((RateKey("queue", SECOND), RateKey("queue", 4, 2), RateKey("queue", 0)))),
    st.builds(
        Settings, retention=st.builds(RetentionRules, completed=keeps, failed=keeps, cancelled=keeps, expired=keeps)
    ),
    st.builds(Settings, record=st.sampled_from((on_request, ("started", "queue_drained"), ()))),
)
tunings = st.one_of(
    st.tuples(st.builds(Target, st.just("queue"), queues), queue_settings),
    st.tuples(st.builds(Target, st.just("task"), tasks), st.builds(Settings, paused=st.booleans())),
    st.tuples(
        st.just(Target("task", "t")),
        st.builds(Settings, rate=st.sampled_from((RateKey("task:t", SECOND), RateKey("task:t", 0)))),
    ),
    st.tuples(
        st.builds(Target, st.just("worker"), st.sampled_from([owner.id for owner in OWNERS])),
        st.builds(Settings, quiet=st.sampled_from((None, True, False)), stop=st.sampled_from((None, True))),
    ),
)

acts = st.tuples(
    st.builds(
        OperatorAct,
        id=st.sampled_from(("1", "2", "3", "4")),
        actor=st.just("ann"),
        role=st.just("admin"),
        via=st.just("api"),
        action=st.just("jobs.cancel"),
        target=st.sampled_from(("a/1", "a/2")),
        count=st.sampled_from((None, 2)),
        verdict=st.sampled_from((None, "done", "gone")),
    ),
    st.sampled_from((ACTS_KEPT, KeepRule(ACTS_KEPT.age, 2), KeepRule(SECOND))),
)

queries = st.builds(
    Query,
    queues=st.sampled_from(((), ("a",), QUEUES, ("none",))),
    states=st.sampled_from(
        ((), (State.WAITING,), (State.FAILED, State.COMPLETED, State.ACTIVE), (State.EXPIRED, State.CANCELLED))
    ),
    tasks=st.sampled_from(((), ("u",), ("t", "u"))),
    reasons=st.sampled_from(((), ("exhausted", "why"), ("stalled",))),
    tags=st.sampled_from(((), ("x",), ("x", "y"))),
    owner=st.sampled_from((None, None, OWNERS[0].id)),
    key=st.sampled_from((None, None, "k")),
    schedule=st.sampled_from((None, None, "s")),
    fault=st.sampled_from((None, None, *(fingerprint(task, "exhausted", ERROR) for task in TASKS))),
    created_after=st.none() | st.sampled_from((-10 * SECOND, 0)),
    created_before=st.none() | st.sampled_from((-SECOND, 1)),
    ended_after=st.none() | st.sampled_from((-10 * SECOND, 0)),
    ended_before=st.none() | st.sampled_from((-SECOND, 1)),
    id=st.sampled_from((None, None, "j3")),
    merge=st.sampled_from((None, None, None, "unique:m", "debounce:m", "collect:m")),
    limit=st.sampled_from((1, 2, 50)),
    looks=st.sampled_from((None, None, 1, 3)),
)
"""Listing queries. Their instants are relative to now."""


class StorageMachine(RuleBasedStateMachine):
    """Compares a storage with the model. The bundle `unsettled` holds leases to settle, the bundle `all_leases` holds
    all leases, most of them stale.

    Call `equals_the_model`, or derive from this class if your storage has more to test.
    """

    unsettled: Bundle[Lease] = Bundle("unsettled")
    all_leases: Bundle[Lease] = Bundle("all_leases")

    def __init__(self, make: Make) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.model = Model(self.clock)
        self.rng = Random(7)
        self.refs: list[Ref] = []
        self.leases: list[Lease] = []
        self.terms: list[Term] = []
        self.lanes: dict[tuple[str, int], tuple[Lane, int]] = {}
        """The latest call of each owner and lane, and when it was made."""

        self.ends: set[int] = set()
        """When terms and windows end, and when schedules tick."""

        self.cursors: list[tuple[str, str]] = []
        """Positions in the event log, each as a pair: the model's cursor and the storage's cursor."""

        self._loop = asyncio.new_event_loop()
        self.storage = make(self.clock)
        self._run(self.storage.open())
        self._keep_cursor(self.model.events(None, 1), self._run(self.storage.events(limit=1)))

    def teardown(self) -> None:
        """Check that the storage is consistent, and close it."""
        try:
            findings = self._run(self.storage.examine())
            assert not [finding for finding in findings if finding.level == "error"]
        finally:
            self._run(self.storage.close())
            self._run(self._loop.shutdown_default_executor())
            self._loop.close()

    # ── enqueue, claim, settle, renew, sweep ──────────────────────────────────────────────────────────────────────

    @initialize(
        targets=(unsettled, all_leases),
        new_jobs=st.lists(jobs, min_size=4, max_size=8),
        by=owners,
        request=claim_requests,
        ends=st.lists(outcomes, max_size=4),
    )
    def begin(
        self, new_jobs: Sequence[NewJob], by: Owner, request: ClaimRequest, ends: Sequence[Outcome]
    ) -> MultipleResults[Lease]:
        """Begin with jobs, some of them claimed and some of those settled, so that each example has them."""
        self._enqueue(new_jobs)
        self._exchange(by, [], request)
        settled = list(zip(self.leases, ends, strict=False))
        self._exchange(by, settled, request)
        return multiple(*self.leases)

    @rule(when=moments, new_jobs=st.lists(jobs, min_size=1, max_size=4))
    def enqueue(self, when: Moment, new_jobs: Sequence[NewJob]) -> None:
        """Enqueue jobs, perhaps some that exist already."""
        self._wait(when)
        self._enqueue(new_jobs)

    @rule(targets=(unsettled, all_leases), when=moments, by=owners, request=claim_requests, how=numberings)
    def claim(
        self, when: Moment, by: Owner, request: ClaimRequest, how: CallNumbering | None
    ) -> MultipleResults[Lease]:
        """Claim jobs without settling any."""
        self._wait(when)
        return self._exchange(by, [], self._numbered(by, request, how))

    @rule(
        targets=(unsettled, all_leases),
        when=moments,
        lease=consumes(unsettled),
        outcome=outcomes,
        others=st.lists(st.tuples(all_leases, outcomes), max_size=3),
        request=st.none() | claim_requests,
        how=numberings,
    )
    def settle(
        self,
        when: Moment,
        lease: Lease,
        outcome: Outcome,
        others: Sequence[tuple[Lease, Outcome]],
        request: ClaimRequest | None,
        how: CallNumbering | None,
    ) -> MultipleResults[Lease]:
        """Settle a lease as its owner, together with leases of any owner, and perhaps claim in the same call."""
        self._wait(when)
        by = _owner(lease)
        return self._exchange(by, [(lease, outcome), *others], request and self._numbered(by, request, how))

    @rule(
        targets=(unsettled, all_leases),
        lease=all_leases,
        outcome=outcomes,
        by=st.none() | owners,
        twice=st.booleans(),
        request=st.none() | claim_requests,
    )
    def replay(
        self, lease: Lease, outcome: Outcome, by: Owner | None, twice: bool, request: ClaimRequest | None
    ) -> MultipleResults[Lease]:
        """Settle a lease that was settled, reclaimed, redriven or deleted before, as its former or as another owner."""
        return self._exchange(by or _owner(lease), [(lease, outcome)] * (1 + twice), request)

    @rule(
        targets=(unsettled, all_leases),
        when=moments,
        late=st.none() | st.builds(Moment, st.sampled_from((25, 25, 9, 61))),
        holder=positions,
        template=st.none() | renewal_templates | renewal_templates,
        others=st.lists(st.tuples(positions, renewal_templates), max_size=3),
        info=infos,
        announced=st.booleans(),
        last=st.sampled_from((False, False, False, True)),
        over=st.booleans(),
    )
    def renew(
        self,
        when: Moment,
        late: Moment | None,
        holder: int,
        template: RenewalTemplate | None,
        others: Sequence[tuple[int, RenewalTemplate]],
        info: WorkerInfo | None,
        announced: bool,
        last: bool,
        over: bool,
    ) -> MultipleResults[Lease]:
        """Renew all leases of an owner, and some old leases of this or another owner.

        `late`: a sweep runs first, so that the renewed job may be a suspect. `over`: the owner's numbered calls are
        over.
        """
        leases: Sequence[Lease] = ()
        if late is not None:
            self._wait(late)
            leases = self._sweep(SweepRequest(OWNERS[0], None))
        self._wait(when)
        active = [job for job in self.model.records.values() if job.state is State.ACTIVE]
        by = _owner(Lease(active[holder % len(active)])) if active else OWNERS[holder % len(OWNERS)]
        renewals = [template.of(Lease(job)) for job in active if template is not None and job.owner == by.id]
        renewals += [sign.of(self.leases[-1 - position]) for position, sign in others if position < len(self.leases)]
        events: tuple[Event | FiguresDelta, ...] = ()
        if announced:
            delta = FiguresDelta((TaskCounts("a", "t", end_of("failed")), TaskCounts("b", "u", end_of("completed"))))
            events = (WorkerStarted(owner=by.id, host=by.host, pid=by.pid, queues=QUEUES, concurrency=3), delta)
        beat = RenewRequest(by, tuple(renewals), info, events, last=last, lanes=self._over(by) if over else ())
        self._check_equal(self.model.renew(beat), self.storage.renew(beat))
        return self._add_leases(leases)

    @rule(
        targets=(unsettled, all_leases),
        first=moments,
        by=owners,
        term=st.sampled_from((None, None, 4 * SECOND, SECOND)),
        grace=st.sampled_from((3 * SECOND, 3 * SECOND, 0)),
        then=st.lists(pauses, max_size=3),
        dead=st.none() | st.none() | owners,
        resigns=st.sampled_from((None, None, 0, 1, 2)),
    )
    def sweep(
        self,
        first: Moment,
        by: Owner,
        term: int | None,
        grace: int,
        then: Sequence[Moment],
        dead: Owner | None,
        resigns: int | None,
    ) -> MultipleResults[Lease]:
        """Sweep, with or without election, perhaps several times, and reclaim the leases of a dead owner.

        The reclaimed leases are to be settled. The sweeper may resign, even from a term that ended long ago.
        """
        leases: list[Lease] = []
        for when in (first, *then):
            self._wait(when)
            leases += self._sweep(SweepRequest(by, term, grace=grace))
        if dead is not None:
            taken = self._check_equal(self.model.reclaim(dead.id, by), self.storage.reclaim(dead.id, by))
            leases += [stalled.lease for stalled in taken.stalled]
        if resigns is not None and resigns < len(self.terms):
            given_up = self.terms[-1 - resigns]
            self.model.resign(given_up)
            self._run(self.storage.resign(given_up))
        return self._add_leases(leases)

    # ── operator commands ─────────────────────────────────────────────────────────────────────────────────────────

    @rule(when=moments, requested=st.lists(st.tuples(positions, revisions), min_size=1, max_size=4))
    def revise(self, when: Moment, requested: Sequence[tuple[int, Revision]]) -> None:
        """Cancel, redrive, delete, reschedule or retain jobs in any state."""
        self._wait(when)
        changes = [self._complete_revision(revision, self._ref(position)) for position, revision in requested]
        self._check_equal(self.model.revise(changes), self.storage.revise(changes))

    @rule(when=moments, requested=st.lists(changes, min_size=1, max_size=3))
    def plan(self, when: Moment, requested: Sequence[Change]) -> None:
        """Put, pause, tick and remove schedules."""
        self._wait(when)
        completed = [self._complete_change(change) for change in requested]
        self._check_equal(self.model.plan(completed), self.storage.plan(completed))

    @rule(
        tunings=st.lists(tunings, min_size=1, max_size=2),
        by=callers,
        expected=st.sampled_from((None, None, "read", "others")),
        written=st.lists(acts, max_size=3),
    )
    def tune(
        self,
        tunings: Sequence[tuple[Target, Settings]],
        by: str | None,
        expected: str | None,
        written: Sequence[tuple[OperatorAct, KeepRule]],
    ) -> None:
        """Set pauses, stall terms, retention and recorded events, also if none has changed. Record operators' acts."""
        for target, settings in tunings:
            read = self.model.tune(target, Settings())
            seen = None if expected is None else read if expected == "read" else Settings(paused=not read.paused)
            self._check_equal(
                self.model.tune(target, settings, by, seen),
                self.storage.tune(target, settings, by=by, expected=seen),
            )
        for act, keep in written:
            self._check_equal(self.model.record_act(act, keep), self.storage.record_act(act, keep=keep))
            query = ActsQuery(target=act.target)
            self._check_equal(self.model.acts(query).acts, self._acts(query))

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        query=queries,
        names=st.sampled_from((("a",), ("none", "a"), QUEUES)),
        back=st.none() | st.integers(0, 20),
        limit=st.sampled_from((1, 3, 1000)),
        of=st.none() | positions,
        reader=st.builds(EventReader, st.sampled_from(("r", "s")), st.sampled_from(("p", "q"))),
        handled=st.sampled_from((None, 0, 1, 9, EVENTS_END)),
    )
    def look(
        self,
        query: Query,
        names: tuple[str, ...],
        back: int | None,
        limit: int,
        of: int | None,
        reader: EventReader,
        handled: int | str | None,
    ) -> None:
        """Survey queues by name, read all pages of a listing, and read events with and without a named reader."""
        self._check_equal(self.model.survey(names), self.storage.survey(names))
        self._check_listing(query)
        expected, actual = (None, None) if back is None else self.cursors[-1 - back % len(self.cursors)]
        ref = None if of is None else self._ref(of)
        self._check_page(
            self.model.events(expected, limit, None, ref), self._run(self.storage.events(actual, limit=limit, ref=ref))
        )
        match handled:
            case None:
                expected, actual = None, None
            case int():
                expected, actual = self.cursors[-1 - handled % len(self.cursors)]
            case str():
                expected, actual = handled, handled
        self._check_page(
            self.model.events(expected, limit, reader),
            self._run(self.storage.events(actual, limit=limit, reader=reader)),
        )

    # ── checks after every step ───────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def every_record_run_and_log_line_is_the_same(self) -> None:
        """The storage has the model's records, runs and log lines."""
        refs = [*self.refs, Ref("none", "j0")]
        self._check_equal(self.model.get(refs), self.storage.get(refs))

    @invariant()
    def the_survey_is_the_same(self) -> None:
        """The storage has the model's counters and figures."""
        now = self.clock.now()
        figures = FiguresQuery(since=now - 2 * HOUR, until=now + 1)
        self._check_equal(self.model.survey((), 3, figures), self.storage.survey(faults=3, figures=figures))

    @invariant()
    def the_listing_is_the_same(self) -> None:
        """The storage lists the same jobs in the same order."""
        whole = Query(limit=1000)
        expected, actual = self.model.find(whole), self._run(self.storage.find(whole))
        assert (actual.jobs, actual.next) == (expected.jobs, None)

    @invariant()
    def the_events_are_the_same(self) -> None:
        """The storage has recorded the same events as the model since the last step."""
        expected, actual = self.cursors[-1]
        self._check_page(self.model.events(expected, 1000), self._run(self.storage.events(actual, limit=1000)))

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    def _check_equal(self, expected: T, call: Coroutine[Any, Any, T]) -> T:
        self.model.notified.clear()
        answer = self._run(call)
        assert answer == expected
        return expected

    def _check_listing(self, query: Query) -> None:
        now = self.clock.now()
        query = structs.replace(
            query,
            created_after=None if query.created_after is None else now + query.created_after,
            created_before=None if query.created_before is None else now + query.created_before,
            ended_after=None if query.ended_after is None else now + query.ended_after,
            ended_before=None if query.ended_before is None else now + query.ended_before,
        )
        if query.looks is not None:
            # How far a page looks is up to the storage. All pages together are the same.
            assert self._joined(query) == list(self.model.find(structs.replace(query, looks=None, limit=1_000)).jobs)
            return
        expected, actual = self.model.find(query), self._run(self.storage.find(query))
        assert actual.jobs == expected.jobs
        while expected.next is not None:
            assert actual.next is not None
            expected = self.model.find(structs.replace(query, after=expected.next))
            actual = self._run(self.storage.find(structs.replace(query, after=actual.next)))
            assert actual.jobs == expected.jobs
        assert actual.next is None

    def _joined(self, query: Query) -> list[JobRecord]:
        page = self._run(self.storage.find(query))
        jobs = [*page.jobs]
        while page.next is not None:
            page = self._run(self.storage.find(structs.replace(query, after=page.next)))
            assert len(page.jobs) <= query.limit
            jobs += page.jobs
        return jobs

    async def _acts(self, query: ActsQuery) -> tuple[OperatorAct, ...]:
        return (await self.storage.acts(query)).acts

    def _wait(self, when: Moment) -> None:
        if when.due is None:
            self.clock.step_wall(when.seconds)
            return
        now = self.clock.now()
        due = {instant for job in self.model.records.values() for instant in _instants(job)} | self.ends
        ahead = sorted(instant for instant in due if instant > now)
        if ahead:
            self.clock.step_wall((ahead[when.due % len(ahead)] + when.offset - now) / SECOND)

    def _ref(self, position: int) -> Ref:
        there = list(self.model.records.values())
        over = [job.ref for job in there if job.state in TERMINAL]
        active = [job.ref for job in there if job.state is State.ACTIVE]
        queued = [job.ref for job in there if job.state in (State.WAITING, State.DELAYED)]
        gone = [ref for ref in self.refs if ref not in self.model.records] or [Ref("none", "j0")]
        kind = (active, over, queued, gone)[position % 4] or gone
        return kind[position // 4 % len(kind)]

    def _complete_revision(self, revision: Revision, ref: Ref) -> Revision:
        job = self.model.records.get(ref)
        if revision.ended is not None:
            ended = (0 if job is None else job.finished or 0) + revision.ended
            return structs.replace(revision, ref=ref, ended=ended)
        return structs.replace(revision, ref=ref)

    def _enqueue(self, new_jobs: Sequence[NewJob]) -> None:
        completed = [self._complete_job(job) for job in new_jobs]
        self._check_equal(self.model.enqueue(completed), self.storage.enqueue(completed))

    def _complete_job(self, job: NewJob) -> NewJob:
        now = self.clock.now()
        completed = structs.replace(
            job,
            id=job.id or f"j{len(self.refs)}",
            run_at=None if job.run_at is None else now + job.run_at,
            deadline=None if job.deadline is None else now + job.deadline,
        )
        if completed.ref not in self.refs:
            self.refs.append(completed.ref)
        if isinstance(completed.merge, UniqueKey) and completed.merge.window is not None:
            self.ends.add(now + completed.merge.window)
        if completed.throttle is not None:
            self.ends.add(now + completed.throttle.window)
        return completed

    def _complete_change(self, change: Change) -> Change:
        now = self.clock.now()
        known = {schedule.name: schedule for schedule in self.model.survey().schedules}
        last = known[change.name].last_tick if change.name in known else 0
        match change:
            case PutSchedule(schedule):
                self._tick_at(schedule.next_tick)
                completed = structs.replace(
                    schedule,
                    job=structs.replace(self._complete_job(schedule.job), id=""),
                    created=now,
                    last_tick=now,
                    next_tick=None if schedule.next_tick is None else now + schedule.next_tick,
                )
                return PutSchedule(completed)
            case Tick(job=job, next_tick=next_tick):
                self._tick_at(next_tick)
                return structs.replace(
                    change,
                    expected=last + change.expected,
                    tick=now + change.tick,
                    next_tick=None if next_tick is None else now + next_tick,
                    job=None
                    if job is None
                    else structs.replace(self._complete_job(job), schedule=change.name, tick=now),
                )
            case PauseSchedule(next_tick=int() as next_tick):
                self._tick_at(next_tick)
                return structs.replace(change, next_tick=now + next_tick)
            case _:
                return change

    def _tick_at(self, after: int | None) -> None:
        if after is not None:
            self.ends.add(self.clock.now() + after)

    def _exchange(
        self, by: Owner, settled: Sequence[tuple[Lease, Outcome]], request: ClaimRequest | None
    ) -> MultipleResults[Lease]:
        settlements: list[Settlement] = [settlement(lease, outcome, self.rng, took=0.5) for lease, outcome in settled]
        answer = self._check_equal(
            self.model.exchange(by, settlements, request), self.storage.exchange(by, settlements, request)
        )
        return self._add_leases(answer.leases)

    def _numbered(self, by: Owner, request: ClaimRequest, how: CallNumbering | None) -> ClaimRequest:
        """Return a claim request with the next number of its lane, or with the last number again."""
        if how is None:
            return request
        known = self.lanes.get((by.id, how.lane))
        if known is None or self.clock.now() - known[1] > LANE_KEPT:
            # From here on some storages have forgotten the lane, and others have not.
            number = 1 if known is None else known[0].number + 1
            lane = Lane(how.lane, number, number - 1)
        elif how.kind == "again":
            lane = known[0]
        else:
            last = known[0]
            lane = Lane(how.lane, last.number + 1, last.number if how.kind == "answered" else last.answered)
        self.lanes[by.id, how.lane] = lane, self.clock.now()
        return structs.replace(request, lane=lane)

    def _over(self, by: Owner) -> tuple[Lane, ...]:
        """Return an owner's lanes as a renewal reports them after their last calls were lost: as unanswered."""
        return tuple(
            Lane(lane.id, lane.number + 1, lane.answered)
            for (owner, _), (lane, at) in self.lanes.items()
            if owner == by.id and self.clock.now() - at <= LANE_KEPT
        )

    def _sweep(self, bid: SweepRequest) -> list[Lease]:
        swept = self._check_equal(self.model.sweep(bid), self.storage.sweep(bid))
        self.terms += swept.terms
        self.ends |= {self.clock.now() + term.length for term in swept.terms}
        return [stalled.lease for stalled in swept.stalled]

    def _add_leases(self, leases: Sequence[Lease]) -> MultipleResults[Lease]:
        self.leases += leases
        return multiple(*leases)

    def _check_page(self, expected: EventPage, actual: EventPage) -> None:
        assert [_bare(event) for event in actual.events] == [_bare(event) for event in expected.events]
        self._keep_cursor(expected, actual)

    def _keep_cursor(self, expected: EventPage, actual: EventPage) -> None:
        if not self.cursors or int(self.cursors[-1][0]) < int(expected.next):
            self.cursors.append((expected.next, actual.next))


def equals_the_model(make: Make, settings: HypothesisSettings | None = None) -> None:
    """Check that the storages that `make` creates equal the model. The settings say how long Hypothesis searches."""

    def machine() -> StorageMachine:
        return StorageMachine(make)

    run_state_machine_as_test(machine, settings=settings)  # type: ignore[arg-type]


def _owner(lease: Lease) -> Owner:
    return next(owner for owner in OWNERS if owner.id == lease.job.owner)


def _bare(event: AnyEvent) -> AnyEvent:
    if isinstance(event, EventsTrimmed):
        return EventsTrimmed(oldest="")
    return structs.replace(event, cursor="")


def _instants(job: JobRecord) -> Iterator[int]:
    """Yield every instant at which a job changes by time alone."""
    match job.state:
        case State.ACTIVE:
            found = (job.suspect_until or job.lease_until, job.progress_until)
        case State.DELAYED:
            found = (job.run_at, job.expires_at)
        case State.WAITING:
            found = (job.expires_at, None)
        case _:
            found = (job.redrive_at or job.kept_until, (job.finished or 0) + 2 * SECOND)
    yield from (instant for instant in found if instant is not None)
