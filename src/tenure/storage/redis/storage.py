"""The Redis storage: it opens the servers, checks them, and forwards each verb to one partition or to many."""

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.figures import FiguresQuery
from tenure.core.internal import includes_worker
from tenure.core.job import JobDetail, NewJob, Owner, Ref
from tenure.core.leadership import Term
from tenure.core.move import MoveBatch, MoveReceipt
from tenure.core.published import PublishedTask
from tenure.core.retention import KeepRule
from tenure.core.settlement import Settlement
from tenure.errors import StorageUnavailableError
from tenure.storage.notifications import Listener
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
from tenure.storage.redis.address import RedisAddress
from tenure.storage.redis.connections import Connections
from tenure.storage.redis.keytypes import examine_types, named
from tenure.storage.redis.partition import Partition
from tenure.storage.redis.partitions import Partitions
from tenure.storage.redis.schema import examine_layout, layout_of, settle_on
from tenure.storage.redis.server_checks import ServerChecks
from tenure.storage.redis.subscriptions import Subscriptions
from tenure.storage.redis.sweep_schedule import SweepSchedule
from tenure.storage.waiting import jobs_of_batch, require_plain

_NAME = "Redis"


class RedisStorage:
    """Keeps jobs in Redis or Valkey, shared by processes on any number of machines. The first verb opens it."""

    shared = True
    remote = True
    flows = False

    def __init__(self, address: RedisAddress, *, clock: Clock | None = None) -> None:
        self.url = address.shown
        self._address = address
        self._connections = Connections(address)
        durable = address.durability == "replicated"
        alone = len(address.bases) == 1
        self._partitions = [
            Partition(
                self._connections,
                base,
                scope="*" if alone else f"partition {number}",
                layout=layout_of(len(address.bases)),
                clock=clock,
                durable=durable,
                explain=partial(named, self._connections),
            )
            for number, base in enumerate(address.bases)
        ]
        self._verbs = self._partitions[0] if alone else Partitions(self._partitions, self._schedule)
        self._checks = ServerChecks(self._connections)
        self._subscriptions = Subscriptions(self._connections, self.bases_of)
        self._open = False
        self._closed = False

    async def open(self) -> None:
        """See `Storage.open`."""
        if self._open and not self._closed:
            return
        self._closed = False
        await self._ready()
        self._subscriptions.resume()

    async def close(self) -> None:
        """See `Storage.close`.

        An owner's verbs open a closed storage again, until the owner's last renewal (`RenewRequest.last`). So closing
        an app while one of its workers runs delays that worker briefly and loses no job.
        """
        self._closed, self._open = True, False
        await self._subscriptions.close()
        await self._connections.close()

    async def examine(self, *, deep: bool = True) -> list[Finding]:
        """See `Storage.examine`."""
        findings = await self._checks.examine()
        # If the server was unreachable just now, do not wait for it a second time.
        if not any(finding.level == "error" and finding.subject == "server" for finding in findings):
            findings += await examine_layout(
                self._connections, self._partitions[0].base, partitions=len(self._partitions)
            )
            if deep:
                findings += [await examine_types(self._connections, partition.base) for partition in self._partitions]
        return findings

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `Storage.enqueue`."""
        require_plain(_NAME, jobs)
        verbs = self._verbs if self._open and not self._closed else await self._opened()
        return await verbs.enqueue(jobs)

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """See `Storage.exchange`."""
        require_plain(_NAME, settlements=settlements)
        verbs = self._verbs if self._open else await self._ready()
        return await verbs.exchange(owner, settlements, order)

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Storage.renew`."""
        result = await (await self._ready()).renew(beat)
        if beat.last and self._closed:
            await self.close()
        return result

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """See `Storage.sweep`. The leader also checks that the servers still meet the requirements."""
        verbs = await self._ready()
        # A single partition is swept at every turn: skips only pay where there are many partitions.
        swept = await verbs.sweep(bid if isinstance(verbs, Partitions) else replace(bid, max_skip=0))
        if swept.retry_in is None and (troubles := await self._checks.look_again()):
            return replace(swept, troubles=(*swept.troubles, *troubles))
        return swept

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """See `Storage.reclaim`."""
        return await (await self._ready()).reclaim(dead, owner)

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """See `Storage.revise`."""
        require_plain(_NAME, revisions=revisions)
        return await (await self._opened()).revise(revisions)

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """See `Storage.plan`."""
        require_plain(_NAME, jobs_of_ticks(changes))
        return await (await self._opened()).plan(changes)

    async def tune(
        self, target: Target, settings: Settings, *, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """See `Storage.tune`."""
        return await (await self._opened()).tune(target, settings, by=by, expected=expected)

    async def receive(self, batch: MoveBatch) -> MoveReceipt:
        """See `MoveTarget.receive`."""
        require_plain(_NAME, jobs_of_batch(batch))
        return await (await self._opened()).receive(batch)

    async def resign(self, term: Term) -> None:
        """See `Storage.resign`."""
        await (await self._ready()).resign(term)

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        """See `Storage.publish`."""
        await (await self._opened()).publish(tasks, renewal=renewal)

    async def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """See `Storage.published`."""
        return await (await self._opened()).published(names)

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """See `Storage.get`."""
        return await (await self._opened()).get(refs)

    async def find(self, query: Query) -> Page:
        """See `Storage.find`."""
        return await (await self._opened()).find(query)

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        """See `Storage.survey`."""
        found = await (await self._opened()).survey(queues, faults=faults, figures=figures)
        workers = tuple(worker for worker in found.workers if includes_worker(worker.queues, queues))
        return replace(found, workers=workers)

    async def events(
        self,
        cursor: str | None = None,
        *,
        limit: int = 100,
        reader: EventReader | None = None,
        ref: Ref | None = None,
    ) -> EventPage:
        """See `Storage.events`."""
        return await (await self._opened()).events(cursor, limit=limit, reader=reader, ref=ref)

    async def record_act(self, act: OperatorAct, *, keep: KeepRule = ACTS_KEPT) -> OperatorAct:
        """See `Storage.record_act`."""
        return await (await self._opened()).record_act(act, keep=keep)

    async def acts(self, query: ActsQuery) -> ActsPage:
        """See `Storage.acts`."""
        return await (await self._opened()).acts(query)

    def notices(self, topics: Iterable[str]) -> Listener:
        """See `Storage.notices`."""
        return self._subscriptions.listen(topics)

    def bases_of(self, topic: str) -> Sequence[str]:
        """Return the base keys of the partitions that may publish hints for a topic.

        Hints for a partition, a queue or a job come from one partition; other hints may come from any of them.
        """
        if isinstance(self._verbs, Partitions):
            kind, _, name = topic.partition(":")
            if kind == "partition":
                return (name,)
            if kind in ("queue", "job"):
                return (self._verbs.of(name.partition("\0")[0]).base,)
        return self._address.bases

    def _schedule(self, partitions: Sequence[Partition]) -> SweepSchedule:
        return SweepSchedule(partitions, self.notices)

    async def _opened(self) -> Partition | Partitions:
        if self._closed:
            raise StorageUnavailableError(f"{self.url} is closed; open() it again")
        return await self._ready()

    async def _ready(self) -> Partition | Partitions:
        if not self._open:
            await self._checks.admit()
            await settle_on(self._connections, self._address.bases)
            self._open = True
        return self._verbs
