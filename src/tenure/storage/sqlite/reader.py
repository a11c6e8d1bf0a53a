"""Reads of a SQLite file, on a thread and connection of their own."""

from collections.abc import Callable
from typing import TypeVar

from tenure.clock import Clock
from tenure.storage.sql.reader import Reader
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sqlite import errors
from tenure.storage.sqlite.session import ThreadConnection
from tenure.storage.sqlite.statements import STATEMENTS
from tenure.storage.sqlite.transaction import SQLiteTransaction

T = TypeVar("T")

_READ = STATEMENTS["session.read"]
_COMMIT = STATEMENTS["session.commit"]


class SQLiteReader(Reader):
    """Answers each read from one consistent state of the file."""

    thread_name = "tenure-sqlite-reader"

    def __init__(self, path: str, session: ThreadConnection, clock: Clock) -> None:
        super().__init__()
        self._path = path
        self._session = session
        self._clock = clock

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

    def _no_thread(self, error: RuntimeError) -> BaseException:
        return errors.no_thread(error, self._path)

    def _close(self) -> None:
        with self._session.gate:
            self._session.close()
