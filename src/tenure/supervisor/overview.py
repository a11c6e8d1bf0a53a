"""What a supervisor shows of all its children to those who ask for health; they may ask on any thread.

The supervisor's loop draws up a view every half a second. One that is old tells that this loop does not turn.
"""

from collections.abc import Iterable

from tenure.clock import Clock
from tenure.errors import StorageUnavailableError
from tenure.health.monitor import NoStorageYetError
from tenure.health.process_health import ProcessHealth, blocked
from tenure.metrics import Key, MetricsRegistry, added_up
from tenure.options import Timing
from tenure.storage.protocol import Storage
from tenure.supervisor.child import ChildProcess
from tenure.worker.loop_lag import TICK, RecentMaximum
from tenure.worker.supervisor_messages import ChildStarted

EVERY = 0.5
"""Seconds between two views."""

OLD = 10.0
"""Seconds after which a view tells that the supervisor itself stands still."""


class Overview:
    """All children at a glance, with what those before them have counted."""

    def __init__(self, figures: MetricsRegistry, clock: Clock) -> None:
        """Take what the supervisor itself counts."""
        self.timing = Timing()
        """The app's, once a child has told it."""
        self.queues: tuple[str, ...] = ()
        """Those that the app's tasks go to."""
        self.storage: Storage | None = None
        self._figures = figures
        self._clock = clock
        self._lag = RecentMaximum()
        self._of_the_dead: dict[Key, tuple[float, ...]] = {}
        self._seen_at = clock.uptime()
        self._seen = ProcessHealth(owners=())

    def told(self, hello: ChildStarted) -> None:
        """Take in what a child has said of its app."""
        self.timing, self.queues = hello.timing, hello.queues

    def look(self, wards: Iterable[ChildProcess], *, stopping: bool) -> None:
        """Draw up the view; on the supervisor's loop."""
        now, wards = self._clock.uptime(), list(wards)
        silent = {ward: _silent(ward, now) for ward in wards}
        lag = max((max(ward.slate.lag, silent[ward]) for ward in wards), default=0.0)
        whys = [
            f"worker {ward.process.pid}: {why}"
            for ward in wards
            if ward.hello is not None and (why := blocked(silent[ward], ward.hello.max_block))
        ]
        self._seen = ProcessHealth(
            owners=tuple(ward.incarnation for ward in wards if ward.hello is not None),
            dead="; ".join(whys),
            stopping=stopping,
            lag=self._lag.note(now, lag),
            figures=added_up([self._of_the_dead, self._figures.totals(), *(ward.figures for ward in wards)]),
        )
        self._seen_at = now

    def gone(self, ward: ChildProcess) -> None:
        """Keep what a child has counted: totals never go down."""
        self._of_the_dead = added_up([self._of_the_dead, ward.figures])

    def vitals(self) -> ProcessHealth:
        """Return the latest view."""
        age = self._clock.uptime() - self._seen_at
        if age > OLD:
            return ProcessHealth(
                owners=(), dead=f"the supervisor has not turned for {age:.1f} s", figures=self._seen.figures
            )
        return self._seen

    async def opened(self) -> Storage:
        """Return the storage, opened.

        Raises:
            NotToldError: no child has said yet where it is.
            StorageError: it cannot be opened.
        """
        storage = self.storage
        if storage is None:
            raise NoStorageYetError("no worker process has said yet where the jobs are remembered")
        if not storage.shared:
            raise StorageUnavailableError(
                f"{storage.url} is seen by the worker process alone; to serve its health give --no-supervisor"
            )
        await storage.open()
        return storage


def _silent(ward: ChildProcess, now: float) -> float:
    """Return for how many seconds a child's event loop has been late; 0 if it is not, or nothing is expected of it."""
    turned_at = ward.slate.turned_at
    return max(0.0, now - turned_at - TICK) if turned_at else 0.0
