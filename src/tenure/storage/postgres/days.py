"""The tables of the days in which jobs ended: made ahead, and dropped once they are empty."""

import psycopg

from tenure.clock import SECOND, Clock
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.compatibility import OutdatedError
from tenure.storage.postgres.connection import Session, begin
from tenure.storage.postgres.statements import NAMED

DAY = 86_400 * SECOND

AHEAD = 2
"""How many days ahead tables are made. Jobs that end on a day without a table go to a common one."""

RETRY_AFTER = 60.0
"""Seconds between two tries, if readers kept the tables in use."""

_PATIENCE = 200


class Days:
    """Keeps the tables of the days. The process that leads does so once a day, on the thread of a writer."""

    def __init__(self, address: PostgresAddress, session: Session, clock: Clock) -> None:
        self._address = address
        self._session = session
        self._clock = clock
        self._kept = 0
        self._tried_at: float | None = None

    def keep(self, now: int) -> None:
        """Make and drop tables, if that is due at this instant of the storage's clock. A failure is tried again."""
        day, uptime = max(1, now // DAY), self._clock.uptime()
        if day == self._kept or (self._tried_at is not None and uptime - self._tried_at < RETRY_AFTER):
            return
        self._tried_at = uptime
        try:
            connection = self._session.use()
            begin(connection, "session.write", self._address)
            connection.execute(
                NAMED["session.keep_days"], {"first": day, "last": day + AHEAD, "patience": str(_PATIENCE)}
            )
            connection.execute(NAMED["session.commit"])
        except (psycopg.Error, OutdatedError):
            # Without a table of its own, a day's jobs go to the common one.
            self._session.roll_back()
        else:
            self._kept, self._tried_at = day, None
