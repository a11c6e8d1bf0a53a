"""The storage protocol on SQLite: sends each verb to the right thread. The other modules implement the verbs."""

import asyncio
import os
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from tenure.clock import Clock, SystemClock
from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.figures import FiguresQuery
from tenure.core.job import JobDetail, NewJob, Owner, Ref
from tenure.core.leadership import Term
from tenure.core.move import MoveBatch, MoveReceipt
from tenure.core.partition import LOG_LOST
from tenure.core.published import PublishedTask
from tenure.core.retention import KeepRule
from tenure.core.settlement import Settlement
from tenure.errors import StorageUnavailableError, UsageError
from tenure.storage import forking
from tenure.storage.connections import TxConnection
from tenure.storage.notifications import Listener, NotificationHub
from tenure.storage.protocol import (
    EVENTS_END,
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
from tenure.storage.sql import acts, exchange, moves, published_tasks, reading, renew, revise, schedules, sweep, tune
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sqlite import health, user_transaction
from tenure.storage.sqlite.database import Database, Durability
from tenure.storage.sqlite.job_transaction import SQLiteJobTransaction
from tenure.storage.sqlite.locks import Locks, lock_file
from tenure.storage.sqlite.reader import SQLiteReader
from tenure.storage.sqlite.session import ThreadConnection
from tenure.storage.sqlite.writer import SQLiteWriter
from tenure.storage.waiting import jobs_of_batch, require_plain

_NAME = "SQLite"

_CLOSING = 10.0
"""How many seconds `close` waits for writes that are under way."""


class SQLiteStorage:
    """Keeps jobs in one SQLite file, for all processes of one machine. It opens itself at the first verb."""

    shared = True
    remote = False
    flows = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        auto_migrate: bool = True,
        durability: Durability = "full",
    ) -> None:
        name = os.fspath(path)
        if name in ("", ":memory:") or "\0" in name:
            raise UsageError(f"{name!r} is not a file; name one, as in sqlite:///tenure.db, or use memory://")
        self.url = f"sqlite:///{name}"
        # Resolve links: SQLite puts its log next to the real file, and the lock file must lie there too.
        try:
            self.path = os.path.realpath(name)
        except FileNotFoundError:
            raise UsageError(
                f"{name!r} cannot be found from a working directory that is gone; start in one that is there, or name "
                "an absolute path, as in sqlite:////var/lib/tenure.db"
            ) from None
        self._clock = clock or SystemClock()
        self._locks = Locks(lock_file(self.path))
        self._database = Database(
            self.path, self._locks, durability=durability, auto_migrate=auto_migrate, clock=self._clock
        )
        self._hub = NotificationHub()
        self._sessions = (
            ThreadConnection(self.path, self._database.writer),
            ThreadConnection(self.path, self._database.reader),
        )
        self._writer = SQLiteWriter(self.path, self._sessions[0], self._locks, self._clock, self._hub)
        self._reading = SQLiteReader(self.path, self._sessions[1], self._clock)
        self._open = False
        self._closed = False
        self._reopened = False
        forking.register(self)

    async def open(self) -> None:
        """See `Storage.open`."""
        self._closed = self._reopened = False
        await self._ensure_open()

    async def close(self) -> None:
        """See `Storage.close`.

        Closing does not make an owner look dead if it works through this storage and has not signed off
        (`RenewRequest.last`). The kernel lock that proves its life stays until it signs off, or until the process ends.
        The verbs of such an owner reopen a closed storage until the last owner leaves. So closing an app under a
        running worker causes a short delay but loses no job.
        """
        if self._closed:
            return
        self._closed, self._open = True, False
        try:
            stopping = asyncio.get_running_loop().run_in_executor(None, self._stop)
        except RuntimeError:
            # The interpreter is shutting down and starts no threads, so blocking here delays no other task.
            self._stop()
        else:
            await stopping

    async def examine(self, *, deep: bool = True) -> list[Finding]:
        """See `Storage.examine`."""
        await self._require_open()
        return await self._reading.read(lambda tx: health.examine(tx, self._database, deep=deep))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `Storage.enqueue`."""
        require_plain(_NAME, jobs)
        await self._require_open()
        return await self._writer.submit_with_others(exchange.enqueue_all, jobs)

    async def prepare_tx(self) -> None:
        """See `TransactionalStorage.prepare_tx`."""
        await self._require_open()

    async def enqueue_in(self, tx: TxConnection, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `TransactionalStorage.enqueue_in`: the results are those of `enqueue`, if the transaction commits."""
        require_plain(_NAME, jobs)
        if tx.dialect != "sqlite":
            raise UsageError(
                f"tx is a connection to {tx.dialect}, but the queue is in {self.path}; give a connection to that file, "
                "or enqueue without tx after the commit"
            )
        return await tx.run(lambda connection: user_transaction.enqueue(connection, self.path, jobs, self._clock.now()))

    async def absorb(self) -> None:
        """See `TransactionalStorage.absorb`: nothing waits."""

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """See `Storage.exchange`."""
        require_plain(_NAME, settlements=settlements)
        await self._require_open(owner)
        return await self._writer.submit(
            lambda tx: exchange.exchange(tx, owner, settlements, order),
            try_read_only=None if settlements else lambda tx: exchange.exchange_read_only(tx, owner, order),
            owner=owner.id,
        )

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Storage.renew`."""
        await self._require_open(beat.owner)
        pulse = await self._writer.submit(
            lambda tx: renew.renew(tx, beat),
            # An ExternalRenewer renews for another process. That process's life lock must not be held here, unless the
            # renewer also recovers its jobs.
            owner=beat.owner.id if beat.worker is not None or beat.last or beat.guarding else None,
            signing_off=beat.last,
            guarding=beat.guarding,
            front=True,
        )
        if beat.last and self._reopened and not self._locks.has_owners:
            await self.close()
        if pulse.partitions and self._sessions[0].log_lost:
            self._sessions[0].log_lost = False
            return replace(pulse, partitions=tuple(replace(one, trouble=LOG_LOST) for one in pulse.partitions))
        return pulse

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """See `Storage.sweep`."""
        await self._require_open(bid.owner)
        alive = self._locks.alive
        return await self._writer.submit(
            lambda tx: sweep.sweep(tx, bid, alive),
            try_read_only=lambda tx: sweep.led_by_another(tx, bid, alive),
            owner=bid.owner.id,
        )

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """See `Storage.reclaim`."""
        await self._require_open(owner)

        def forget_dead(taken: ReclaimResult) -> None:
            if not taken.more:
                self._locks.release(dead)

        return await self._writer.submit(
            lambda tx: sweep.reclaim(tx, dead, owner), owner=owner.id, after_commit=forget_dead
        )

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """See `Storage.revise`."""
        require_plain(_NAME, revisions=revisions)
        await self._require_open()
        return await self._writer.submit(lambda tx: revise.revise(tx, revisions))

    async def receive(self, batch: MoveBatch) -> MoveReceipt:
        """See `MoveTarget.receive`."""
        require_plain(_NAME, jobs_of_batch(batch))
        await self._require_open()
        return await self._writer.submit(lambda tx: moves.receive(tx, batch))

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """See `Storage.plan`."""
        require_plain(_NAME, jobs_of_ticks(changes))
        await self._require_open()
        return await self._writer.submit(lambda tx: schedules.plan(tx, changes))

    async def tune(
        self, target: Target, settings: Settings, *, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """See `Storage.tune`."""
        await self._require_open()
        return await self._writer.submit(lambda tx: tune.tune(tx, target, settings, by, expected))

    async def resign(self, term: Term) -> None:
        """See `Storage.resign`."""
        await self._require_open()
        await self._writer.submit(lambda tx: sweep.resign(tx, term))

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        """See `Storage.publish`."""
        await self._require_open()
        await self._writer.submit(lambda tx: published_tasks.publish(tx, tasks, renewal=renewal))

    async def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """See `Storage.published`."""
        await self._require_open()
        return await self._reading.read(lambda tx: published_tasks.published(tx, names))

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """See `Storage.get`."""
        await self._require_open()
        return await self._reading.read(lambda tx: reading.get(tx, refs))

    async def find(self, query: Query) -> Page:
        """See `Storage.find`."""
        await self._require_open()
        return await self._reading.read(lambda tx: reading.find(tx, query))

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        """See `Storage.survey`."""
        await self._require_open()
        return await self._reading.read(lambda tx: reading.survey(tx, queues, faults, figures))

    async def events(
        self,
        cursor: str | None = None,
        *,
        limit: int = 100,
        reader: EventReader | None = None,
        ref: Ref | None = None,
    ) -> EventPage:
        """See `Storage.events`."""
        await self._require_open()
        if reader is None or cursor == EVENTS_END:
            return await self._reading.read(lambda tx: reading.events(tx, cursor, limit, ref))
        return await self._writer.submit(
            lambda tx: reading.lend_events(tx, cursor, limit, reader),
            try_read_only=lambda tx: reading.lend_read_only(tx, cursor, limit, reader),
        )

    async def record_act(self, act: OperatorAct, *, keep: KeepRule = ACTS_KEPT) -> OperatorAct:
        """See `Storage.record_act`."""
        await self._require_open()
        return await self._writer.submit(lambda tx: acts.record_act(tx, act, keep))

    async def acts(self, query: ActsQuery) -> ActsPage:
        """See `Storage.acts`."""
        await self._require_open()
        return await self._reading.read(lambda tx: acts.acts(tx, query))

    def notices(self, topics: Iterable[str]) -> Listener:
        """See `Storage.notices`."""
        listener = self._hub.listen(topics)
        if not self._closed:
            self._writer.wake()
        return listener

    def transaction(self, connection: object, loop: asyncio.AbstractEventLoop | None) -> SQLiteJobTransaction:
        """See `SupportsTransactions.transaction`."""
        if connection is not None:
            raise UsageError(
                "transaction(connection): on SQLite the block opens its own connection to the file; call transaction() "
                "and write with its `connection`"
            )
        return SQLiteJobTransaction(self._database, self._clock, self._writer)

    def before_fork(self) -> None:
        """Release all that a child must not inherit."""
        for session in self._sessions:
            session.before_fork()

    def after_fork_in_parent(self) -> None:
        """Resume after a fork."""
        for session in self._sessions:
            session.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Reset the state: threads do not survive a fork, and inherited locks would outlive the parent."""
        self._locks.close()
        for session in self._sessions:
            session.after_fork_in_child()
        self._hub.clear()
        self._writer.reset()
        self._reading.reset()
        self._open = False

    async def _require_open(self, by: Owner | None = None) -> None:
        if self._closed:
            if by is None or not self._locks.holds(by.id):
                raise StorageUnavailableError(f"{self.url} is closed; open() it again")
            self._closed, self._reopened = False, True
        await self._ensure_open()

    async def _ensure_open(self) -> None:
        if not self._open:
            # The writer checks and creates the file when it first uses its connection.
            await self._writer.submit(_no_op, try_read_only=_no_op)
            self._open = not self._closed

    def _stop(self) -> None:
        self._reading.stop()
        self._writer.stop(_CLOSING)


def _no_op(tx: Transaction) -> bool:
    return True
