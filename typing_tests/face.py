"""What the type checkers must know of the public API. Read by mypy and pyright, never run.

Each line that must be an error carries an ignore; both checkers are configured to report an unneeded ignore.
"""

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from io import StringIO
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TextIO, assert_type

import psycopg
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tenure import (
    TTL,
    All,
    AutoRedrive,
    Batch,
    Collect,
    Debounce,
    DeleteReport,
    Inject,
    Job,
    JobContext,
    JobFilter,
    JobInfo,
    JobPage,
    JobStalled,
    Proceed,
    ProceedSending,
    PurgeReport,
    Rate,
    Retry,
    Router,
    RunCall,
    Schedule,
    SendCall,
    Stall,
    TaskOptions,
    Tenure,
    Throttle,
    Unique,
    current_job,
)
from tenure.client.collecting import AsyncCollectTask
from tenure.core.deduplication import EnqueueAction

app = Tenure("memory://")


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task(queue="reports", timeout="5m", stall=Stall(interval="30s", max_count=1), retry=Retry(max_attempts=5))
def export(customer: int, *, name: str = "x") -> str:
    assert_type(current_job().fence, int)
    return f"{customer}{name}"


@app.task(name="later")
async def nothing() -> None: ...


def account(account_id: int) -> str:
    return f"account:{account_id}"


@app.task(
    ttl=TTL("1h", on_expire="discard"),
    singleton=True,
    concurrency_key=account,
    concurrency_limit=2,
    result_ttl="1d",
    auto_redrive=AutoRedrive("1h", times=3),
)
async def charge(account_id: int) -> bytes:
    return b""


@add.on_cancel
async def forget_sum(a: int, b: int) -> None: ...


@export.on_cancel
def remove_file(customer: int, *, name: str = "x") -> None: ...


@add.on_cancel  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def forget_other(a: int, b: str) -> None: ...


@export.on_cancel  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def remove_any() -> None: ...


router = Router(prefix="billing.", defaults=TaskOptions(queue="billing"))


@router.task
async def bill(account_id: int, *, cents: int = 1) -> str:
    return ""


@router.task(name="refund", timeout="5m")
def refund(account_id: int) -> int:
    return account_id


@router.task(tmeout="5m")  # type: ignore[call-overload,untyped-decorator]  # pyright: ignore[reportCallIssue, reportUntypedFunctionDecorator]
async def misspelt() -> None: ...


@router.declare(name="send", queue="mail", version=2)
async def send(to: str, *, copies: int = 1) -> bytes:
    raise NotImplementedError


@app.declare
def forget(account_id: int) -> None: ...


@app.implement(send)
async def deliver(to: str, *, copies: int = 1) -> bytes:
    return b""


@router.implement(forget, middleware=[])
def forgotten(account_id: int, hurry: bool = False) -> None: ...


@app.implement(send)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def deliver_other(to: int, *, copies: int = 1) -> bytes:
    return b""


@app.implement(send)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def deliver_text(to: str, *, copies: int = 1) -> str:
    return ""


app.implement(bill)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


@bill.migrate(from_version=1)
def upgrade(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


@bill.migrate(from_version=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def upgrade_nothing() -> None: ...


@app.task(version=2, since=1)
async def versioned(a: int) -> int:
    return a


@app.cron("0 4 * * *", tz="Europe/Vienna", missed=All(36), overlap="queue_one", queue="reports")
async def nightly(day: int = 0) -> int:
    return day


@app.cron("0 4 * * *", name="early")
@app.every("30s", name="often", missed="skip", args=[1], kwargs={"name": "y"})
@app.task
def stacked(customer: int, *, name: str = "x") -> str:
    return name


assert_type(stacked(1), str)
app.every("30s", missed="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
app.every("30s", overlap="all")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
app.cron("@daily", tmeout="5m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def schedules() -> None:
    assert_type(await nightly(7), int)
    assert_type(await nightly.enqueue(), Job[int])
    assert_type(await stacked.enqueue(7, name="z"), Job[str])
    await stacked.enqueue("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await app.schedules.put("nightly", add.call(1, 2), cron="0 4 * * *"), Schedule)
    await app.schedules.put("nightly", add.call(1, "2"), every="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.schedules.put("nightly", add, every="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await app.schedules.list(), tuple[Schedule, ...])
    assert_type(await app.schedules.next("nightly", 3), tuple[datetime, ...])
    assert_type(await app.schedules.trigger("nightly"), Job[Any])
    assert_type(current_job().scheduled_for, datetime | None)


app.include(router)
app.include(app)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@app.on(JobStalled)
async def page(event: JobStalled) -> None:
    assert_type(event.count, int)


class DB:
    def close(self) -> None: ...


def plain_db() -> DB:
    return DB()


async def coroutine_db() -> DB:
    return DB()


def generator_db() -> Generator[DB]:
    yield DB()


def iterator_db() -> Iterator[DB]:
    yield DB()


async def async_generator_db() -> AsyncGenerator[DB]:
    yield DB()


async def async_iterator_db() -> AsyncIterator[DB]:
    yield DB()


@contextmanager
def managed_db() -> Generator[DB]:
    yield DB()


@asynccontextmanager
async def async_managed_db(db: DB = Inject(plain_db)) -> AsyncGenerator[DB]:
    yield db


def opened_file() -> TextIO:
    return StringIO()


async def coroutine_file() -> TextIO:
    return StringIO()


def generator_file() -> Generator[TextIO]:
    yield StringIO()


def cursor() -> sqlite3.Cursor:
    return sqlite3.connect(":memory:").cursor()


class Stream:
    """An async iterator of an unrelated class."""

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> bytes:
        return b""

    async def aclose(self) -> None: ...


async def stream() -> Stream:
    return Stream()


def plain_stream() -> Stream:
    return Stream()


assert_type(Inject(plain_db), DB)
assert_type(Inject(coroutine_db), DB)
assert_type(Inject(generator_db), DB)
assert_type(Inject(iterator_db), DB)
assert_type(Inject(async_generator_db), DB)
assert_type(Inject(async_iterator_db), DB)
assert_type(Inject(managed_db), DB)
assert_type(Inject(async_managed_db), DB)
assert_type(Inject(DB), DB)
assert_type(Inject(opened_file), TextIO)
assert_type(Inject(cursor), sqlite3.Cursor)
assert_type(Inject(coroutine_file), TextIO)
assert_type(Inject(generator_file), TextIO)
assert_type(Inject(stream), Stream)
assert_type(Inject(plain_stream), Stream)
assert_type(Inject(current_job), JobContext)


@asynccontextmanager
async def lifespan(of: Tenure) -> AsyncGenerator[dict[str, DB]]:
    assert_type(of, Tenure)
    yield {"db": DB()}


living = Tenure("memory://", lifespan=lifespan)


@living.middleware
async def around(call: RunCall, proceed: Proceed) -> Any:
    assert_type(call.job, JobContext)
    return await proceed()


async def closer(call: RunCall, proceed: Proceed) -> Any:
    call.kwargs.clear()
    return await proceed()


@living.task(middleware=[closer])
async def pay(user: int, *, note: str = "", db: DB = Inject(generator_db)) -> int:
    assert_type(db, DB)
    return user


@pay.on_cancel
async def pay_back(user: int, *, note: str = "", db: DB = Inject(generator_db)) -> None: ...


async def composed() -> None:
    assert_type(await pay.enqueue(1, note="n"), Job[int])
    assert_type(await pay(1, db=DB()), int)
    with living.override(generator_db, plain_db):
        pass


@living.task
async def mistaken(db: str = Inject(plain_db)) -> None: ...  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]


@living.task
async def read(file: TextIO = Inject(opened_file), stream: Stream = Inject(plain_stream)) -> None: ...


@living.task
async def misread(chunk: bytes = Inject(plain_stream)) -> None: ...  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]


@living.middleware  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
async def too_few(call: RunCall) -> None: ...


living.task(middleware=[1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
Tenure("memory://", lifespan=around)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@dataclass
class Doc:
    name: str


@app.task(collect=Collect("{item.name}", delay="1s", max_size=100, max_wait="10s"), name="index", timeout="5m")
async def index(docs: list[Doc], db: str = Inject(str)) -> int:
    return len(docs)


@router.task(collect=Collect(key=str))
def store(numbers: list[int]) -> str:
    return ""


@router.declare(collect=Collect("{item.name}"), name="gather")
async def gather(docs: list[Doc]) -> int:
    raise NotImplementedError


@app.declare(collect=Collect())
def gather_all(docs: list[Doc]) -> int:
    raise NotImplementedError


@app.implement(gather)
async def stored(docs: list[Doc]) -> int:
    return len(docs)


@router.implement(gather_all)
def stored_all(docs: list[Doc]) -> int:
    return len(docs)


@app.implement(gather)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def stored_texts(docs: list[str]) -> int:
    return len(docs)


@app.declare(collect=Collect())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def gather_one(doc: Doc) -> int:
    raise NotImplementedError


@app.task(throttle=False, debounce=False, rate=False, fair_key=False, concurrency_key=False, unique=False)
async def undone() -> None: ...


@app.task(throttle=True)  # type: ignore[call-overload,untyped-decorator]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
async def overdone() -> None: ...


async def declared_gathering() -> None:
    assert_type(await gather.enqueue(Doc("a")), Job[int])
    assert_type(await stored([Doc("a")]), int)
    assert_type(stored_all([Doc("a")]), int)
    assert_type(await gather.collected("a"), Batch[Doc] | None)
    await gather.enqueue("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@index.on_cancel
async def unindex(docs: list[Doc]) -> None: ...


@index.on_cancel  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def unindex_one(doc: Doc) -> None: ...


@app.task(collect=Collect())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def takes_one(doc: Doc) -> int:
    return 0


@app.task(collect="1s")  # type: ignore[call-overload,untyped-decorator]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
async def misled(docs: list[Doc]) -> None: ...


def weight(account_id: int) -> int:
    return account_id


@app.task(
    unique=Unique("account:{account_id}", scope="5m"),
    throw_on_duplicate=True,
    throttle=Throttle(max=10, window="1m", on_limit="skip"),
    rate=["10/s", Rate(100, per="1m", key=account, burst=5)],
    fair_key="account:{account_id}",
    fair_weight=weight,
    strict=True,
    run="process",
)
async def report(account_id: int) -> float:
    return 0.0


@app.task(debounce=Debounce(account, delay="5s", max_wait="1m"), lifo=True, unique=False, rate="10/s")
async def save(account_id: int) -> None: ...


app.task(throttle=Throttle(max=10))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
app.task(search=("account", "order.id"))
app.task(search=[5])  # type: ignore[list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
app.task(unique=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
app.task(run="thread")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
app.task(rate=10)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def gathering() -> None:
    assert_type(index, AsyncCollectTask[Doc, int])
    job = await index.enqueue(Doc("a"))
    assert_type(job, Job[int])
    assert_type(job.action, EnqueueAction)
    assert_type(index.enqueue_sync(Doc("a")).result_sync(), int)
    assert_type(await index.enqueue_and_wait(Doc("a")), int)
    assert_type(await index.options(priority=5, fair_key="a", fair_weight=3).enqueue(Doc("a")), Job[int])
    assert_type(await app.enqueue_many([index.call(Doc("a"))]), list[Job[int]])
    assert_type(await index.collected("a"), Batch[Doc] | None)
    assert_type(await index([Doc("a")], db="x"), int)
    assert_type(await store.enqueue(7), Job[str])
    assert_type(store([7]), str)
    await index.enqueue([Doc("a")])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await index.enqueue("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await index.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await index.enqueue_and_wait([Doc("a")])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    index.enqueue_sync(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    index.call([Doc("a")])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await index.options(lifo=False).enqueue([])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await index(Doc("a"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await report.options(unique="k", throw_on_duplicate=False, lifo=False).enqueue(7), Job[float])
    assert_type(await report.options(unique=Unique(scope="queued")).enqueue(7), Job[float])
    report.options(unique=account)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    report.options(fair_weight=weight)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await report.set_rate("100/s")
    await report.set_rate(None, by="ops")
    await app.queue("default").set_rate(Rate(5))
    await report.set_rate(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def right() -> None:
    job = await add.enqueue(1, 2)
    assert_type(job, Job[int])
    assert_type(await job.result(), int)
    assert_type(await job.result(timeout="5s"), int)
    assert_type(add.enqueue_sync(1, b=2).result_sync(timeout=timedelta(seconds=1)), int)
    assert_type(await add(1, 2), int)
    assert_type(export(1), str)
    assert_type(await (await export.enqueue(1, name="a")).result(), str)
    assert_type(await (await nothing.enqueue()).result(), None)
    assert_type(await add.options(delay="5m", priority=5).enqueue(3, 4), Job[int])
    assert_type(await app.enqueue_many(add.call(i, i) for i in range(3)), list[Job[int]])
    assert_type(app.job("id", export), Job[str])
    assert_type(app.job("id"), Job[Any])
    assert_type([job async for job in app.jobs.list(JobFilter(states=["waiting"], since="2h"))], list[JobInfo])
    assert_type(list(app.jobs.list_sync(limit=5)), list[JobInfo])
    assert_type(await app.jobs.page(after="7"), JobPage)
    assert_type(await app.jobs.counts("task"), dict[str, int])
    assert_type(await app.jobs.delete([job, app.job("id")]), DeleteReport)
    assert_type(await app.jobs.purge(JobFilter(queues=["mail"]), by="ops"), PurgeReport)
    await app.jobs.counts("colour")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.jobs.delete("id")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await job.cancel("not needed")
    await job.retain("2d")
    assert_type(await charge.enqueue_and_wait(7), bytes)
    assert_type(await bill.enqueue(7, cents=2), Job[str])
    assert_type(await bill(7), str)
    assert_type(refund(7), int)
    assert_type(await send.enqueue("a", copies=2), Job[bytes])
    assert_type(await (await send.options(delay=1).enqueue("a")).result(), bytes)
    assert_type(await forget.enqueue_and_wait(1), None)
    assert_type(await deliver("a"), bytes)
    assert_type(app.job("id", send), Job[bytes])
    assert_type(await versioned.enqueue(1), Job[int])
    assert_type(await refund.options(delay="5m").enqueue_and_wait(7), int)
    assert_type(charge.enqueue_and_wait_sync(account_id=7), bytes)
    assert_type(await add.options(ttl="30m", result_ttl=60, concurrency_key="k", wait="5s").enqueue_and_wait(1, 2), int)


class Order(BaseModel):
    id: int


class Invoice(BaseModel):
    id: int


@app.task
async def ship(order: Order, file: Path = Path("a"), *hosts: IPv4Address) -> list[Order]:
    return [order]


async def models() -> None:
    job = await ship.enqueue(Order(id=7), Path("b"), IPv4Address("10.0.0.1"))
    assert_type(job, Job[list[Order]])
    assert_type(await job.result(), list[Order])
    Tenure("memory://", types={Fraction: (str, Fraction)})


@app.sending
async def layer(call: SendCall, proceed: ProceedSending) -> None:
    assert_type(call.headers, dict[str, str])
    assert_type(await proceed(), None)


@app.sending  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def not_async(call: SendCall, proceed: ProceedSending) -> None: ...


async def wrong() -> None:
    await add.enqueue(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await add.enqueue("1", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await add.enqueue(1, 2, 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await export.enqueue(1, nam="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    add.enqueue_sync(a="1", b=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.call(None, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.options(dely="5m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await add.options(delay="5m").enqueue("x", 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await charge.enqueue_and_wait("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await send.enqueue(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await send.enqueue("a", 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await bill.enqueue("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.options(headers={"a": 1})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    current_job().headers["a"] = "b"  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
    charge.options(ttl=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ship.enqueue("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ship.enqueue({"id": 7})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ship.options(delay="5m").enqueue(Invoice(id=7))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ship.enqueue(Order(id=7), Path("a"), IPv4Address("::1"), "b")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Tenure("memory://", types={Order: str})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    text: str = await (await add.enqueue(1, 2)).result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    del text


async def in_transactions(
    one: psycopg.Connection[Any],
    other: psycopg.AsyncConnection[Any],
    session: Session,
    async_session: AsyncSession,
    file: sqlite3.Connection,
) -> None:
    for connection in (one, other, session, async_session, file):
        await add.options(tx=connection).enqueue(1, 2)
    await app.enqueue_many([add.call(1, 2)], tx=session)
    add.options(tx=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.options(tx="postgresql://")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.enqueue_many([add.call(1, 2)], tx=app)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with current_job().transaction() as tx:
        tx.complete()
    async with current_job().transaction(async_session) as own:
        assert_type(own.connection, AsyncSession)
