"""The jobs that a worker has claimed ahead: they wait until a run is over, the eldest first, and never for long."""

import asyncio
from collections.abc import Callable

from tenure.clock import Clock
from tenure.worker.active_runs import ActiveRun
from tenure.worker.prefetch_policy import PrefetchPolicy


class PrefetchBuffer:
    """Those of one worker; `too_long` is called when the eldest has waited for as long as any may."""

    def __init__(self, ahead: PrefetchPolicy, clock: Clock, *, too_long: Callable[[], None]) -> None:
        self._ahead = ahead
        self._clock = clock
        self._too_long = too_long
        self._since: dict[ActiveRun, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, held: ActiveRun) -> bool:
        return held in self._since

    def add(self, held: ActiveRun, now: float) -> None:
        """Let one wait behind all others."""
        self._since[held] = now

    def remove(self, held: ActiveRun) -> None:
        """Let one wait no more."""
        del self._since[held]

    def take(self) -> ActiveRun:
        """Take the one out that has waited longest."""
        held = next(iter(self._since))
        del self._since[held]
        return held

    def take_all(self) -> list[ActiveRun]:
        """Take all of them out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._since = list(self._since), {}
        return waiting

    def watch(self) -> None:
        """See to it that none of them waits for too long. Idempotent."""
        if self._since and self._timer is None:
            waits = next(iter(self._since.values())) + self._ahead.patience - self._clock.uptime()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, waits), self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._since:
            return
        if next(iter(self._since.values())) + self._ahead.patience > self._clock.uptime():
            # The eldest is another by now.
            self.watch()
            return
        self._ahead.kept_waiting()
        self._too_long()
