"""The storage for tests and for jobs that may be lost with their process: the model behind a lock."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tenure.clock import Clock, SystemClock
from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.figures import FiguresQuery
from tenure.core.job import JobDetail, NewJob, Owner, Ref
from tenure.core.leadership import Term
from tenure.core.move import MoveBatch, MoveReceipt
from tenure.core.published import PublishedTask
from tenure.core.retention import KeepRule
from tenure.core.settlement import Settlement
from tenure.storage.memory.model import Model
from tenure.storage.memory.published_tasks import PublishedTasks
from tenure.storage.notifications import Listener, NotificationHub
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
    jobs_of_ticks,
)
from tenure.storage.waiting import require_valid, require_valid_waits

T = TypeVar("T")


class MemoryStorage:
    """Keeps everything in this process; all data ends with the process."""

    url = "memory://"
    shared = False
    remote = False
    flows = True

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.model = Model(clock or SystemClock())
        self._tasks = PublishedTasks(clock or SystemClock())
        self._hub = NotificationHub()
        # The keeper renews leases from its own thread.
        self._lock = threading.Lock()

    async def open(self) -> None:
        """Do nothing: there is nothing to open."""

    async def close(self) -> None:
        """Do nothing: the data stays with the object."""

    async def examine(self, *, deep: bool = True) -> list[Finding]:
        """Return the warning that memory is not durable."""
        return [
            Finding(
                "warning",
                "durability",
                "jobs live in this process only and end with it",
                "use sqlite:///tenure.db for work that must not vanish",
            )
        ]

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `Storage.enqueue`."""
        require_valid(jobs)
        return self._step(lambda: self.model.enqueue(jobs))

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """See `Storage.exchange`."""
        require_valid_waits(settlements)
        return self._step(lambda: self.model.exchange(owner, settlements, order))

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Storage.renew`."""
        return self._step(lambda: self.model.renew(beat))

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """See `Storage.sweep`."""
        return self._step(lambda: self.model.sweep(bid))

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """See `Storage.reclaim`."""
        return self._step(lambda: self.model.reclaim(dead, owner))

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """See `Storage.revise`."""
        return self._step(lambda: self.model.revise(revisions))

    async def receive(self, batch: MoveBatch) -> MoveReceipt:
        """See `MoveTarget.receive`."""
        require_valid(call.job for call in batch.calls)
        return self._step(lambda: self.model.receive(batch))

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """See `Storage.plan`."""
        require_valid(jobs_of_ticks(changes))
        return self._step(lambda: self.model.plan(changes))

    async def tune(
        self, target: Target, settings: Settings, *, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """See `Storage.tune`."""
        return self._step(lambda: self.model.tune(target, settings, by, expected))

    async def resign(self, term: Term) -> None:
        """See `Storage.resign`."""
        self._step(lambda: self.model.resign(term))

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        """See `Storage.publish`."""
        self._step(lambda: self._tasks.publish(tasks, renewal=renewal))

    async def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """See `Storage.published`."""
        return self._step(lambda: self._tasks.published(names))

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """See `Storage.get`."""
        return self._step(lambda: self.model.get(refs))

    async def find(self, query: Query) -> Page:
        """See `Storage.find`."""
        return self._step(lambda: self.model.find(query))

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        """See `Storage.survey`."""
        return self._step(lambda: self.model.survey(queues, faults, figures))

    async def events(
        self,
        cursor: str | None = None,
        *,
        limit: int = 100,
        reader: EventReader | None = None,
        ref: Ref | None = None,
    ) -> EventPage:
        """See `Storage.events`."""
        return self._step(lambda: self.model.events(cursor, limit, reader, ref))

    async def record_act(self, act: OperatorAct, *, keep: KeepRule = ACTS_KEPT) -> OperatorAct:
        """See `Storage.record_act`."""
        return self._step(lambda: self.model.record_act(act, keep))

    async def acts(self, query: ActsQuery) -> ActsPage:
        """See `Storage.acts`."""
        return self._step(lambda: self.model.acts(query))

    def notices(self, topics: Iterable[str]) -> Listener:
        """See `Storage.notices`."""
        return self._hub.listen(topics)

    def _step(self, step: Callable[[], T]) -> T:
        with self._lock:
            answer = step()
            topics, self.model.notified = self.model.notified, []
        if topics:
            self._hub.notify(topics)
        return answer
