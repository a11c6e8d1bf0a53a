"""Reads on a thread and connection of their own, so that writers do not delay them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tenure.clock import Clock
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sqlite import errors
from tenure.storage.sqlite.session import ThreadConnection
from tenure.storage.sqlite.statements import STATEMENTS
from tenure.storage.sqlite.transaction import SQLiteTransaction

T = TypeVar("T")

_READ = STATEMENTS["session.read"]
_COMMIT = STATEMENTS["session.commit"]


class DatabaseReader:
    """Answers each read from one consistent state of the database."""

    def __init__(self, path: str, session: ThreadConnection, clock: Clock) -> None:
        self._path = path
        self._session = session
        self._clock = clock
        self._thread: ThreadPoolExecutor | None = None

    async def read(self, run: Callable[[Transaction], T]) -> T:
        """Run a read on the thread and return its answer."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "tenure-sqlite-reader")
        try:
            answer = asyncio.get_running_loop().run_in_executor(self._thread, self._run, run)
        except RuntimeError as error:
            raise errors.no_thread(error, self._path) from error
        return await answer

    def stop(self) -> None:
        """Finish the submitted reads, then end the thread and close the connection."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self.reset()
        with self._session.gate:
            self._session.close()

    def reset(self) -> None:
        """Reset, for example after a fork."""
        self._thread = None

    def _run(self, ask: Callable[[Transaction], T]) -> T:
        with self._session.gate:
            try:
                connection = self._session.use()
                if self._session.log_state() == "replaced":
                    # A writer has saved the deleted log and writes a new one. Until then the deleted one is valid.
                    self._session.leave_log()
                    connection = self._session.use()
                connection.execute(_READ)
                try:
                    tx = SQLiteTransaction(connection)
                    tx.now = self._clock.now()
                    return ask(tx)
                finally:
                    if connection.in_transaction:
                        connection.execute(_COMMIT)
            except Exception as error:
                raise errors.translate_error(error, self._path) from error
