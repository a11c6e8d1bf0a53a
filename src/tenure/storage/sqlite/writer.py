"""The writer: the one thread of a process that writes. Operations that wait together are committed together.

    verbs ──submit──► queue ──take ≤ 256──► lock file ► BEGIN ► each operation ► COMMIT ──► futures, once per loop

It needs no timer: while one transaction is written, the next batch collects. If an operation fails, its batch is rolled
back and retried in halves, so that only the bad operation fails. This costs nothing while all operations succeed; a
savepoint for each operation would.
"""

import asyncio
import sqlite3
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from tenure.clock import Clock, entropy
from tenure.errors import StorageUnavailableError
from tenure.storage.notifications import NotificationHub
from tenure.storage.sql import claim_numbers
from tenure.storage.sql.transaction import Lanes, Transaction
from tenure.storage.sql.transitions import recount
from tenure.storage.sqlite import errors
from tenure.storage.sqlite.change_monitor import ChangeMonitor
from tenure.storage.sqlite.checkpoint import Checkpoints
from tenure.storage.sqlite.locks import Locks
from tenure.storage.sqlite.poll_interval import PollInterval
from tenure.storage.sqlite.session import ThreadConnection
from tenure.storage.sqlite.statements import STATEMENTS
from tenure.storage.sqlite.transaction import SQLiteTransaction

T = TypeVar("T")
Q = TypeVar("Q")

BATCH = 256
"""The maximum number of operations in one transaction."""

UNCHECKED_BATCHES = 8
"""After this number of batches the thread checks for changes by other processes, even without a pause in its work."""

UNCHECKED_SECONDS = 0.04
"""The same limit in seconds, for slow batches."""

CALL_TIMEOUT = 30.0
"""After this number of seconds a caller gets an error, for any cause of the delay."""

_WRITE = STATEMENTS["session.write"]
_COMMIT = STATEMENTS["session.commit"]
_ROLLBACK = STATEMENTS["session.rollback"]
_EMPTY_LOG = STATEMENTS["session.empty_log"]


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


class Writer:
    """Takes operations from any thread and event loop."""

    def __init__(self, path: str, session: ThreadConnection, locks: Locks, clock: Clock, hub: NotificationHub) -> None:
        self._path = path
        self._session = session
        self._locks = locks
        self._clock = clock
        self._hub = hub
        self._checkpoints = Checkpoints(path, clock)
        self._jitter = entropy()
        self._lanes: Lanes = {}
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
        self._changes = ChangeMonitor()
        self._poll_interval = PollInterval()

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
        `after_commit`: called after the commit.

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

    def _start(self) -> None:
        with self._guard:
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._work, name="tenure-sqlite-writer", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise errors.no_thread(error, self._path) from error
                self._thread = thread

    # ── on the callers' loops ─────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail operations that have waited too long, because a stopped process holds the lock or the disk hangs."""
        now = self._clock.uptime()
        with self._guard:
            waiting = [one for one in (*self._batch, *self._front, *self._queue) if one.loop is loop]
            if not waiting:
                self._watched.discard(loop)
        for operation in waiting:
            if now - operation.since > CALL_TIMEOUT and not operation.future.done():
                operation.future.set_exception(_overdue(self._path))
        if waiting:
            loop.call_later(1, self._watch, loop)

    # ── on the thread ─────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        wakeups, was_idle, unchecked, checked_at = self._wakeups, True, 0, 0.0
        while wakeups is self._wakeups:
            while not wakeups.empty():
                wakeups.get()
            worked = self._take()
            if worked:
                self._perform()
                self._poll_interval.reset()
                unchecked += 1
            elif self._stopping:
                break
            heard = self._hub.has_listeners
            # The next batch usually arrives before there is any change to see.
            overdue = unchecked >= UNCHECKED_BATCHES or self._clock.uptime() - checked_at >= UNCHECKED_SECONDS
            if heard and (overdue if worked else was_idle):
                self._check_changes()
                unchecked, checked_at = 0, self._clock.uptime()
            if not worked:
                with suppress(Empty):
                    wakeups.get(timeout=self._poll_interval.next() if heard else None)
            was_idle = not worked
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
            with self._session.gate:
                connection = self._session.use()
                if self._session.log_state() != "kept":
                    connection = self._save_log(connection)
                left = self._try_read_only(connection, wanted)
                if left:
                    self._write(left, topics)
                if topics and self._hub.has_listeners:
                    self._changes.note_cancellations(self._session.use(), topics)
        except Exception as error:
            # After any exception the callers get the error, and the thread goes on.
            for operation in wanted:
                if operation.error is None and operation.answer is None:
                    operation.error = errors.translate_error(error, self._path)
        self._batch = []
        try:
            if topics:
                self._hub.notify(topics)
        finally:
            # Deliver last: each woken caller wants the interpreter lock at once, and the thread has only to wait then.
            _deliver(wanted)

    def _try_read_only(self, connection: sqlite3.Connection, wanted: list[Operation]) -> list[Operation]:
        """Answer operations that need no transaction; if one operation needs a transaction, all operations use it."""
        if any(operation.try_read_only is None for operation in wanted):
            return wanted
        if not self._hub.has_listeners:
            self._changes.mark_seen(connection)
        tx = SQLiteTransaction(connection, self._lanes)
        left: list[Operation] = []
        for operation in wanted:
            self._begin(tx, operation)
            try:
                operation.answer = operation.try_read_only(tx) if operation.try_read_only else None
            except sqlite3.Error:
                operation.answer = None
            if operation.answer is None:
                left.append(operation)
        claim_numbers.publish(self._lanes, tx)
        return left

    def _write(self, batch: list[Operation], topics: list[str]) -> None:
        while batch:
            connection, kept = self._session.use(), True
            try:
                with self._locks.writing():
                    # Looked at under the lock: another process may have saved the log since, and write a new one.
                    kept = self._session.log_state() == "kept"
                    if kept:
                        self._transact(connection, batch, topics)
                        return
            except Exception as error:
                if connection.in_transaction:
                    connection.execute(_ROLLBACK)
                if errors.is_busy(error):
                    batch = self._without_overdue(batch)
                    self._pause()
                elif len(batch) == 1:
                    batch[0].error = errors.translate_error(error, self._path)
                    return
                else:
                    half = len(batch) // 2
                    self._write(batch[:half], topics)
                    batch = batch[half:]
            if not kept:
                self._save_log(connection)

    def _save_log(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Copy a log that was deleted or replaced into the file, and return a connection that uses a new log.

        The first process that notices copies the commits of all, because all have the same deleted file open. The copy
        leaves that file empty, so a later process cannot copy it again over newer commits.

        Raises:
            StorageUnavailableError: the log cannot be copied yet.
        """
        with self._locks.writing():
            try:
                busy, *_ = connection.execute(_EMPTY_LOG).fetchone()
                failure = "a reader still uses it" if busy else ""
            except sqlite3.Error as error:
                failure = f"{error}"
            # If another process has already copied the log and filled a new one, this connection cannot read that one.
            if failure and self._session.log_state() == "deleted":
                raise StorageUnavailableError(
                    f"the write-ahead log {self._path}-wal was deleted while it was in use, and its commits cannot be "
                    f"copied into the file yet ({failure}); nothing more is written until they are. Do not stop this "
                    "process"
                )
        # Opening takes the writers' lock itself.
        self._session.leave_log()
        return self._session.use()

    def _transact(self, connection: sqlite3.Connection, batch: list[Operation], topics: list[str]) -> None:
        connection.execute(_WRITE)
        tx = SQLiteTransaction(connection, self._lanes, repairs=True)
        answers: list[Any] = []
        for run_all, operations in groupby(batch, key=lambda operation: operation.run_all):
            if run_all is not None:
                argument = [operation.argument for operation in operations]
                tx.now = self._clock.now()
                answers += run_all(tx, argument)
                continue
            for operation in operations:
                self._begin(tx, operation)
                answers.append(None if operation.run is None else operation.run(tx))
        tx.flush()
        recount(tx)
        if not self._hub.has_listeners:
            # No other process can commit before this transaction does, and the check is cheap while its locks are held.
            self._changes.mark_seen(connection)
        connection.execute(_COMMIT)
        claim_numbers.publish(self._lanes, tx)
        for operation, answer in zip(batch, answers, strict=True):
            operation.answer = answer
            if operation.signing_off and operation.owner is not None:
                self._locks.sign_off(operation.owner)
            if operation.after_commit is not None:
                operation.after_commit(answer)
        topics += tx.topics
        self._checkpoints.checkpoint_if_due(connection, leading=tx.leading)

    def _begin(self, tx: Transaction, operation: Operation) -> None:
        tx.now = self._clock.now()
        if operation.owner is not None:
            hold = self._locks.guard if operation.guarding else self._locks.hold
            hold(operation.owner)

    def _without_overdue(self, batch: list[Operation]) -> list[Operation]:
        now = self._clock.uptime()
        for operation in batch:
            if now - operation.since > CALL_TIMEOUT:
                operation.error = _overdue(self._path)
        return [operation for operation in batch if operation.error is None and not operation.future.done()]

    def _pause(self) -> None:
        threading.Event().wait(0.005 + 0.045 * self._jitter.random())

    def _check_changes(self) -> None:
        """Notify listeners of possible changes if another process has committed since the last check."""
        try:
            with self._session.gate:
                hinted = self._changes.changed_topics(self._session.use(), self._hub.topics)
        except Exception:
            # The next call reports the problem to its caller; a notification may be lost.
            return
        if hinted is not None:
            self._poll_interval.reset()
            self._hub.notify(hinted)

    def _close(self) -> None:
        with self._session.gate:
            self._session.close()
            self._locks.close_if_unused()


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


def _overdue(path: str) -> StorageUnavailableError:
    return StorageUnavailableError(
        f"{path} did not answer within {CALL_TIMEOUT:.0f} s: another process keeps it locked (is one of them stopped?) "
        "or the disk hangs"
    )
