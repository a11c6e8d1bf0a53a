"""What the Python adapters share: the conversation, the clock and the tally; standard library only."""

import asyncio
import json
import platform
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

from benchmarks.peers.order import About, Order
from benchmarks.peers.tally import Tally

READERS = 50
READ_FOR = 3.0
TICK = 0.001

Row = tuple[Any, ...]

T = TypeVar("T")


class Cannot(Exception):
    """The peer does not have this feature; says why."""


class Peer(ABC):
    """The base of both kinds: an order, a tally, and the facts about the peer."""

    about: ClassVar[About]

    def __init__(self, order: Order) -> None:
        self.order = order
        self.tally = Tally(order.tally)

    @classmethod
    def describe(cls, url: str) -> About:
        """Return `about`; overridden where one adapter serves two storages."""
        return cls.about


class AsyncPeer(Peer):
    """A peer whose producers and workers are coroutines; on uvloop if its environment has it."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, define the tasks; before the clock runs."""

    @abstractmethod
    async def enqueue(self, task: str, *row: Any) -> object:
        """Enqueue one job; return what `result` needs."""

    async def enqueue_many(self, task: str, rows: Sequence[Row]) -> Sequence[object]:
        """Enqueue many jobs in one call; return what `result` needs of each."""
        raise Cannot("it has no call that enqueues many jobs")

    async def result(self, handle: object) -> object:
        """Return the result of a job that has run, waiting for it if it is not there yet."""
        raise Cannot("it keeps no results")

    @abstractmethod
    async def work(self) -> None:
        """Run a worker until the process is ended; on the recommended settings, acknowledging after the work."""


class SyncPeer(Peer):
    """A peer whose producers and workers are threads; `callers` are threads."""

    @abstractmethod
    def open(self) -> None:
        """Connect, define the tasks; before the clock runs."""

    @abstractmethod
    def enqueue(self, task: str, *row: Any) -> object:
        """Enqueue one job, from any thread; return what `result` needs."""

    def enqueue_many(self, task: str, rows: Sequence[Row]) -> Sequence[object]:
        """Enqueue many jobs in one call; return what `result` needs of each."""
        raise Cannot("it has no call that enqueues many jobs")

    def result(self, handle: object) -> object:
        """Return the result of a job that has run, waiting for it if it is not there yet."""
        raise Cannot("it keeps no results")

    @abstractmethod
    def work(self) -> None:
        """Run a worker until the process is ended; on the recommended settings, acknowledging after the work."""


def main(kind: type[AsyncPeer] | type[SyncPeer]) -> None:
    """Obey the order on the command line."""
    order = Order.of_json(sys.argv[1])
    if order.do == "describe":
        _say("described", **asdict(_described(kind, order.url)))
        return
    try:
        peer = kind(order)
        if isinstance(peer, SyncPeer):
            _obey(peer, order)
        else:
            _run(_obey_async(peer, order))
    except Cannot as why:
        _say("cannot", why=str(why))


def _described(kind: type[Peer], url: str) -> About:
    about = kind.describe(url)
    return replace(
        about,
        interpreter=f"{platform.python_implementation()} {platform.python_version()}",
        versions={**about.versions, **{package: version(package) for package in about.packages}},
    )


def _run(obeyed: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop  # type: ignore[import-not-found,unused-ignore]  # pyright: ignore
    except ImportError:
        asyncio.run(obeyed)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # pyright: ignore
            runner.run(obeyed)


# --- coroutines ------------------------------------------------------------------------------------


async def _obey_async(peer: AsyncPeer, order: Order) -> None:
    await peer.open()
    _say("ready")
    await asyncio.to_thread(_heard)
    if order.do == "work":
        await peer.work()
        return
    made: list[tuple[int, object]] = []
    async with _Timed(made):
        await (_pace_async if order.do == "pace" else _enqueue_async)(peer, order, made)
    if (ran := _ran(await asyncio.to_thread(_heard))) is not None:
        await _read_async(peer, order, [job for job in made if job[0] in ran])


async def _enqueue_async(peer: AsyncPeer, order: Order, made: list[tuple[int, object]]) -> None:
    numbers = _numbers(order)

    async def caller() -> None:
        for number in numbers:
            made.append((number, await peer.enqueue(order.task, *order.row(number))))

    async def sender() -> None:
        while batch := list(islice(numbers, order.batch)):
            made.extend(zip(batch, await peer.enqueue_many(order.task, [*map(order.row, batch)]), strict=True))

    if order.callers == 1:
        await (sender() if order.batch > 1 else caller())
    else:
        await asyncio.gather(*(caller() for _ in range(order.callers)))


async def _pace_async(peer: AsyncPeer, order: Order, made: list[tuple[int, object]]) -> None:
    async def send(number: int) -> None:
        peer.tally.started(number)
        made.append((number, await peer.enqueue(order.task, *order.row(number))))

    if not order.rate:
        for number in _numbers(order):
            await asyncio.sleep(_rest())
            await send(number)
        return
    sending: set[asyncio.Task[None]] = set()
    for due in _due(order):
        for number in due:
            task = asyncio.create_task(send(number))
            sending.add(task)
            task.add_done_callback(sending.discard)
        await asyncio.sleep(TICK)
    await asyncio.gather(*sending)


async def _read_async(peer: AsyncPeer, order: Order, made: list[tuple[int, object]]) -> None:
    began, jobs, wrong = time.perf_counter(), 0, 0
    handles = iter(made)

    async def reader() -> None:
        nonlocal jobs, wrong
        for number, handle in handles:
            value = await peer.result(handle)
            jobs += 1
            wrong += value != order.row(number)[1]
            if time.perf_counter() - began > READ_FOR:
                return

    await asyncio.gather(*(reader() for _ in range(READERS)))
    _say("read", jobs=jobs, wrong=wrong, seconds=time.perf_counter() - began)


# --- threads ---------------------------------------------------------------------------------------


def _obey(peer: SyncPeer, order: Order) -> None:
    peer.open()
    _say("ready")
    _heard()
    if order.do == "work":
        peer.work()
        return
    made: list[tuple[int, object]] = []
    with _Timed(made):
        (_pace if order.do == "pace" else _enqueue)(peer, order, made)
    if (ran := _ran(_heard())) is not None:
        _read(peer, order, [job for job in made if job[0] in ran])


def _enqueue(peer: SyncPeer, order: Order, made: list[tuple[int, object]]) -> None:
    numbers = _Shared(_numbers(order))

    def caller() -> None:
        for number in numbers:
            made.append((number, peer.enqueue(order.task, *order.row(number))))

    def sender() -> None:
        while batch := list(islice(numbers, order.batch)):
            made.extend(zip(batch, peer.enqueue_many(order.task, [*map(order.row, batch)]), strict=True))

    if order.callers == 1:
        (sender if order.batch > 1 else caller)()
    else:
        _in_threads(caller, order.callers)


def _pace(peer: SyncPeer, order: Order, made: list[tuple[int, object]]) -> None:
    def send(number: int) -> None:
        peer.tally.started(number)
        made.append((number, peer.enqueue(order.task, *order.row(number))))

    if not order.rate:
        for number in _numbers(order):
            time.sleep(_rest())
            send(number)
        return
    for due in _due(order):
        for number in due:
            send(number)
        time.sleep(TICK)


def _read(peer: SyncPeer, order: Order, made: list[tuple[int, object]]) -> None:
    began = time.perf_counter()
    handles = _Shared(iter(made))
    right: list[bool] = []

    def reader() -> None:
        for number, handle in handles:
            right.append(peer.result(handle) == order.row(number)[1])
            if time.perf_counter() - began > READ_FOR:
                return

    _in_threads(reader, READERS)
    _say("read", jobs=len(right), wrong=right.count(False), seconds=time.perf_counter() - began)


class _Shared(Generic[T]):
    """An iterator that several threads may draw from."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            return next(self._items)


def _in_threads(target: Callable[[], None], count: int) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            target()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


# --- both ------------------------------------------------------------------------------------------


class _Timed:
    """Measures how many jobs were enqueued in its block, and how long that took."""

    def __init__(self, made: list[tuple[int, object]]) -> None:
        self._made = made

    def __enter__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
            _say("enqueued", jobs=len(self._made), seconds=seconds, cpu=cpu)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self.__exit__(kind, error, trace)


def _numbers(order: Order) -> Iterator[int]:
    """Yield the numbers of the jobs for as long as the order says."""
    end = time.perf_counter() + order.seconds if order.seconds else float("inf")
    for number in range(order.first, order.first + order.jobs):
        yield number
        if time.perf_counter() >= end:
            return


def _due(order: Order) -> Iterator[range]:
    """Yield the numbers of the jobs that have become due since the last ones, by the clock."""
    began, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < order.seconds and sent < order.jobs:
        due = min(int(passed * order.rate), order.jobs)
        yield range(order.first + sent, order.first + due)
        sent = due


def _rest() -> float:
    # A random length, so as not to keep step with the polling of a worker.
    return random.uniform(0.005, 0.015)


def _say(word: str, **what: object) -> None:
    print(json.dumps({"say": word, **what}), flush=True)


def _heard() -> str:
    return sys.stdin.readline().strip()


def _ran(heard: str) -> range | None:
    word, *numbers = heard.split() or [""]
    if word != "read":
        return None
    first, last = map(int, numbers)
    return range(first, last + 1)
