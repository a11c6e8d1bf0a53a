"""A queue as its users hold it: what is set for all of its jobs, in the storage, for every worker to see."""

from collections.abc import Awaitable, Callable
from typing import cast, get_args

from tenure.core.check import named, of_kind, remark, shown
from tenure.core.events import Event, OnRequest, event_name
from tenure.errors import UsageError
from tenure.options import Rate, Retention, Stall, stalling
from tenure.options.rate import rate_key
from tenure.storage.protocol import QUEUE_RATE, Settings, Storage, Target


class Queue:
    """A queue of an app: what all its jobs share is kept in the storage, for every worker to see."""

    def __init__(self, opened: Callable[[], Awaitable[Storage]], name: str) -> None:
        self.name = named(name, field="queue")
        self._opened = opened

    async def set_stall(self, stall: Stall) -> None:
        """Lay stall options over those of the tasks, from each job's next claim on; a call's own still win.

        Raises:
            UsageError: they are no stall options.
            StorageError: they may have been set or not; setting them again does no harm.
        """
        await self._tune(Settings(stall=stalling(stall).setting()))

    async def pause(self, *, by: str | None = None) -> None:
        """Give out no more jobs; those that run go on.

        Raises:
            UsageError: `by` is no text.
            StorageError: it may have been set or not; setting it again does no harm.
        """
        await self._tune(Settings(paused=True), by)

    async def resume(self, *, by: str | None = None) -> None:
        """Give out jobs again.

        Raises:
            UsageError: `by` is no text.
            StorageError: it may have been set or not; setting it again does no harm.
        """
        await self._tune(Settings(paused=False), by)

    async def set_rate(self, rate: Rate | str | None, *, by: str | None = None) -> None:
        """Let so many of its jobs start in a time, whatever tasks they are of: "100/s", a `Rate`, None for no limit.

        Raises:
            UsageError: it is no rate, or one with a key; or `by` is no text.
            StorageError: it may have been set or not; setting it again does no harm.
        """
        await self._tune(Settings(rate=rate_key(rate, QUEUE_RATE)), by)

    async def set_retention(self, retention: Retention) -> None:
        """Set how long jobs are kept once they are over; what is left out stays as it was.

        Raises:
            UsageError: it is no retention.
            StorageError: it may have been set or not; setting it again does no harm.
        """
        given = of_kind(retention, Retention, field="retention", remedy='write Retention(failed=Keep("90d"))')
        await self._tune(Settings(retention=given.setting()))

    async def record(self, *kinds: type[Event]) -> None:
        """Record these events too, of those that are recorded on request only; without any, none of them.

        Each costs a write: `JobEnqueued`, `JobDeduplicated`, `JobDebounced`, `JobThrottled`, `JobCollected`,
        `JobRescheduled`, `JobStarted`, `JobProgressed`, `JobSuspected`, `QueueDrained`.

        Raises:
            UsageError: one of them is none of these.
            StorageError: they may have been set or not; setting them again does no harm.
        """
        await self._tune(Settings(record=tuple(_on_request(kind) for kind in kinds)))

    async def _tune(self, settings: Settings, by: str | None = None) -> None:
        storage = await self._opened()
        await storage.tune(Target("queue", self.name), settings, by=remark(by, field="by"))


def _on_request(kind: object) -> OnRequest:
    name = event_name(kind.__name__) if isinstance(kind, type) else None
    for known in get_args(OnRequest):
        if name == known:
            return cast(OnRequest, known)
    raise UsageError(f"{shown(kind)} is not recorded on request; use a class such as JobStarted")
