"""The writer: one thread of a process runs the operations that write. Those that wait together are committed together.

    verbs ──submit──► queue ──take ≤ 256──► the driver: begin ► each operation ► commit ──► futures, once per loop

It needs no timer: while one transaction is written, the next batch collects. If an operation fails, its batch is rolled
back and retried in halves, so that only the bad operation fails. This costs nothing while all operations succeed; a
savepoint for each operation would.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from tenure.clock import Clock
from tenure.errors import StorageUnavailableError
from tenure.storage.notifications import NotificationHub
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import recount

T = TypeVar("T")
Q = TypeVar("Q")

BATCH = 256
"""The maximum number of operations in one transaction."""

CALL_TIMEOUT = 30.0
"""After this number of seconds a caller gets an error, for any cause of the delay."""


class Operation:
    """One verb's work for the thread. `try_read_only` answers without writing, if it can.

    `run_all`: handles all adjacent operations of a transaction that have the same function, given the argument of each.
    """

    __slots__ = (
        "after_commit",
        "answer",
        "argument",
        "error",
        "future",
        "guarding",
        "loop",
        "owner",
        "run",
        "run_all",
        "signing_off",
        "since",
        "try_read_only",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        since: float,
        *,
        run: Callable[[Transaction], Any] | None = None,
        try_read_only: Callable[[Transaction], Any] | None = None,
        run_all: Callable[[Transaction, Sequence[Any]], Sequence[Any]] | None = None,
        argument: Any = None,
        owner: str | None = None,
        signing_off: bool = False,
        guarding: bool = False,
        after_commit: Callable[[Any], None] | None = None,
    ) -> None:
        self.run = run
        self.run_all = run_all
        self.argument = argument
        self.try_read_only = try_read_only
        self.owner = owner
        self.signing_off = signing_off
        self.guarding = guarding
        self.after_commit = after_commit
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.since = since
        self.answer: Any = None
        self.error: BaseException | None = None


class Writer(ABC):
    """Takes operations from any thread and event loop. A driver implements the abstract methods.

    `place`: the database, as error messages name it.
    """

    thread_name = "tenure-writer"

    def __init__(self, place: str, clock: Clock, hub: NotificationHub) -> None:
        self._place = place
        self._clock = clock
        self._hub = hub
        self.reset()

    def reset(self) -> None:
        """Reset after a fork: the thread and all waiting operations stayed in the parent."""
        self._guard = threading.Lock()
        self._reset_state()

    def _reset_state(self) -> None:
        self._queue: deque[Operation] = deque()
        self._front: deque[Operation] = deque()
        self._batch: list[Operation] = []
        self._wakeups = SimpleQueue[None]()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._watched: set[asyncio.AbstractEventLoop] = set()

    # ── what a driver does ────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _answer(self, wanted: list[Operation], topics: list[str]) -> None:
        """Give each operation its answer or error; add the topics to notify."""

    @abstractmethod
    def _attempt(self, batch: list[Operation], topics: list[str]) -> None:
        """Run operations in one transaction.

        Raises:
            StorageUnavailableError: none of the operations may be tried again.
        """

    @abstractmethod
    def _begin(self, tx: Transaction, operation: Operation | None) -> None:
        """Prepare a transaction for its next operation, or for its next group of operations that run together."""

    @abstractmethod
    def _roll_back(self) -> None:
        """Undo what a failed transaction has done."""

    @abstractmethod
    def _is_passing(self, error: Exception) -> bool:
        """Return True if a failed transaction did nothing, and a retry may succeed in a moment."""

    @abstractmethod
    def _pause(self) -> None:
        """Wait before a retry."""

    @abstractmethod
    def _rest(self, worked: bool) -> float | None:
        """Do what is due between two batches; return the seconds that the thread may wait for the next one."""

    @abstractmethod
    def _translate(self, error: BaseException) -> BaseException:
        """Return the error for the caller."""

    @abstractmethod
    def _no_thread(self, error: RuntimeError) -> BaseException:
        """Return the error of a call whose thread could not be started."""

    @abstractmethod
    def _overdue(self) -> StorageUnavailableError:
        """Return the error of a call that has waited too long."""

    @abstractmethod
    def _close(self) -> None:
        """Close what the thread has opened."""

    @abstractmethod
    def _give_up(self) -> None:
        """Interrupt a transaction whose operations have waited too long. Called on a loop, not on the thread."""

    # ── from any thread and loop ──────────────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        run: Callable[[Transaction], T],
        *,
        try_read_only: Callable[[Transaction], T | None] | None = None,
        owner: str | None = None,
        signing_off: bool = False,
        guarding: bool = False,
        after_commit: Callable[[T], None] | None = None,
        front: bool = False,
    ) -> "asyncio.Future[T]":
        """Submit an operation; the future gets its answer after the commit.

        `owner`: its life lock is taken first, so that other processes see it as alive. `signing_off`: the owner signs
        off with this operation. `guarding`: the owner belongs to another process, and its life lock is held here too.
        `after_commit`: called after the commit. `front`: before all operations that wait.

        Raises:
            StorageUnavailableError: no thread can run it.
        """
        loop = asyncio.get_running_loop()
        operation = Operation(
            loop,
            self._clock.uptime(),
            run=run,
            try_read_only=try_read_only,
            owner=owner,
            signing_off=signing_off,
            guarding=guarding,
            after_commit=after_commit,
        )
        self._send(operation, front=front)
        return operation.future

    def submit_with_others(
        self, run_all: Callable[[Transaction, Sequence[Q]], Sequence[T]], argument: Q
    ) -> "asyncio.Future[T]":
        """Submit a request that is handled together with other requests of its kind; the future gets its own answer.

        Raises:
            StorageUnavailableError: no thread can run it.
        """
        loop = asyncio.get_running_loop()
        operation = Operation(loop, self._clock.uptime(), run_all=run_all, argument=argument)
        self._send(operation, front=False)
        return operation.future

    def announce(self, topics: Sequence[str]) -> None:
        """Notify of the topics of a commit that another thread made."""
        self._hub.notify(topics)

    @property
    def busy(self) -> bool:
        """True while the thread runs operations."""
        return bool(self._batch)

    def wake(self) -> None:
        """Make sure that the thread checks for work."""
        if self._wakeups.empty():
            self._wakeups.put(None)
        if self._thread is None:
            self._start()

    def stop(self, timeout: float) -> None:
        """Finish the waiting operations, then end the thread. Blocks for at most `timeout` seconds."""
        self._stopping = True
        thread = self._thread
        if thread is not None:
            self._wakeups.put(None)
            thread.join(timeout)
        with self._guard:
            late = [*self._front, *self._queue]
            self._reset_state()
            # These operations came after the thread had ended, or while it hung. A new thread handles them.
            self._queue.extend(late)
        if late:
            self.wake()

    def _send(self, operation: Operation, *, front: bool) -> None:
        # Steps that can fail come first: an operation in the queue is always run, and its future gets the result.
        self._watch_over(operation.loop)
        if self._thread is None:
            self._start()
        with self._guard:
            (self._front if front else self._queue).append(operation)
        try:
            self.wake()
        except StorageUnavailableError:
            # `stop` ran in between, and no thread may be started again.
            with self._guard:
                for queue in (self._front, self._queue):
                    if operation in queue:
                        queue.remove(operation)
                        raise

    def _watch_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make a loop check once a second for its own operations that have waited too long."""
        if loop in self._watched:
            return
        loop.call_later(1, self._watch, loop)
        with self._guard:
            # Other loops join and leave the set meanwhile, each in its own thread.
            watched = tuple(self._watched)
        closed = [other for other in watched if other.is_closed()]
        with self._guard:
            self._watched.difference_update(closed)
            self._watched.add(loop)

    def _start(self) -> None:
        with self._guard:
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._work, name=self.thread_name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise self._no_thread(error) from error
                self._thread = thread

    # ── on the callers' loops ─────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail operations that have waited too long, because a stopped process holds a lock or the database hangs."""
        now = self._clock.uptime()
        with self._guard:
            waiting = [one for one in (*self._batch, *self._front, *self._queue) if one.loop is loop]
            if not waiting:
                self._watched.discard(loop)
        late = [one for one in waiting if now - one.since > CALL_TIMEOUT and not one.future.done()]
        for operation in late:
            operation.future.set_exception(self._overdue())
        if late:
            self._give_up()
        if waiting:
            loop.call_later(1, self._watch, loop)

    # ── on the thread ─────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        wakeups = self._wakeups
        while wakeups is self._wakeups:
            while not wakeups.empty():
                wakeups.get()
            worked = self._take()
            if worked:
                self._perform()
            elif self._stopping:
                break
            wait = self._rest(worked)
            if not worked:
                with suppress(Empty):
                    wakeups.get(timeout=wait)
        self._close()

    def _take(self) -> bool:
        with self._guard:
            while self._front and len(self._batch) < BATCH:
                self._batch.append(self._front.popleft())
            while self._queue and len(self._batch) < BATCH:
                self._batch.append(self._queue.popleft())
        return bool(self._batch)

    def _perform(self) -> None:
        batch = self._batch
        # Skip operations whose callers gave up before the work began.
        wanted = [operation for operation in batch if not operation.future.done()]
        topics: list[str] = []
        try:
            self._answer(wanted, topics)
        except Exception as error:
            # After any exception the callers get the error, and the thread goes on.
            for operation in wanted:
                if operation.error is None and operation.answer is None:
                    operation.error = self._translate(error)
        self._batch = []
        try:
            if topics:
                self._hub.notify(topics)
        finally:
            # Deliver last: each woken caller wants the interpreter lock at once, and the thread has only to wait then.
            _deliver(wanted)

    def _write(self, batch: list[Operation], topics: list[str]) -> None:
        """Run operations in one transaction; if it fails, in halves, so that only the bad operation fails."""
        while batch:
            try:
                self._attempt(batch, topics)
            except StorageUnavailableError:
                self._roll_back()
                raise
            except Exception as error:
                self._roll_back()
                if self._is_passing(error):
                    batch = self._without_overdue(batch)
                    self._pause()
                elif len(batch) == 1:
                    batch[0].error = self._translate(error)
                    return
                else:
                    half = len(batch) // 2
                    self._write(batch[:half], topics)
                    batch = batch[half:]
            else:
                return

    def _answers(self, tx: Transaction, batch: list[Operation]) -> list[Any]:
        """Run operations and write all that they have collected; return the answer of each."""
        answers: list[Any] = []
        for run_all, operations in groupby(batch, key=lambda operation: operation.run_all):
            if run_all is not None:
                argument = [operation.argument for operation in operations]
                self._begin(tx, None)
                answers += run_all(tx, argument)
                continue
            for operation in operations:
                self._begin(tx, operation)
                answers.append(None if operation.run is None else operation.run(tx))
        tx.flush()
        recount(tx)
        return answers

    def _without_overdue(self, batch: list[Operation]) -> list[Operation]:
        now = self._clock.uptime()
        for operation in batch:
            if now - operation.since > CALL_TIMEOUT:
                operation.error = self._overdue()
        return [operation for operation in batch if operation.error is None and not operation.future.done()]


def _deliver(batch: list[Operation]) -> None:
    loops: defaultdict[asyncio.AbstractEventLoop, list[Operation]] = defaultdict(list)
    for operation in batch:
        loops[operation.loop].append(operation)
    for loop, operations in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, operations)
        except RuntimeError:
            # The loop is closed, so no caller waits there any more.
            continue


def _resolve(operations: list[Operation]) -> None:
    for operation in operations:
        if operation.future.done():
            continue
        if operation.error is not None:
            operation.future.set_exception(operation.error)
        else:
            operation.future.set_result(operation.answer)
