"""Decides when to checkpoint, that is, to copy the write-ahead log into the database file.

SQLite 3.7.0 to 3.51.2 can corrupt a database when one connection checkpoints while another commits. So SQLite's
automatic checkpoints are off. We checkpoint under the writers' lock, which excludes all commits of ours.
"""

import os
import sqlite3

from tenure.clock import Clock
from tenure.storage.sqlite.statements import STATEMENTS

LEADER_PAGES = 1000
"""The leader checkpoints at its sweep when the log has grown by this number of pages."""

MAX_PAGES = 8 * LEADER_PAGES
"""Any process checkpoints above this growth, in case a million jobs are enqueued without a leader."""

EVERY = 5.0
"""The leader also checkpoints after this number of seconds."""

_PAGE = 4096 + 24
_CHECKPOINT = STATEMENTS["session.checkpoint"]


class Checkpoints:
    """Remembers the log's size after the last checkpoint: SQLite then overwrites the log and rarely truncates it."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._log = f"{path}-wal"
        self._clock = clock
        self._at = clock.uptime()
        self._size = 0

    def checkpoint_if_due(self, connection: sqlite3.Connection, *, leading: bool) -> None:
        """Checkpoint if it is time. The caller holds the writers' lock and has committed."""
        try:
            size = os.stat(self._log).st_size
        except OSError:
            return
        self._size = min(self._size, size)
        pages = LEADER_PAGES if leading else MAX_PAGES
        now = self._clock.uptime()
        if size - self._size < pages * _PAGE and not (leading and now - self._at >= EVERY):
            return
        try:
            connection.execute(_CHECKPOINT).fetchall()
        except sqlite3.Error:
            # The commits are safe in the log. A later checkpoint copies them.
            return
        self._at = now
        self._size = size
