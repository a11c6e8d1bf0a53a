"""Finds out whether a transaction was committed whose answer was lost."""

import threading

import psycopg

from tenure.clock import Clock, entropy
from tenure.core.exponential_delay import ExponentialDelay
from tenure.errors import StorageUnavailableError
from tenure.storage.postgres.connection import Session
from tenure.storage.postgres.statements import NAMED
from tenure.storage.sql.writer import CALL_TIMEOUT

RETRY_DELAY = ExponentialDelay(0.05, 5.0)
"""The delays between two tries of a transaction that failed for a passing cause."""


def was_committed(session: Session, number: str, clock: Clock, place: str) -> bool:
    """Return True if the transaction of this number was committed. `place`: the server, as messages name it.

    Raises:
        StorageUnavailableError: this cannot be found out.
    """
    begun, jitter = clock.uptime(), entropy()
    failures = 0
    while clock.uptime() - begun < CALL_TIMEOUT:
        fate: str | None = "in progress"
        try:
            row = session.use().execute(NAMED["session.fate"], {"number": number}).fetchone()
            fate = None if row is None else row[0]
        except psycopg.errors.InvalidParameterValue:
            # The number lies in the future: this server never had the transaction.
            return False
        except psycopg.Error:
            session.close()
        match fate:
            case "committed":
                return True
            case "aborted":
                return False
            case None:
                break
            case _:
                failures += 1
                threading.Event().wait(RETRY_DELAY.rest(failures, jitter))
    raise StorageUnavailableError(
        f"{place} lost the answer to a commit, and cannot tell whether it took place; repeat the call: a job with the "
        "same id is stored once"
    )
