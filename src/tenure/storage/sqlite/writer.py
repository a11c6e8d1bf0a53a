"""The writer of a SQLite file: takes the writers' lock for each transaction, checkpoints, and looks for other commits.

verbs ──submit──► queue ──take ≤ 256──► lock file ► BEGIN ► each operation ► COMMIT ──► futures, once per loop
"""

import sqlite3
import threading

from tenure.clock import Clock, entropy
from tenure.errors import StorageUnavailableError
from tenure.storage.notifications import NotificationHub
from tenure.storage.sql import claim_numbers
from tenure.storage.sql.transaction import Lanes, Transaction
from tenure.storage.sql.writer import CALL_TIMEOUT, Operation, Writer
from tenure.storage.sqlite import errors
from tenure.storage.sqlite.change_monitor import ChangeMonitor
from tenure.storage.sqlite.checkpoint import Checkpoints
from tenure.storage.sqlite.locks import Locks
from tenure.storage.sqlite.poll_interval import PollInterval
from tenure.storage.sqlite.session import ThreadConnection
from tenure.storage.sqlite.statements import STATEMENTS
from tenure.storage.sqlite.transaction import SQLiteTransaction

UNCHECKED_BATCHES = 8
"""After this number of batches the thread checks for changes by other processes, even without a pause in its work."""

UNCHECKED_SECONDS = 0.04
"""The same limit in seconds, for slow batches."""

_WRITE = STATEMENTS["session.write"]
_COMMIT = STATEMENTS["session.commit"]
_ROLLBACK = STATEMENTS["session.rollback"]
_EMPTY_LOG = STATEMENTS["session.empty_log"]


class SQLiteWriter(Writer):
    """The one thread of a process that writes to a file."""

    thread_name = "tenure-sqlite-writer"

    def __init__(self, path: str, session: ThreadConnection, locks: Locks, clock: Clock, hub: NotificationHub) -> None:
        super().__init__(path, clock, hub)
        self._session = session
        self._locks = locks
        self._checkpoints = Checkpoints(path, clock)
        self._jitter = entropy()
        self._lanes: Lanes = {}

    def _reset_state(self) -> None:
        super()._reset_state()
        self._changes = ChangeMonitor()
        self._poll_interval = PollInterval()
        self._was_idle, self._unchecked, self._checked_at = True, 0, 0.0

    def _rest(self, worked: bool) -> float | None:
        """Check for changes by other processes, if that is due."""
        if worked:
            self._poll_interval.reset()
            self._unchecked += 1
        heard = self._hub.has_listeners
        # The next batch usually arrives before there is any change to see.
        overdue = self._unchecked >= UNCHECKED_BATCHES or self._clock.uptime() - self._checked_at >= UNCHECKED_SECONDS
        if heard and (overdue if worked else self._was_idle):
            self._check_changes()
            self._unchecked, self._checked_at = 0, self._clock.uptime()
        self._was_idle = not worked
        return self._poll_interval.next() if heard and not worked else None

    def _answer(self, wanted: list[Operation], topics: list[str]) -> None:
        with self._session.gate:
            connection = self._session.use()
            if self._session.log_state() != "kept":
                connection = self._save_log(connection)
            left = self._try_read_only(connection, wanted)
            if left:
                self._write(left, topics)
            if topics and self._hub.has_listeners:
                self._changes.note_cancellations(self._session.use(), topics)

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

    def _attempt(self, batch: list[Operation], topics: list[str]) -> None:
        while True:
            connection = self._session.use()
            with self._locks.writing():
                # Looked at under the lock: another process may have saved the log since, and write a new one.
                if self._session.log_state() == "kept":
                    self._transact(connection, batch, topics)
                    return
            self._save_log(connection)

    def _roll_back(self) -> None:
        connection = self._session.use()
        if connection.in_transaction:
            connection.execute(_ROLLBACK)

    def _is_passing(self, error: Exception) -> bool:
        return errors.is_busy(error)

    def _give_up(self) -> None:
        """Do nothing: SQLite itself limits the wait for a lock."""

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
                    f"the write-ahead log {self._place}-wal was deleted while it was in use, and its commits cannot be "
                    f"copied into the file yet ({failure}); nothing more is written until they are. Do not stop this "
                    "process"
                )
        # Opening takes the writers' lock itself.
        self._session.leave_log()
        return self._session.use()

    def _transact(self, connection: sqlite3.Connection, batch: list[Operation], topics: list[str]) -> None:
        connection.execute(_WRITE)
        tx = SQLiteTransaction(connection, self._lanes, repairs=True)
        answers = self._answers(tx, batch)
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

    def _begin(self, tx: Transaction, operation: Operation | None) -> None:
        tx.now = self._clock.now()
        if operation is not None and operation.owner is not None:
            hold = self._locks.guard if operation.guarding else self._locks.hold
            hold(operation.owner)

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

    def _translate(self, error: BaseException) -> BaseException:
        return errors.translate_error(error, self._place)

    def _no_thread(self, error: RuntimeError) -> BaseException:
        return errors.no_thread(error, self._place)

    def _overdue(self) -> StorageUnavailableError:
        return StorageUnavailableError(
            f"{self._place} did not answer within {CALL_TIMEOUT:.0f} s: another process keeps it locked (is one of "
            "them stopped?) or the disk hangs"
        )

    def _close(self) -> None:
        with self._session.gate:
            self._session.close()
            self._locks.close_if_unused()
