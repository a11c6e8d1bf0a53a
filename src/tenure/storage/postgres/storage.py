"""The storage protocol on PostgreSQL: sends each verb to the right thread. The other modules implement the verbs."""

import asyncio
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from tenure.clock import Clock, SystemClock
from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.figures import FiguresQuery
from tenure.core.job import JobDetail, NewJob, Owner, Ref
from tenure.core.leadership import Term
from tenure.core.move import MoveBatch, MoveReceipt
from tenure.core.published import PublishedTask
from tenure.core.retention import KeepRule
from tenure.core.settlement import Settlement
from tenure.errors import StorageUnavailableError, UsageError
from tenure.storage import forking
from tenure.storage.connections import TxConnection
from tenure.storage.notifications import Listener, NotificationHub
from tenure.storage.postgres import health, intake
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.compatibility import OutdatedError
from tenure.storage.postgres.connection import Session
from tenure.storage.postgres.job_transaction import PostgresJobTransaction
from tenure.storage.postgres.listener import PostgresListener
from tenure.storage.postgres.migration_files import SCHEMA
from tenure.storage.postgres.names import require_storable
from tenure.storage.postgres.reader import PostgresReader
from tenure.storage.postgres.schema import Schema
from tenure.storage.postgres.transaction import PostgresTransaction
from tenure.storage.postgres.writer import Claims, PostgresWriter
from tenure.storage.protocol import (
    EVENTS_END,
    OUTDATED,
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
from tenure.storage.waiting import jobs_of_batch, require_plain

_NAME = "PostgreSQL"

_CLOSING = 10.0
"""How many seconds `close` waits for writes that are under way."""


class PostgresStorage:
    """Keeps jobs in one schema of a database, for any number of processes. It opens itself at the first verb."""

    shared = True
    remote = True
    flows = False

    def __init__(self, address: PostgresAddress, *, clock: Clock | None = None, auto_migrate: bool = True) -> None:
        """`clock`: decides the instants in place of the server's clock; for tests.

        Raises:
            UsageError: the address is malformed.
        """
        self.url = address.shown
        self.address = address
        own_time, time = clock is not None, clock or SystemClock()
        self._own_time, self._clock = own_time, time
        self._hub = NotificationHub()
        self.claims = Claims()
        schema = Schema(address, auto_migrate=auto_migrate, created=time.now() if own_time else None)

        def session(target: str) -> Session:
            return Session(address, target, check=schema.check)

        self._listener = PostgresListener(
            address,
            None if address.listener is None else Session(address, address.listener, check=lambda connection: None),
            time,
            self._hub,
        )

        def writer(name: str) -> PostgresWriter:
            return PostgresWriter(
                name,
                address,
                session(address.server),
                self.claims,
                time,
                self._hub,
                own_time=own_time,
                payload=self._listener.payload,
            )

        self.flow = writer("flow")
        """Writes enqueues and exchanges."""
        self.care = writer("care")
        """Writes all else, so that a beat does not wait behind a batch of enqueues."""
        self._reading = PostgresReader(address, session(address.server), time, own_time=own_time)
        self._time = time if own_time else None
        self._identity: str | None = None
        self._open = False
        self._closed = False
        forking.register(self)

    async def open(self) -> None:
        """See `Storage.open`."""
        self._closed = False
        await self._require_open()

    async def close(self) -> None:
        """See `Storage.close`."""
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
        return await self._reading.read(lambda tx: health.examine(tx, self.address.schema, deep=deep))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `Storage.enqueue`.

        Raises:
            UsageError: a name contains NUL, which PostgreSQL cannot hold.
        """
        require_plain(_NAME, jobs)
        for job in jobs:
            require_storable(job)
        await self._require_open()
        return await self.flow.submit_with_others(exchange.enqueue_all, jobs)

    async def prepare_tx(self) -> None:
        """See `TransactionalStorage.prepare_tx`."""
        await self._require_open()
        if self._identity is None:
            self._identity = await self._reading.read(_identity)

    async def enqueue_in(self, tx: TxConnection, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `TransactionalStorage.enqueue_in`: the answer to each call is `pending`."""
        require_plain(_NAME, jobs)
        for job in jobs:
            require_storable(job)
        now = None if self._time is None else self._time.now()
        try:
            return await intake.insert(self.address, tx, jobs, identity=self._identity or "", now=now)
        except UsageError:
            # Another database may have replaced this one: the next call reads its identity again.
            self._identity = None
            raise

    async def absorb(self) -> None:
        """See `TransactionalStorage.absorb`."""
        await self._require_open()
        # Each transaction behind the gate does it.
        await self.flow.submit(_no_op)

    async def readmit(self, queue: str) -> bool:
        """See `HoldsCalls.readmit`."""
        await self._require_open()
        return await self.care.submit(lambda tx: intake.readmit(tx, queue))

    async def newer_calls(self) -> int:
        """See `HoldsCalls.newer_calls`."""
        await self._require_open()
        return await self._reading.read(intake.newer)

    async def refused(self, call: Ref) -> str | None:
        """See `HoldsCalls.refused`."""
        await self._require_open()
        return await self._reading.read(lambda tx: intake.refused(tx, call))

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """See `Storage.exchange`."""
        require_plain(_NAME, settlements=settlements)
        await self._require_open()
        return await self.flow.submit(
            lambda tx: exchange.exchange(tx, owner, settlements, None if closes(tx) else order),
            try_read_only=None if settlements else lambda tx: exchange.exchange_read_only(tx, owner, order),
        )

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Storage.renew`."""
        if beat.worker is not None:
            beat = replace(beat, worker=replace(beat.worker, schema=SCHEMA))
        try:
            await self._require_open()
            return await self.care.submit(lambda tx: _renew(tx, beat), front=True)
        except OutdatedError as error:
            # The tables are for newer programs: nothing can be written, and the worker has to stop.
            lost = tuple((renewal.ref, renewal.fence) for renewal in beat.renewals)
            return RenewResult(lost, orders=(f"{OUTDATED}{error}",))

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """See `Storage.sweep`."""
        await self._require_open()
        return await self.care.submit(
            lambda tx: sweep.sweep(tx, bid, None), try_read_only=lambda tx: sweep.led_by_another(tx, bid, None)
        )

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """See `Storage.reclaim`."""
        await self._require_open()
        return await self.care.submit(lambda tx: sweep.reclaim(tx, dead, owner))

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """See `Storage.revise`."""
        require_plain(_NAME, revisions=revisions)
        await self._require_open()
        return await self.care.submit(lambda tx: revise.revise(tx, revisions))

    async def receive(self, batch: MoveBatch) -> MoveReceipt:
        """See `MoveTarget.receive`.

        Raises:
            UsageError: a name of a job contains NUL, which PostgreSQL cannot hold.
        """
        require_plain(_NAME, jobs_of_batch(batch))
        for detail in batch.jobs:
            require_storable(detail.job)
        for call in batch.calls:
            require_storable(call.job)
        await self._require_open()
        return await self.care.submit(lambda tx: moves.receive(tx, batch))

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """See `Storage.plan`.

        Raises:
            UsageError: a name of a tick's job contains NUL, which PostgreSQL cannot hold.
        """
        require_plain(_NAME, jobs_of_ticks(changes))
        for job in jobs_of_ticks(changes):
            require_storable(job)
        await self._require_open()
        return await self.care.submit(lambda tx: schedules.plan(tx, changes))

    async def tune(
        self, target: Target, settings: Settings, *, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """See `Storage.tune`."""
        await self._require_open()
        return await self.care.submit(lambda tx: tune.tune(tx, target, settings, by, expected))

    async def resign(self, term: Term) -> None:
        """See `Storage.resign`."""
        await self._require_open()
        await self.care.submit(lambda tx: sweep.resign(tx, term))

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        """See `Storage.publish`."""
        await self._require_open()
        await self.care.submit(lambda tx: published_tasks.publish(tx, tasks, renewal=renewal))

    async def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """See `Storage.published`."""
        await self._require_open()
        return await self._reading.read(lambda tx: published_tasks.published(tx, names))

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """See `Storage.get`."""
        await self._require_open()
        while True:
            details, calls_wait = await self._reading.read(lambda tx: (_get(tx, refs), _calls_wait(tx)))
            if not calls_wait or None not in details:
                return details
            await self.absorb()

    async def find(self, query: Query) -> Page:
        """See `Storage.find`."""
        await self._require_open()
        if await self._reading.read(_calls_wait):
            await self.absorb()
        return await self._reading.read(lambda tx: reading.find(tx, query))

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        """See `Storage.survey`."""
        await self._require_open()
        if await self._reading.read(_calls_wait):
            await self.absorb()
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
        return await self.care.submit(
            lambda tx: reading.lend_events(tx, cursor, limit, reader),
            try_read_only=lambda tx: reading.lend_read_only(tx, cursor, limit, reader),
        )

    async def record_act(self, act: OperatorAct, *, keep: KeepRule = ACTS_KEPT) -> OperatorAct:
        """See `Storage.record_act`."""
        await self._require_open()
        return await self.care.submit(lambda tx: acts.record_act(tx, act, keep))

    async def acts(self, query: ActsQuery) -> ActsPage:
        """See `Storage.acts`."""
        await self._require_open()
        return await self._reading.read(lambda tx: acts.acts(tx, query))

    def notices(self, topics: Iterable[str]) -> Listener:
        """See `Storage.notices`."""
        return self._hub.listen(topics) if self._closed else self._listener.listen(topics)

    def transaction(self, connection: object, loop: asyncio.AbstractEventLoop | None) -> PostgresJobTransaction:
        """See `SupportsTransactions.transaction`."""
        return PostgresJobTransaction(
            self.address,
            Session(self.address, self.address.server, check=lambda connection: None),
            self._clock,
            connection,
            loop,
            own_time=self._own_time,
            announce=self.flow.announce,
        )

    def before_fork(self) -> None:
        """Do nothing: a child gives up what it inherits."""

    def after_fork_in_parent(self) -> None:
        """Do nothing."""

    def after_fork_in_child(self) -> None:
        """Reset the state: threads do not survive a fork, and the connections belong to the parent."""
        self.claims.reset()
        self._hub.clear()
        for part in (self.flow, self.care, self._listener):
            part.reset()
        self._reading.forget()
        self._open = False

    async def _require_open(self) -> None:
        if self._closed:
            raise StorageUnavailableError(f"{self.url} is closed; open() it again")
        if not self._open:
            # The first use of a connection checks and creates the schema.
            await self._reading.read(_no_op)
            self._open = not self._closed

    def _stop(self) -> None:
        self._listener.stop(_CLOSING)
        self._reading.stop()
        for writer in (self.flow, self.care):
            writer.stop(_CLOSING)


def closes(tx: Transaction) -> str:
    """Return why workers of this version must stop; empty if they may go on."""
    return tx.closes if isinstance(tx, PostgresTransaction) else ""


def _renew(tx: Transaction, beat: RenewRequest) -> RenewResult:
    answer = renew.renew(tx, beat)
    why = closes(tx)
    return replace(answer, orders=(*(answer.orders or ()), f"{OUTDATED}{why}")) if why else answer


def _get(tx: Transaction, refs: Sequence[Ref]) -> list[JobDetail | None]:
    details = reading.get(tx, refs)
    for number, (ref, detail) in enumerate(zip(refs, details, strict=True)):
        if detail is None and (job := intake.answered(tx, ref)) is not None:
            [details[number]] = reading.get(tx, [job])
    return details


def _calls_wait(tx: Transaction) -> bool:
    return isinstance(tx, PostgresTransaction) and tx.calls_wait


def _identity(tx: Transaction) -> str:
    row = tx.one("intake.identity")
    return "" if row is None else str(row[0])


def _no_op(tx: Transaction) -> bool:
    return True
