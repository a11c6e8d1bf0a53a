"""Reads of a PostgreSQL, on a thread and connection of their own, without the gate."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from tenure.clock import Clock, entropy
from tenure.errors import StorageUnavailableError
from tenure.storage.postgres import errors, grants
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.connection import Session, begin
from tenure.storage.postgres.fate import RETRY_DELAY
from tenure.storage.postgres.statements import NAMED
from tenure.storage.postgres.transaction import PostgresTransaction
from tenure.storage.postgres.writer import UNREACHABLE_AFTER
from tenure.storage.sql.reader import Reader
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.writer import CALL_TIMEOUT

T = TypeVar("T")

_COMMIT = NAMED["session.commit"]


class PostgresReader(Reader):
    """Answers each read from one consistent state of the database."""

    thread_name = "tenure-postgres-reader"

    def __init__(self, address: PostgresAddress, session: Session, clock: Clock, *, own_time: bool) -> None:
        """`own_time`: reads happen at the instants of `clock`, not at those of the server."""
        super().__init__()
        self._address = address
        self._session = session
        self._clock = clock
        self._own_time = own_time
        self._jitter = entropy()

    async def read(self, run: Callable[[Transaction], T]) -> T:
        """Run a read on the thread and return its answer.

        Raises:
            StorageUnavailableError: the server did not answer in time.
        """
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return await super().read(run)
        except TimeoutError:
            self._session.abort()
            raise StorageUnavailableError(
                f"{self._address.shown} did not answer within {CALL_TIMEOUT:.0f} s: the server hangs"
            ) from None

    def reset(self) -> None:
        """Reset, for example after a fork."""
        super().reset()

    def forget(self) -> None:
        """Reset after a fork: the connection belongs to the parent."""
        self._session.forget()
        self.reset()

    def _run(self, ask: Callable[[Transaction], T]) -> T:
        begun, failures = self._clock.uptime(), 0
        while True:
            try:
                return self._read(ask)
            except Exception as error:
                self._session.roll_back()
                if not errors.is_passing(error) or self._clock.uptime() - begun > UNREACHABLE_AFTER:
                    known = grants.explained(error, self._address)
                    raise errors.translate_error(known, self._address.shown) from error
                failures += 1
                if failures > 1:
                    threading.Event().wait(RETRY_DELAY.rest(failures - 1, self._jitter))

    def _read(self, ask: Callable[[Transaction], T]) -> T:
        connection = self._session.use()
        (now, calls_wait), _ = begin(connection, "session.read", self._address)
        tx = PostgresTransaction(connection.cursor(binary=True), calls_wait=calls_wait)
        tx.now = self._clock.now() if self._own_time else now
        answer = ask(tx)
        connection.execute(_COMMIT)
        return answer

    def _no_thread(self, error: RuntimeError) -> BaseException:
        return errors.no_thread(error, self._address.shown)

    def _close(self) -> None:
        self._session.close()
