"""A snapshot of all children of a supervisor, for the health server, which may read it on any thread.

The supervisor's loop takes a snapshot every half second. An old snapshot shows that this loop does not turn.
"""

import contextlib
from collections.abc import Iterable

from tenure.clock import Clock
from tenure.errors import StorageUnavailableError, UsageError
from tenure.health.monitor import NoStorageYetError, logger
from tenure.health.process_health import ProcessHealth, blocked
from tenure.metrics import Key, MetricsRegistry, added_up
from tenure.options import Timing
from tenure.outbox.database import outbox_database
from tenure.outbox.outbox import Outbox
from tenure.storage.protocol import Storage
from tenure.supervisor.child import ChildProcess
from tenure.worker.loop_lag import TICK, RecentMaximum
from tenure.worker.supervisor_messages import ChildStarted

SNAPSHOT_INTERVAL = 0.5
"""Seconds between two snapshots."""

LONGEST_AGE = 10.0
"""Age of a snapshot, in seconds, from which on the supervisor itself counts as blocked."""


class Overview:
    """The health of all children, and the metrics of the present and the earlier children."""

    def __init__(self, metrics: MetricsRegistry, clock: Clock) -> None:
        """Take the metrics of the supervisor itself."""
        self.timing = Timing()
        """The app's timing, once a child has sent it."""
        self.queues: tuple[str, ...] = ()
        """The queues of the app's tasks."""
        self.storage: Storage | None = None
        self.outbox: Outbox | None = None
        """The app's outbox, if it has one and a child has sent its address."""
        self._metrics = metrics
        self._clock = clock
        self._lag = RecentMaximum()
        self._of_ended_children: dict[Key, tuple[float, ...]] = {}
        self._seen_at = clock.uptime()
        self._seen = ProcessHealth(owners=())

    def set_app_info(self, hello: ChildStarted) -> None:
        """Store what a child has sent about its app."""
        self.timing, self.queues = hello.timing, hello.queues
        if self.outbox is None and hello.outbox is not None:
            # A child may run any code: what it sends may be no address.
            with contextlib.suppress(UsageError):
                self.outbox = Outbox(outbox_database(hello.outbox), clock=self._clock, logger=logger)

    def take_snapshot(self, children: Iterable[ChildProcess], *, stopping: bool) -> None:
        """Take a snapshot; on the supervisor's loop."""
        now, children = self._clock.uptime(), list(children)
        silent = {child: _silent(child, now) for child in children}
        lag = max((max(child.scoreboard.lag, silent[child]) for child in children), default=0.0)
        whys = [
            f"worker {child.process.pid}: {why}"
            for child in children
            if child.hello is not None and (why := blocked(silent[child], child.hello.max_block))
        ]
        self._seen = ProcessHealth(
            owners=tuple(child.owner_id for child in children if child.hello is not None),
            dead="; ".join(whys),
            stopping=stopping,
            lag=self._lag.note(now, lag),
            metrics=added_up([self._of_ended_children, self._metrics.totals(), *(child.metrics for child in children)]),
        )
        self._seen_at = now

    def keep_metrics(self, child: ChildProcess) -> None:
        """Keep the metrics of a child that has ended, so that totals never go down."""
        self._of_ended_children = added_up([self._of_ended_children, child.metrics])

    def vitals(self) -> ProcessHealth:
        """Return the latest snapshot."""
        age = self._clock.uptime() - self._seen_at
        if age > LONGEST_AGE:
            return ProcessHealth(
                owners=(), dead=f"the supervisor's loop has not turned for {age:.1f} s", metrics=self._seen.metrics
            )
        return self._seen

    async def opened(self) -> Storage:
        """Return the storage, opened.

        Raises:
            NoStorageYetError: no child has sent the storage's URL yet.
            StorageUnavailableError: the storage exists only inside the worker process.
            StorageError: it cannot be opened.
        """
        storage = self.storage
        if storage is None:
            raise NoStorageYetError("no worker process has sent the storage's URL yet")
        if not storage.shared:
            raise StorageUnavailableError(
                f"{storage.url} exists only inside the worker process; give --no-supervisor to serve its health"
            )
        await storage.open()
        return storage


def _silent(child: ChildProcess, now: float) -> float:
    """Return by how many seconds a child's event loop is late; 0 if it is in time, or not expected to turn."""
    turned_at = child.scoreboard.turned_at
    return max(0.0, now - turned_at - TICK) if turned_at else 0.0
