"""Detects commits of other processes, and chooses the topics to notify.

A commit of another process may have changed anything, so it notifies all topics except owner topics. An owner sends a
beat at each notification, so its topic is notified only if one of its runs was asked to stop.
"""

import sqlite3
from collections.abc import Iterable, Sequence

from tenure.storage.protocol import owner_topic
from tenure.storage.sqlite.statements import STATEMENTS

_DATA_VERSION = STATEMENTS["session.data_version"]
_CANCELLING = STATEMENTS["renew.cancelling"]
_OWNER = owner_topic("")

Run = tuple[int, int]


class ChangeMonitor:
    """Reads through the writing connection, whose own commits it does not see."""

    def __init__(self) -> None:
        self._seen: tuple[sqlite3.Connection, int] | None = None
        self._cancelling: dict[str, set[Run]] = {}

    def mark_seen(self, connection: sqlite3.Connection) -> None:
        """Mark the current state as seen: a listener that starts later has not missed it."""
        self._seen = (connection, _version(connection))
        self._cancelling.clear()

    def note_cancellations(self, connection: sqlite3.Connection, topics: Iterable[str]) -> None:
        """Mark the requests to stop of these owners as notified: this process notifies them next."""
        for topic in {topic for topic in topics if topic.startswith(_OWNER)}:
            self._cancelling[topic] = _cancelling(connection, topic)

    def changed_topics(self, connection: sqlite3.Connection, topics: Sequence[str]) -> list[str] | None:
        """Return the topics to notify, out of those that have listeners; None if no other process has committed."""
        now = (connection, _version(connection))
        if now == self._seen:
            return None
        before = self._cancelling
        cancelling = {topic: _cancelling(connection, topic) for topic in topics if topic.startswith(_OWNER)}
        self._seen, self._cancelling = now, cancelling
        return [topic for topic in topics if topic not in cancelling or cancelling[topic] - before.get(topic, set())]


def _cancelling(connection: sqlite3.Connection, topic: str) -> set[Run]:
    return set(connection.execute(_CANCELLING, {"owner": topic.removeprefix(_OWNER)}))


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute(_DATA_VERSION).fetchone()[0])
