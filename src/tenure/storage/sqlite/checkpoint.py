"""When the log is carried over into the database file.

SQLite 3.7.0 to 3.51.2 can corrupt a database when one connection checkpoints while another commits. So SQLite never
does it by itself here: we do, under the writers' lock, with which no commit of ours can overlap.
"""

import os
import sqlite3

from tenure.clock import Clock
from tenure.storage.sqlite.statements import query

LEADERS_PAGES = 1000
"""The leader checkpoints as soon as the log has grown by so many pages, at its sweep."""

ANYBODYS_PAGES = 8 * LEADERS_PAGES
"""Anybody does by so many: somebody may enqueue a million jobs while nobody leads."""

EVERY = 5.0
"""The leader also does whenever so many seconds have passed."""

_PAGE = 4096 + 24
_CHECKPOINT = query("session", "checkpoint")


class Checkpoints:
    """Remembers how long the log was after the last checkpoint: it is written from the start then, and seldom cut."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._log = f"{path}-wal"
        self._clock = clock
        self._at = clock.uptime()
        self._size = 0

    def consider(self, connection: sqlite3.Connection, *, leading: bool) -> None:
        """Checkpoint if it is time; the caller holds the writers' lock and has committed."""
        try:
            size = os.stat(self._log).st_size
        except OSError:
            return
        self._size = min(self._size, size)
        pages = LEADERS_PAGES if leading else ANYBODYS_PAGES
        now = self._clock.uptime()
        if size - self._size < pages * _PAGE and not (leading and now - self._at >= EVERY):
            return
        try:
            connection.execute(_CHECKPOINT).fetchall()
        except sqlite3.Error:
            # What was committed stands in the log; it is carried over another time.
            return
        self._at = now
        self._size = size
