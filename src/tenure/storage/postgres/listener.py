"""Notifications of other processes: one thread and one connection of a process, which LISTEN on the schema's channel.

    another process ──pg_notify──► the server ──► this thread ──► the hub ──► listeners

A hint may be lost; every waiter also polls. While the connection is down, the thread itself gives hints once a second.
"""

import json
import logging
import threading
from collections.abc import Iterable
from contextlib import suppress

from tenure.clock import Clock, entropy
from tenure.core.exponential_delay import ExponentialDelay
from tenure.storage.notifications import Listener, NotificationHub
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.connection import Connection, Session, is_direct
from tenure.storage.postgres.statements import NAMED, STATEMENTS
from tenure.storage.protocol import owner_topic

RETRY_DELAY = ExponentialDelay(0.1, 5.0)
"""The delays between two attempts to connect."""

POLL = 1.0
"""Seconds between two hints while no notifications can be received."""

PING_EVERY = 10.0
"""Seconds without any message after which the connection is tested."""

PAYLOAD = 7_900
"""The maximum size of a message: the server refuses 8,000 bytes."""

PROBE = 2.0
"""Seconds within which a notification of another connection arrives, if this address passes them on."""

_OWNER = owner_topic("")

logger = logging.getLogger("tenure")


class PostgresListener:
    """Receives the notifications of other processes from the first listener on."""

    def __init__(self, address: PostgresAddress, session: Session | None, clock: Clock, hub: NotificationHub) -> None:
        """`session`: a connection for notifications, None if there are none."""
        self._address = address
        self._session = session
        self._clock = clock
        self._hub = hub
        self._jitter = entropy()
        self._name = f"{self._jitter.getrandbits(64):016x}"
        self.reset()

    def reset(self) -> None:
        """Reset after a fork: the thread and the connection stayed in the parent."""
        if self._session is not None:
            self._session.forget()
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._listening = False
        self._polls = self._session is None

    def listen(self, topics: Iterable[str]) -> Listener:
        """Return a new listener. Its first hint says that it misses no notification from now on."""
        listener = self._hub.listen(topics)
        with self._guard:
            if self._thread is None:
                stopped = self._stopped = threading.Event()
                thread = threading.Thread(
                    target=self._work, args=(stopped,), name="tenure-postgres-listener", daemon=True
                )
                with suppress(RuntimeError):
                    # If no thread can be started, the waiters poll.
                    thread.start()
                    self._thread = thread
            heard = self._listening or self._polls
        if heard:
            listener.wake()
        return listener

    def stop(self, timeout: float) -> None:
        """End the thread."""
        with self._guard:
            thread, self._thread = self._thread, None
            self._stopped.set()
        if self._session is not None:
            self._session.abort()
        if thread is not None:
            thread.join(timeout)

    def payload(self, topics: list[str]) -> str:
        """Return a message about topics. If there are too many, it names their kinds."""
        text = json.dumps([self._name, *topics])
        if len(text) > PAYLOAD:
            kinds = dict.fromkeys(topic.partition(":")[0] + ":" for topic in topics)
            text = json.dumps([self._name, *kinds])
        return text

    def _work(self, stopped: threading.Event) -> None:
        failures = 0
        while not stopped.is_set():
            if self._session is None or self._polls:
                self._hint()
                stopped.wait(POLL * (0.75 + self._jitter.random() / 2))
                continue
            try:
                self._receive(self._session, stopped)
                failures = 0
            except Exception:
                # After any exception the thread goes on; nothing but time depends on it.
                failures = 1 if self._listening else failures + 1
            self._listening = False
            self._session.close()
            if stopped.is_set():
                break
            stopped.wait(RETRY_DELAY.rest(max(1, failures), self._jitter))
            self._hint()

    def _receive(self, session: Session, stopped: threading.Event) -> None:
        connection = session.use()
        connection.execute(STATEMENTS["session.listen"].replace(":channel", self._address.channel).encode())
        if not self._hears_others(connection, session):
            self._polls = True
            logger.warning(
                "%s passes on no notifications, as PgBouncer in transaction mode: this process looks for jobs of "
                "others once a second; name the server itself with listen_url=, or set listen=off",
                self._address.shown,
            )
            return
        with self._guard:
            self._listening = True
        # Listeners that began before may have missed notifications.
        self._hub.notify_all()
        while not stopped.is_set():
            for message in connection.notifies(timeout=PING_EVERY):
                self._pass_on(message.payload)
                if stopped.is_set():
                    return
            connection.execute(STATEMENTS["session.ping"].encode())

    def _hears_others(self, connection: Connection, session: Session) -> bool:
        """Return False if a pooler gives this connection another backend for each transaction."""
        if is_direct(connection):
            return True
        # A pooler that gives it one backend for its whole life passes notifications on.
        other = session.another()
        try:
            other.use().execute(NAMED["session.notify"], {"channel": self._address.channel, "payload": "[]"})
            return any(True for _ in connection.notifies(timeout=PROBE, stop_after=1))
        finally:
            other.close()

    def _pass_on(self, payload: str) -> None:
        try:
            sender, *topics = json.loads(payload)
        except ValueError:
            return
        if sender == self._name:
            # The writers of this process have notified its own listeners.
            return
        kinds = tuple(topic for topic in topics if topic.endswith(":"))
        if kinds:
            topics += [topic for topic in self._hub.topics if f"{topic}:".startswith(kinds)]
        self._hub.notify(topics)

    def _hint(self) -> None:
        """Give a hint to all listeners, except owners: a hint makes them send a beat."""
        self._hub.notify([topic for topic in self._hub.topics if not topic.startswith(_OWNER)])
