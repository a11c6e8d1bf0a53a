"""What other processes have done since the last look, and whom that concerns.

A commit of another process may have changed anything, so it is a hint at every topic but one kind: an owner asks at
once when it is hinted at, so it is looked up whether one of its runs was asked to stop.
"""

import sqlite3
from collections.abc import Iterable, Sequence

from tenure.storage.protocol import owner_topic
from tenure.storage.sqlite.statements import query

_DATA_VERSION = query("session", "data_version")
_CANCELLING = query("renew", "cancelling")
_OWNER = owner_topic("")

Run = tuple[int, int]


class ChangeMonitor:
    """Looks through the connection that writes, whose own commits it does not see."""

    def __init__(self) -> None:
        self._seen: tuple[sqlite3.Connection, int] | None = None
        self._cancelling: dict[str, set[Run]] = {}

    def note(self, connection: sqlite3.Connection) -> None:
        """Take what is there for seen: whoever will listen from now on has not missed it."""
        self._seen = (connection, _version(connection))
        self._cancelling.clear()

    def told(self, connection: sqlite3.Connection, topics: Iterable[str]) -> None:
        """Take for told what owners can see who are hinted at next, by a step of this process."""
        for topic in {topic for topic in topics if topic.startswith(_OWNER)}:
            self._cancelling[topic] = _asked_to_stop(connection, topic)

    def look(self, connection: sqlite3.Connection, topics: Sequence[str]) -> list[str] | None:
        """Return which of the topics listened for to hint at; None if no other process has committed."""
        now = (connection, _version(connection))
        if now == self._seen:
            return None
        before = self._cancelling
        cancelling = {topic: _asked_to_stop(connection, topic) for topic in topics if topic.startswith(_OWNER)}
        self._seen, self._cancelling = now, cancelling
        return [topic for topic in topics if topic not in cancelling or cancelling[topic] - before.get(topic, set())]


def _asked_to_stop(connection: sqlite3.Connection, topic: str) -> set[Run]:
    return set(connection.execute(_CANCELLING, (topic.removeprefix(_OWNER),)))


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute(_DATA_VERSION).fetchone()[0])
