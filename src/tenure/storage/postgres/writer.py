"""A writer of a PostgreSQL: one transaction for all operations that wait, behind the gate that admits one at a time.

    verbs ──submit──► queue ──take ≤ 256──► BEGIN, gate ► each operation ► COMMIT ──► futures ──► a notification

A process has two writers, so that heartbeats do not wait behind enqueues. Both share the numbered claims of the
process's owners (`Claims`).
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg

from tenure.clock import Clock, entropy
from tenure.errors import StorageUnavailableError
from tenure.storage.notifications import NotificationHub
from tenure.storage.postgres import errors, grants, intake
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.compatibility import OutdatedError
from tenure.storage.postgres.connection import Connection, Session, begin
from tenure.storage.postgres.days import Days
from tenure.storage.postgres.fate import RETRY_DELAY, was_committed
from tenure.storage.postgres.statements import NAMED
from tenure.storage.postgres.transaction import Advanced, PostgresTransaction
from tenure.storage.sql import claim_numbers
from tenure.storage.sql.transaction import Lanes, Transaction
from tenure.storage.sql.writer import CALL_TIMEOUT, Operation, Writer

UNREACHABLE_AFTER = 5.0
"""After this number of seconds a caller gets the error of a server that cannot be reached. A beat must not wait longer:
the worker has its own rules for a storage that is out of reach."""

NOTIFY_EVERY = 0.02
"""The minimum number of seconds between two notifications of a writer."""

_COMMIT = NAMED["session.commit"]


class Turns:
    """A lock between threads that is given out in the order of the requests."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        turn.wait()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


class Claims:
    """The numbered claims of the owners in this process, which its writers share.

    A writer holds `turns` from before it asks for the gate until it has published its changes. So the next one sees
    them. And a frozen process has one request at the gate, not two, so that the others
    wait for the end of one transaction.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset after a fork: the owners are those of the parent, and no thread here gives back its turn."""
        self.turns = Turns()
        self.lanes: Lanes = {}
        self.advanced: Advanced = {}


class PostgresWriter(Writer):
    """One of the threads of a process that write. `send`: passes the topics of a commit on to other processes."""

    def __init__(
        self,
        name: str,
        address: PostgresAddress,
        session: Session,
        claims: Claims,
        clock: Clock,
        hub: NotificationHub,
        *,
        own_time: bool,
        payload: Callable[[list[str]], str],
    ) -> None:
        """`own_time`: operations happen at the instants of `clock`, not at those of the server."""
        self.thread_name = f"tenure-postgres-{name}"
        self._address = address
        self._session = session
        self._claims = claims
        self._own_time = own_time
        self._payload = payload
        self._days = Days(address, session, clock)
        self._jitter = entropy()
        super().__init__(address.shown, clock, hub)

    def reset(self) -> None:
        """Reset after a fork: the thread and all waiting operations stayed in the parent."""
        self._session.forget()
        super().reset()

    def _reset_state(self) -> None:
        super()._reset_state()
        self._failures = 0
        self._failure: Exception | None = None
        self._topics: dict[str, None] = {}
        self._announced = deque[str]()
        self._notified_at = 0.0
        self._swept_at: int | None = None

    def announce(self, topics: Sequence[str]) -> None:
        """See `Writer.announce`."""
        super().announce(topics)
        if self._address.listener is not None:
            self._announced.extend(topics)
            self.wake()

    def _answer(self, wanted: list[Operation], topics: list[str]) -> None:
        left = self._try_read_only(wanted)
        if left:
            self._write(left, topics)
        if self._address.listener is not None:
            self._topics.update(dict.fromkeys(topics))

    def _try_read_only(self, wanted: list[Operation]) -> list[Operation]:
        """Answer operations that change nothing without the gate; if one operation needs it, all operations use it."""
        if any(operation.try_read_only is None for operation in wanted):
            return wanted
        left: list[Operation] = []
        try:
            with self._claims.turns:
                connection = self._session.use()
                (now, calls_wait), _ = begin(connection, "session.read", self._address)
                if calls_wait:
                    connection.execute(_COMMIT)
                    return wanted
                tx = PostgresTransaction(connection.cursor(binary=True), self._claims.lanes)
                tx.now = now
                for operation in wanted:
                    self._begin(tx, operation)
                    operation.answer = operation.try_read_only(tx) if operation.try_read_only else None
                    if operation.answer is None:
                        left.append(operation)
                claim_numbers.publish(self._claims.lanes, tx)
            connection.execute(_COMMIT)
        except (psycopg.Error, OutdatedError):
            # The transaction that may write reports the problem, if it remains.
            self._session.roll_back()
            return [operation for operation in wanted if operation.answer is None]
        return left

    def _attempt(self, batch: list[Operation], topics: list[str]) -> None:
        with self._claims.turns:
            connection = self._session.use()
            (now, number, calls_wait), state = begin(connection, "session.write", self._address)
            cursor = connection.cursor(binary=True)
            tx = PostgresTransaction(cursor, self._claims.lanes, repairs=True, advanced=self._claims.advanced)
            tx.now = now
            tx.closes = state.closes(now)
            if calls_wait:
                self._begin(tx, None)
                intake.absorb(tx)
            answers = self._answers(tx, batch)
            self._commit(connection, number)
            claim_numbers.publish(self._claims.lanes, tx)
        self._failures = 0
        for operation, answer in zip(batch, answers, strict=True):
            operation.answer = answer
            if operation.after_commit is not None:
                operation.after_commit(answer)
        topics += tx.topics
        if tx.leading:
            self._swept_at = now

    def _commit(self, connection: Connection, number: str) -> None:
        """Commit; if the answer is lost, ask the server whether it took place.

        Raises:
            psycopg.Error: the transaction did not commit.
            StorageUnavailableError: this cannot be found out.
        """
        try:
            connection.execute(_COMMIT)
        except psycopg.Error as error:
            # A server that ends all sessions in an emergency may have committed before.
            if not errors.is_lost(error) and not connection.closed:
                raise
            if not was_committed(self._session, number, self._clock, self._place):
                raise

    def _begin(self, tx: Transaction, operation: Operation | None) -> None:
        if self._own_time:
            tx.now = self._clock.now()

    def _roll_back(self) -> None:
        self._session.roll_back()

    def _is_passing(self, error: Exception) -> bool:
        self._failure = error
        if not errors.is_passing(error):
            return False
        if errors.is_lost(error):
            self._session.close()
        return True

    def _pause(self) -> None:
        self._failures += 1
        if self._failures > 1:
            self._sleep(RETRY_DELAY.rest(self._failures - 1, self._jitter))

    def _without_overdue(self, batch: list[Operation]) -> list[Operation]:
        failure = self._failure
        if failure is not None and errors.is_lost(failure):
            now = self._clock.uptime()
            for operation in batch:
                if now - operation.since > UNREACHABLE_AFTER:
                    operation.error = self._translate(failure)
        return super()._without_overdue(batch)

    def _sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def _rest(self, worked: bool) -> float | None:
        """Notify other processes of the topics of recent commits, unless it did so a moment ago."""
        if self._swept_at is not None and not self._own_time:
            self._days.keep(self._swept_at)
            self._swept_at = None
        while self._announced:
            self._topics[self._announced.popleft()] = None
        if not self._topics:
            return None
        wait = self._notified_at + NOTIFY_EVERY - self._clock.uptime()
        if wait > 0 and not self._stopping:
            return wait
        topics, self._topics = list(self._topics), {}
        self._notified_at = self._clock.uptime()
        # A notification that is lost costs time, but no job.
        with suppress(psycopg.Error):
            self._session.use().execute(
                NAMED["session.notify"], {"channel": self._address.channel, "payload": self._payload(topics)}
            )
        return None

    def _translate(self, error: BaseException) -> BaseException:
        return errors.translate_error(grants.explained(error, self._address), self._place)

    def _no_thread(self, error: RuntimeError) -> BaseException:
        return errors.no_thread(error, self._place)

    def _overdue(self) -> StorageUnavailableError:
        return StorageUnavailableError(
            f"{self._place} did not answer within {CALL_TIMEOUT:.0f} s: the server hangs, or transactions of other "
            "processes keep it busy"
        )

    def _give_up(self) -> None:
        self._session.abort()

    def _close(self) -> None:
        self._session.close()
