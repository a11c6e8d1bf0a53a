"""The network of a simulated world: a node's view of the storage, and all faults of messages.

    node ──request──► (lost, late, doubled, cut off) ──► the storage, unless it stands still
     ▲                                                              │
     └──────────── (lost, late, cut off) ◄────────── answer ────────┘

A caller that gives up does not cancel its request. A request that is on its way arrives anyway.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, cast

from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.figures import FiguresQuery
from tenure.core.job import JobDetail, NewJob, Owner, Ref
from tenure.core.lane import Lane
from tenure.core.leadership import Term
from tenure.core.published import PublishedTask
from tenure.core.retention import KeepRule
from tenure.core.settlement import Settlement
from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import (
    ActsPage,
    ActsQuery,
    Change,
    ClaimRequest,
    EnqueueResult,
    EventPage,
    EventReader,
    ExchangeResult,
    Finding,
    Notifications,
    Page,
    Query,
    ReclaimResult,
    RenewRequest,
    RenewResult,
    Revision,
    RevisionResult,
    ScheduleResult,
    Settings,
    Survey,
    SweepRequest,
    SweepResult,
    Target,
    Tick,
)
from tenure_testing.simulation.event_loop import Node, SimLoop

T = TypeVar("T")

Cut = Literal["both", "requests", "answers"]

USUAL_DELAY = 0.004
"""The longest time in seconds that a request or an answer travels in a world with a fast storage."""

LONGEST_DELAY = 8.0
LONGEST_PATIENCE = 10.0
"""The longest time in seconds until a caller learns that a request or an answer was lost."""

LONGEST_ECHO = 40.0


@dataclass(frozen=True)
class Rates:
    """How often each fault meets a message, as a share of all messages.

    `echo`: a request arrives later, a second time or for the first time, sometimes in another owner's name. `delay`:
    the longest travel time in seconds without faults. `patience`: the longest time in seconds until a caller learns
    that a request or an answer was lost.
    """

    lost_request: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    echo: float = 0.0
    lost_notice: float = 0.0
    delay: float = USUAL_DELAY
    patience: float = LONGEST_PATIENCE

    @property
    def sound(self) -> bool:
        """True if messages have only their usual delay. Lost notices do no harm."""
        return not (self.lost_request or self.lost_answer or self.late or self.echo)

    @property
    def excuses(self) -> bool:
        """True if a holder may lose its lease because it learns too late that messages were lost."""
        return not self.sound and (bool(self.late) or self.patience > 1.0)


class NodeWatcher(Protocol):
    """Sees every step of the storage."""

    def watched(self, verb: str, args: tuple[Any, ...], step: Callable[[], T], *, sent_ago: float = 0.0) -> T:
        """Run the step and check its effects. `sent_ago`: the seconds since its caller sent the request."""
        ...


@dataclass
class Request(Generic[T]):
    """One call on its way."""

    net: "SimNet"
    verb: str
    args: tuple[Any, ...]
    call: Callable[[], Coroutine[Any, Any, T]]
    answer: "asyncio.Future[T]"
    sent_at: float


class SimServer:
    """The world's one storage, where all requests arrive. It may freeze for some time."""

    def __init__(self, loop: SimLoop, storage: MemoryStorage, watcher: NodeWatcher, rng: Random) -> None:
        self.loop = loop
        self.storage = storage
        self.rng = rng
        self._newer = Random(f"newer {rng.getstate()[1][:3]}")
        self._doubling = Random(f"doubling {rng.getstate()[1][:3]}")
        self.rates = Rates()
        self.counts: dict[str, int] = {}
        self._watcher = watcher
        self._frozen = False
        self._waiting: deque[Request[Any]] = deque()
        self._owners: dict[str, Owner] = {}
        self._context = loop.context(Node("storage"))

    @property
    def frozen(self) -> bool:
        """True while the storage is frozen."""
        return self._frozen

    def freeze(self) -> None:
        """Freeze: requests arrive and wait, as with a stopped process."""
        self._frozen = True

    def thaw(self) -> None:
        """Continue, beginning with the requests that have arrived meanwhile."""
        self._frozen = False
        while self._waiting and not self._frozen:
            self._take(self._waiting.popleft())

    def send(self, request: Request[Any]) -> None:
        """Send a request."""
        if request.net.cut in ("both", "requests") or self.hit("lost request", self.rates.lost_request):
            self._maybe_echo(request)
            self._later(self.rng.uniform(0.05, self.rates.patience), self._fail, request)
        else:
            self._later(self._delay(), self._arrive, request)

    def hit(self, kind: str, rate: float) -> bool:
        """Return True if this message is hit by the fault, and count it."""
        if not rate or self.rng.random() >= rate:
            return False
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return True

    def _arrive(self, request: Request[Any]) -> None:
        if self._frozen:
            self._waiting.append(request)
        else:
            self._take(request)

    def _take(self, request: Request[Any]) -> None:
        try:
            answer = self._watcher.watched(
                request.verb,
                request.args,
                lambda: _driven(request.call()),
                sent_ago=self.loop.time() - request.sent_at,
            )
        except StorageError as error:
            self._later(self._delay(), self._settle, request, None, error)
            return
        self._maybe_echo(request)
        if request.net.cut in ("both", "answers") or self.hit("lost answer", self.rates.lost_answer):
            self._later(self.rng.uniform(0.05, self.rates.patience), self._fail, request)
        else:
            self._later(self._delay(), self._settle, request, answer, None)

    def _maybe_echo(self, request: Request[Any]) -> None:
        """Perhaps repeat a request, as a caller does that retries it or that took it over from another caller."""
        self._maybe_double(request)
        match request.verb, request.args:
            case "exchange", (Owner() as owner, settlements, _) if settlements and self.hit("echo", self.rates.echo):
                args = (self._some_owner(owner), settlements, None)
                self._echo(request, args, lambda: self.storage.exchange(*args))
            case "renew", (RenewRequest() as beat,) if beat.renewals and self.hit("echo", self.rates.echo):
                again = RenewRequest(self._some_owner(beat.owner), beat.renewals)
                self._echo(request, (again,), lambda: self.storage.renew(again))
            case "plan", (changes,) if all(isinstance(change, Tick) for change in changes) and self._again():
                self._echo(request, (changes,), lambda: self.storage.plan(changes))
            case _:
                pass

    def _maybe_double(self, request: Request[Any]) -> None:
        """Perhaps repeat a claim with its settlements and its number, at once or much later."""
        match request.args:
            case (Owner() as owner, settlements, ClaimRequest(lane=Lane()) as order) if self.rates.echo:
                if self._doubling.random() < self.rates.echo:
                    self.counts["doubled claim"] = self.counts.get("doubled claim", 0) + 1
                    again = self._repeated(
                        request, request.args, lambda: self.storage.exchange(owner, settlements, order)
                    )
                    late = self._doubling.choice((0.0, USUAL_DELAY, LONGEST_ECHO))
                    self._later(self._doubling.uniform(0.0, late), self._arrive, again)
            case _:
                pass

    def _again(self) -> bool:
        """Return True if a request of a newer kind is repeated. Its own random numbers keep old seeds unchanged."""
        if not self.rates.echo or self._newer.random() >= self.rates.echo:
            return False
        self.counts["echo"] = self.counts.get("echo", 0) + 1
        return True

    def _echo(self, request: Request[Any], args: tuple[Any, ...], call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._later(self.rng.uniform(0.0, LONGEST_ECHO), self._arrive, self._repeated(request, args, call))

    def _repeated(
        self, request: Request[Any], args: tuple[Any, ...], call: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Request[Any]:
        """Return a second arrival of a request. No caller receives its answer."""
        return Request(request.net, request.verb, args, call, self.loop.create_future(), request.sent_at)

    def _some_owner(self, owner: Owner) -> Owner:
        self._owners[owner.id] = owner
        return owner if self.rng.random() < 0.5 else self.rng.choice(list(self._owners.values()))

    def _delay(self) -> float:
        if self.hit("late", self.rates.late):
            return self.rng.uniform(0.05, LONGEST_DELAY)
        return self.rng.random() * self.rates.delay

    def _fail(self, request: Request[Any]) -> None:
        self._settle(request, None, StorageUnavailableError(f"{request.verb}: no answer"))

    @staticmethod
    def _settle(request: Request[Any], answer: Any, error: Exception | None) -> None:
        if request.answer.done():
            return
        if error is None:
            request.answer.set_result(answer)
        else:
            request.answer.set_exception(error)

    def _later(self, delay: float, step: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(delay, step, *args, context=self._context)


class SimNet:
    """The storage as one node sees it. The node may be cut off: both ways, or only for requests or for answers."""

    url = "sim://"
    shared = False
    remote = True
    flows = True

    def __init__(self, server: SimServer) -> None:
        self.cut: Cut | None = None
        self.senseless = False
        """True if the next exchange is not sent but gets an invalid answer, which makes its worker fail."""

        self._server = server

    async def open(self) -> None:
        """Do nothing: the first call shows whether the storage is reachable."""

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    async def examine(self, *, deep: bool = True) -> list[Finding]:
        """See `Storage.examine`."""
        return await self._server.storage.examine(deep=deep)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `Storage.enqueue`."""
        return await self._ask("enqueue", (jobs,), lambda: self._server.storage.enqueue(jobs))

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """See `Storage.exchange`."""
        if self.senseless:
            self.senseless = False
            return cast("ExchangeResult", None)
        sent = tuple(settlements)
        return await self._ask(
            "exchange", (owner, sent, order), lambda: self._server.storage.exchange(owner, sent, order)
        )

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Storage.renew`."""
        return await self._ask("renew", (beat,), lambda: self._server.storage.renew(beat))

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """See `Storage.sweep`."""
        return await self._ask("sweep", (bid,), lambda: self._server.storage.sweep(bid))

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """See `Storage.reclaim`."""
        return await self._ask("reclaim", (dead, owner), lambda: self._server.storage.reclaim(dead, owner))

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """See `Storage.revise`."""
        return await self._ask("revise", (revisions,), lambda: self._server.storage.revise(revisions))

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """See `Storage.plan`."""
        return await self._ask("plan", (changes,), lambda: self._server.storage.plan(changes))

    async def tune(
        self, target: Target, settings: Settings, *, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """See `Storage.tune`."""
        return await self._ask(
            "tune", (target,), lambda: self._server.storage.tune(target, settings, by=by, expected=expected)
        )

    async def resign(self, term: Term) -> None:
        """See `Storage.resign`."""
        await self._ask("resign", (term,), lambda: self._server.storage.resign(term))

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        """See `Storage.publish`. It meets no faults but the cuts: its travel would change what old seeds show."""
        await self._reach().publish(tasks, renewal=renewal)

    async def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """See `Storage.published`."""
        return await self._reach().published(names)

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """See `Storage.get`."""
        return await self._ask("get", (refs,), lambda: self._server.storage.get(refs))

    async def find(self, query: Query) -> Page:
        """See `Storage.find`."""
        return await self._ask("find", (query,), lambda: self._server.storage.find(query))

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        """See `Storage.survey`."""
        return await self._ask(
            "survey",
            (queues, faults, figures),
            lambda: self._server.storage.survey(queues, faults=faults, figures=figures),
        )

    async def events(
        self,
        cursor: str | None = None,
        *,
        limit: int = 100,
        reader: EventReader | None = None,
        ref: Ref | None = None,
    ) -> EventPage:
        """See `Storage.events`."""
        return await self._ask(
            "events", (cursor,), lambda: self._server.storage.events(cursor, limit=limit, reader=reader, ref=ref)
        )

    async def record_act(self, act: OperatorAct, *, keep: KeepRule = ACTS_KEPT) -> OperatorAct:
        """See `Storage.record_act`."""
        return await self._ask("record_act", (act,), lambda: self._server.storage.record_act(act, keep=keep))

    async def acts(self, query: ActsQuery) -> ActsPage:
        """See `Storage.acts`."""
        return await self._ask("acts", (query,), lambda: self._server.storage.acts(query))

    def notices(self, topics: Iterable[str]) -> "SimNotices":
        """See `Storage.notices`."""
        return SimNotices(self, self._server, self._server.storage.notices(topics))

    def _reach(self) -> MemoryStorage:
        if self.cut is not None or self._server.frozen:
            raise StorageUnavailableError("no answer")
        return self._server.storage

    async def _ask(self, verb: str, args: tuple[Any, ...], call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        answer: asyncio.Future[T] = self._server.loop.create_future()
        self._server.send(Request(self, verb, args, call, answer, self._server.loop.time()))
        return await answer


class SimNotices:
    """Hints that are lost together with the messages of their node."""

    def __init__(self, net: SimNet, server: SimServer, notices: Notifications) -> None:
        self._net = net
        self._server = server
        self._notices = notices

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        while True:
            await anext(aiter(self._notices))
            cut = self._net.cut is not None or self._server.frozen
            if not cut and not self._server.hit("lost notice", self._server.rates.lost_notice):
                return

    def close(self) -> None:
        """Stop listening."""
        self._notices.close()


def _driven(step: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, such as those of a storage in memory."""
    try:
        step.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise RuntimeError("the storage waited; a step of a storage in memory must not")
