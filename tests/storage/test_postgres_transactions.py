"""Transactions that complete their job on PostgreSQL: the handler's own connections, the gate, and lost answers."""

import asyncio
import importlib
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.event
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from psycopg.rows import dict_row

from tenure import JobFailedError, Retry, State, Tenure, UsageError, current_job
from tenure.core.lease import Lease
from tenure.core.outcome import Returned
from tenure.core.settlement import Settlement, settlement
from tenure.errors import StorageUnavailableError
from tenure.storage.postgres.address import read
from tenure.storage.postgres.connection import IDLE
from tenure.storage.postgres.job_transaction import PostgresJobTransaction
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import ClaimRequest, RenewRequest
from tenure_testing.conformance.helpers import ALICE, BOB, QUEUE, new_job
from tenure_testing.proxy import Proxy
from tests.records import record_of

pytestmark = pytest.mark.postgres

ROOM = 20.0
"""Seconds that a slow machine may add to a wait."""

ONCE = Retry(max_attempts=1)

# Django has no types.
SETTINGS: Any = importlib.import_module("django.conf").settings
DATABASES: Any = importlib.import_module("django.db").connections
DJANGO: Any = importlib.import_module("django.db.transaction")


class Business:
    """A table of the handlers, in the schema of a queue."""

    def __init__(self, url: str) -> None:
        self.schema = url.partition("schema=")[2]
        self._server = url.partition("?")[0]
        self.insert = f'INSERT INTO "{self.schema}".charge VALUES (%s)'.encode()
        self.execute(f'CREATE TABLE "{self.schema}".charge (job text)')

    @property
    def server(self) -> str:
        return self._server

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._server, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @property
    def rows(self) -> list[str]:
        return sorted(row[0] for row in self.execute(f'SELECT job FROM "{self.schema}".charge'))


@pytest.fixture
async def storage(postgres_url: str) -> AsyncIterator[PostgresStorage]:
    storage = PostgresStorage(read(postgres_url))
    await storage.open()
    yield storage
    await storage.close()


@pytest.fixture
def business(storage: PostgresStorage, postgres_url: str) -> Business:
    return Business(postgres_url)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    port = urlsplit(postgres_url).port
    assert port is not None
    with Proxy(port) as proxy:
        yield proxy


@pytest.fixture
def proxied(postgres_url: str, proxy: Proxy) -> str:
    """Return the test's address through the proxy."""
    host = urlsplit(postgres_url).netloc.rpartition("@")[2]
    return postgres_url.replace(f"@{host}/", f"@{proxy.address}/")


@asynccontextmanager
async def working(app: Tenure) -> AsyncGenerator[None]:
    worker = app.worker()
    await worker.start()
    try:
        yield
    finally:
        await worker.stop()
        await app.storage.close()


async def claimed(storage: PostgresStorage, id_: str = "first") -> Lease:
    await storage.enqueue([new_job(id_)])
    (lease,) = (await storage.exchange(ALICE, (), ClaimRequest((QUEUE,), 1))).leases
    return lease


def completion(lease: Lease) -> Settlement:
    return settlement(lease, Returned(b"7"), Random(1))


async def state_of(storage: PostgresStorage, lease: Lease) -> State:
    (detail,) = await storage.get([lease.ref])
    assert detail is not None
    return detail.job.state


def fault_at_commit(
    transaction: PostgresJobTransaction, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]
) -> None:
    """Let a fault happen when all is written and only the commit is left."""
    commit = transaction.commit

    def faulty() -> None:
        fault()
        commit()

    monkeypatch.setattr(transaction, "commit", faulty)


async def test_a_commit_whose_answer_is_lost_took_place(
    storage: PostgresStorage, business: Business, proxied: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await claimed(storage)
    far = PostgresStorage(read(proxied))
    transaction = far.transaction(None, None)
    fault_at_commit(transaction, monkeypatch, lambda: proxy.set_faults(cuts=1))

    def run() -> str:
        transaction.begin()
        transaction.connection.execute(business.insert, ["first"])
        transaction.prepare()
        verdict = transaction.complete(RenewRequest(ALICE), completion(lease))
        transaction.close()
        return verdict

    assert await asyncio.to_thread(run) == "done"
    assert await state_of(storage, lease) is State.COMPLETED
    assert business.rows == ["first"]
    await far.close()


async def test_a_commit_that_did_not_arrive_did_nothing(
    storage: PostgresStorage, business: Business, proxied: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await claimed(storage)
    far = PostgresStorage(read(proxied))
    transaction = far.transaction(None, None)
    fault_at_commit(transaction, monkeypatch, proxy.reset)

    def run() -> None:
        transaction.begin()
        transaction.connection.execute(business.insert, ["first"])
        transaction.prepare()
        with pytest.raises(StorageUnavailableError):
            transaction.complete(RenewRequest(ALICE), completion(lease))
        transaction.close()

    await asyncio.to_thread(run)
    assert await state_of(storage, lease) is State.ACTIVE
    assert business.rows == []
    await far.close()


async def test_a_coroutine_does_not_fail_if_only_the_answer_was_lost(
    storage: PostgresStorage, business: Business, proxied: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, seen = Tenure(proxied), list[str]()
    commit = PostgresJobTransaction.commit

    def cut(transaction: PostgresJobTransaction) -> None:
        proxy.set_faults(cuts=1)
        commit(transaction)

    monkeypatch.setattr(PostgresJobTransaction, "commit", cut)

    @app.task(retry=Retry(max_attempts=3, base="10ms"))
    async def charge() -> None:
        try:
            async with current_job().transaction() as tx:
                await tx.connection.execute(business.insert, [current_job().id])
            seen.append("committed")
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    worker = app.worker()
    await worker.start()
    job = await charge.enqueue()
    await job.result(timeout=60)
    await worker.stop()
    record = await record_of(job)
    await app.storage.close()
    assert seen == ["committed"]
    assert record.starts == 1
    assert business.rows == [job.id]


async def test_a_frozen_handler_holds_the_gate_for_a_moment_only(storage: PostgresStorage, business: Business) -> None:
    lease = await claimed(storage)
    transaction = storage.transaction(None, None)

    def prepare() -> None:
        transaction.begin()
        transaction.connection.execute(business.insert, ["first"])
        transaction.prepare()

    def go_on() -> None:
        with pytest.raises(StorageUnavailableError):
            transaction.complete(RenewRequest(ALICE), completion(lease))
        transaction.close()

    await asyncio.to_thread(prepare)
    begun = time.monotonic()
    await storage.enqueue([new_job("second")])
    waited = time.monotonic() - begun
    await asyncio.to_thread(go_on)
    assert waited < IDLE / 1000 + ROOM
    assert await state_of(storage, lease) is State.ACTIVE
    assert business.rows == []


async def test_another_owner_cannot_complete_the_job(storage: PostgresStorage, business: Business) -> None:
    lease = await claimed(storage)
    transaction = storage.transaction(None, None)

    def run() -> str:
        transaction.begin()
        transaction.connection.execute(business.insert, ["first"])
        transaction.prepare()
        verdict = transaction.complete(RenewRequest(BOB), completion(lease))
        transaction.close()
        return verdict

    assert await asyncio.to_thread(run) == "lost"
    assert await state_of(storage, lease) is State.ACTIVE
    assert business.rows == []


async def test_a_run_that_was_put_back_cannot_commit(storage: PostgresStorage, business: Business) -> None:
    lease = await claimed(storage)
    # The worker has abandoned the run; its thread continues.
    await storage.exchange(ALICE, [completion(lease)])
    transaction = storage.transaction(None, None)

    def run() -> str:
        transaction.begin()
        transaction.connection.execute(business.insert, ["first"])
        transaction.prepare()
        verdict = transaction.complete(RenewRequest(ALICE), completion(lease))
        transaction.close()
        return verdict

    assert await asyncio.to_thread(run) == "duplicate"
    assert business.rows == []


async def test_deferred_constraints_are_checked_before_the_gate(storage: PostgresStorage, business: Business) -> None:
    schema = business.schema
    business.execute(f'CREATE TABLE "{schema}".customer (id text PRIMARY KEY)')
    business.execute(
        f'ALTER TABLE "{schema}".charge ADD FOREIGN KEY (job) REFERENCES "{schema}".customer DEFERRABLE '
        "INITIALLY DEFERRED"
    )
    transaction = storage.transaction(None, None)

    def run() -> None:
        transaction.begin()
        transaction.connection.execute(business.insert, ["unknown"])
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            transaction.prepare()
        transaction.close()

    await asyncio.to_thread(run)
    assert business.rows == []


async def test_handlers_and_the_engine_do_not_block_each_other(
    storage: PostgresStorage, business: Business, postgres_url: str
) -> None:
    """Handlers hold locks of their rows while they wait for the gate. The engine has the gate, and waits for no row."""
    app = Tenure(postgres_url)
    business.execute(f"INSERT INTO \"{business.schema}\".charge VALUES ('shared')")
    update = f"UPDATE \"{business.schema}\".charge SET job = job WHERE job = 'shared'".encode()

    @app.task(retry=ONCE, concurrency_key="one", concurrency_limit=20)
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await tx.connection.execute(update)
            await tx.connection.execute(business.insert, [current_job().id])
            await asyncio.sleep(0.01)

    worker = app.worker(concurrency=20)
    await worker.start()
    jobs = await app.enqueue_many([charge.call() for _ in range(40)])
    async with asyncio.timeout(90):
        for job in jobs:
            await job.result()
    await worker.stop()
    await app.storage.close()
    assert business.rows == sorted([*(job.id for job in jobs), "shared"])


# --- the handler's own connection ------------------------------------------------------------------


async def test_a_handler_may_bring_its_own_connection(business: Business, postgres_url: str) -> None:
    app = Tenure(postgres_url)
    found: list[Any] = []

    @app.task(retry=ONCE)
    async def on_loop() -> int:
        # Its settings are those of the handler, also in the block; rows as dicts would disturb the engine.
        connect: Any = psycopg.AsyncConnection.connect
        async with await connect(business.server, row_factory=dict_row) as connection:
            async with current_job().transaction(connection) as tx:
                assert tx.connection is connection
                await connection.execute(business.insert, [current_job().id])
                found.append(
                    await (await connection.execute("SELECT current_setting('search_path') AS path")).fetchone()
                )
                with pytest.raises(psycopg.ProgrammingError):
                    await connection.commit()
                tx.complete(1)
            found.append(await (await connection.execute("SELECT current_setting('search_path') AS path")).fetchone())
        return 0

    @app.task(retry=ONCE)
    def in_thread() -> int:
        with psycopg.connect(business.server) as connection:
            with current_job().transaction(connection) as tx:
                connection.execute(business.insert, [current_job().id])
                tx.complete(2)
            assert connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        return 0

    worker = app.worker()
    await worker.start()
    jobs = [await on_loop.enqueue(), await in_thread.enqueue()]
    assert [await job.result(timeout=30) for job in jobs] == [1, 2]
    await worker.stop()
    await app.storage.close()
    assert business.rows == sorted(job.id for job in jobs)
    assert found[0] == found[1]


def elsewhere(business: Business) -> "psycopg.Connection[Any]":
    return psycopg.connect(business.server.rpartition("/")[0] + "/postgres")


def no_connection(business: Business) -> object:
    return object()


def serializable(business: Business) -> "psycopg.Connection[Any]":
    connection = psycopg.connect(business.server)
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    return connection


def in_transaction(business: Business) -> "psycopg.Connection[Any]":
    connection = psycopg.connect(business.server)
    connection.execute("SELECT 1")
    return connection


@pytest.mark.parametrize(
    ("connect", "message"),
    [
        (elsewhere, "does not lead to the database of the queue"),
        (serializable, "needs READ COMMITTED"),
        (in_transaction, "is in a transaction"),
        (no_connection, "cannot use a builtins.object"),
    ],
)
async def test_a_connection_that_cannot_be_used_is_refused(
    business: Business, postgres_url: str, connect: Callable[[Business], Any], message: str
) -> None:
    app = Tenure(postgres_url)

    @app.task(retry=ONCE)
    def charge() -> str:
        connection = connect(business)
        try:
            with pytest.raises(UsageError, match=message), current_job().transaction(connection):
                pass
        finally:
            with suppress(AttributeError):
                connection.close()
        return "refused"

    worker = app.worker()
    await worker.start()
    assert await (await charge.enqueue()).result(timeout=30) == "refused"
    await worker.stop()
    await app.storage.close()


async def test_a_connection_of_the_other_kind_is_refused(business: Business, postgres_url: str) -> None:
    app = Tenure(postgres_url)

    @app.task(retry=ONCE)
    async def charge() -> str:
        connection = psycopg.connect(business.server)
        with pytest.raises(UsageError, match="would block the event loop"):
            async with current_job().transaction(connection):
                pass
        connection.close()
        return "refused"

    worker = app.worker()
    await worker.start()
    assert await (await charge.enqueue()).result(timeout=30) == "refused"
    await worker.stop()
    await app.storage.close()


async def test_the_wait_for_the_gate_ends_with_a_cancellation(
    storage: PostgresStorage, business: Business, postgres_url: str
) -> None:
    app, entered = Tenure(postgres_url), asyncio.Event()
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        """Hold the gate for as long as the test wants."""
        with psycopg.connect(business.server) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [storage.address.gate])
            held.set()
            assert go_on.wait(60)

    @app.task(retry=ONCE, timeout="1s")
    async def charge() -> None:
        async with current_job().transaction() as tx:
            await tx.connection.execute(business.insert, [current_job().id])
            holding = asyncio.create_task(asyncio.to_thread(hold))
            await asyncio.to_thread(held.wait, 60)
            entered.set()
            del holding

    worker = app.worker()
    await worker.start()
    job = await charge.enqueue()
    await entered.wait()
    # The run has ended and returns the connection, although the gate is not free.
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE '%SET CONSTRAINTS%'"
    async with asyncio.timeout(9):
        while not business.execute(waits):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        while business.execute(waits):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    go_on.set()
    while await job.state() is State.ACTIVE:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    record = await record_of(job)
    await worker.stop()
    await app.storage.close()
    assert (record.state, record.reason) == (State.FAILED, "timeout")
    assert business.rows == []


def sqlalchemy_url(business: Business) -> str:
    return business.server.replace("postgresql://", "postgresql+psycopg://")


async def test_sqlalchemy_sessions_complete_the_job(business: Business, postgres_url: str) -> None:
    app = Tenure(postgres_url)
    insert = sqlalchemy.text(f'INSERT INTO "{business.schema}".charge VALUES (:job)')
    committed: list[str] = []

    def note(session: Any) -> None:
        committed.append("committed")

    @app.task(retry=ONCE)
    async def on_loop() -> int:
        session = sqlalchemy.ext.asyncio.AsyncSession(waiting)
        async with session, current_job().transaction(session) as tx:
            assert tx.connection is session
            await session.execute(insert, {"job": current_job().id})
            tx.complete(1)
        return 1

    @app.task(retry=ONCE)
    def in_thread() -> int:
        with sqlalchemy.orm.Session(plain) as session:
            sqlalchemy.event.listen(session, "after_commit", note)
            with current_job().transaction(session) as tx:
                session.execute(insert, {"job": current_job().id})
                tx.complete(2)
        return 2

    @app.task(retry=ONCE)
    async def failing() -> None:
        async with sqlalchemy.ext.asyncio.AsyncSession(waiting) as session, current_job().transaction(session):
            await session.execute(insert, {"job": current_job().id})
            raise ValueError

    waiting = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(business))
    plain = sqlalchemy.create_engine(sqlalchemy_url(business))
    async with working(app):
        jobs = [await on_loop.enqueue(), await in_thread.enqueue()]
        failed = await failing.enqueue()
        assert [await job.result(timeout=30) for job in jobs] == [1, 2]
        with pytest.raises(JobFailedError):
            await failed.result(timeout=30)
    await waiting.dispose()
    plain.dispose()
    assert business.rows == sorted(job.id for job in jobs)
    assert committed == ["committed"]


async def test_an_orm_object_is_flushed_before_the_completion(business: Business, postgres_url: str) -> None:
    app = Tenure(postgres_url)

    class Base(sqlalchemy.orm.DeclarativeBase):
        metadata = sqlalchemy.MetaData(schema=business.schema)

    class Charge(Base):
        __tablename__ = "charge"
        job: sqlalchemy.orm.Mapped[str] = sqlalchemy.orm.mapped_column(primary_key=True)

    @app.task(retry=ONCE)
    async def charge() -> None:
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session, current_job().transaction(session):
            session.add(Charge(job=current_job().id))

    engine = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(business))
    async with working(app):
        job = await charge.enqueue()
        await job.result(timeout=30)
    await engine.dispose()
    assert business.rows == [job.id]


async def test_a_hook_that_fails_after_the_commit_does_not_fail_the_job(
    business: Business, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Tenure(postgres_url)
    insert = sqlalchemy.text(f'INSERT INTO "{business.schema}".charge VALUES (:job)')

    def fail(session: Any) -> None:
        raise KeyError("a hook")

    @app.task(retry=Retry(max_attempts=3, base="10ms"))
    def charge() -> None:
        with sqlalchemy.orm.Session(plain) as session:
            sqlalchemy.event.listen(session, "after_commit", fail)
            with current_job().transaction(session):
                session.execute(insert, {"job": current_job().id})

    plain = sqlalchemy.create_engine(sqlalchemy_url(business))
    async with working(app):
        job = await charge.enqueue()
        await job.result(timeout=30)
        while "code after its transaction failed: KeyError" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        record = await record_of(job)
    plain.dispose()
    assert (record.state, record.starts) == (State.COMPLETED, 1)
    assert business.rows == [job.id]


async def test_a_hook_before_the_commit_writes_to_the_handlers_own_tables(
    business: Business, postgres_url: str
) -> None:
    """The schema of the queue has tables of common names, such as event. They must not be found in their place."""
    app, engine = Tenure(postgres_url), sqlalchemy.create_engine(sqlalchemy_url(business))
    paths: list[str] = []

    @app.task(retry=ONCE)
    def charge() -> None:
        with sqlalchemy.orm.Session(engine) as session:
            session.execute(sqlalchemy.text("SET LOCAL search_path TO audit, public"))

            def note(given: sqlalchemy.orm.Session) -> None:
                paths.append(given.scalar(sqlalchemy.text("SELECT current_setting('search_path')")))

            sqlalchemy.event.listen(session, "before_commit", note)
            with current_job().transaction(session):
                session.execute(sqlalchemy.text("SELECT 1"))

    async with working(app):
        await (await charge.enqueue()).result(timeout=30)
    engine.dispose()
    assert paths == ["audit, public"]


async def test_a_sqlalchemy_driver_that_is_not_psycopg_is_refused(business: Business, postgres_url: str) -> None:
    app = Tenure(postgres_url)

    @app.task(retry=ONCE)
    async def charge() -> str:
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
            with pytest.raises(UsageError, match=r"use the dialect postgresql\+psycopg"):
                async with current_job().transaction(session):
                    pass
        return "refused"

    engine = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(business).replace("+psycopg:", "+asyncpg:"))
    async with working(app):
        assert await (await charge.enqueue()).result(timeout=30) == "refused"
    await engine.dispose()


async def test_a_session_whose_commit_may_keep_the_gate_is_refused(business: Business, postgres_url: str) -> None:
    """The end of the block must end the transaction: until then no other process can change a job."""
    app, engine = Tenure(postgres_url), sqlalchemy.create_engine(sqlalchemy_url(business))

    @app.task(retry=ONCE)
    def charge(how: str) -> str | None:
        with engine.connect() as outer, outer.begin() as begun:
            bound = sqlalchemy.orm.Session(outer if how == "joined" else engine, twophase=how == "twophase")
            with (
                bound as session,
                pytest.raises(UsageError, match=r"bind the session to an engine|two phases"),
                current_job().transaction(session),
            ):
                session.execute(sqlalchemy.text(f'INSERT INTO "{business.schema}".charge VALUES (1)'))
            begun.rollback()
        return "refused"

    async with working(app):
        for how in ("joined", "twophase"):
            assert await (await charge.enqueue(how)).result(timeout=30) == "refused"
    engine.dispose()
    assert business.rows == []


@pytest.fixture
def django_alias(business: Business) -> Iterator[str]:
    """Return the alias of Django's connection to the database of the queue."""
    if not SETTINGS.configured:
        SETTINGS.configure(DATABASES={})
    importlib.import_module("django").setup()
    alias, parts = business.schema, urlsplit(business.server)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
    dummy = {"ENGINE": "django.db.backends.dummy"}
    DATABASES.settings[alias] = DATABASES.configure_settings({"default": dummy, alias: database})[alias]
    yield alias
    del DATABASES.settings[alias]


async def test_djangos_connection_completes_the_job(business: Business, postgres_url: str, django_alias: str) -> None:
    app = Tenure(postgres_url)
    hooks: list[str] = []
    insert = f'INSERT INTO "{business.schema}".charge VALUES (%s)'

    def write(connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(insert, [current_job().id])

    @app.task(retry=ONCE)
    def charge(how: str) -> None:
        connection: Any = DATABASES[django_alias]
        try:
            with current_job().transaction(connection):
                write(connection)
                DJANGO.on_commit(lambda: hooks.append(how), using=django_alias)
                if how == "raises":
                    raise ValueError
                if how == "swallows":
                    with suppress(ValueError), DJANGO.atomic(using=django_alias, savepoint=False):
                        raise ValueError
        finally:
            connection.close()

    async with working(app):
        jobs = {how: await charge.enqueue(how) for how in ("returns", "raises", "swallows")}
        await jobs["returns"].result(timeout=30)
        for how in ("raises", "swallows"):
            with pytest.raises(JobFailedError):
                await jobs[how].result(timeout=30)
    assert business.rows == [jobs["returns"].id]
    assert hooks == ["returns"]


async def test_djangos_connection_without_autocommit_is_refused(
    business: Business, postgres_url: str, django_alias: str
) -> None:
    app = Tenure(postgres_url)

    @app.task(retry=ONCE)
    def charge() -> str | None:
        connection: Any = DATABASES[django_alias]
        connection.set_autocommit(False)
        try:
            with pytest.raises(UsageError, match="autocommit is off"), current_job().transaction(connection):
                pass
        finally:
            connection.close()
        return "refused"

    async with working(app):
        assert await (await charge.enqueue()).result(timeout=30) == "refused"
