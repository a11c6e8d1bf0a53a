"""The queue handle: changes the settings of a queue, which the storage holds and all workers use."""

from collections.abc import Awaitable, Callable
from typing import cast, get_args

from tenure.core.check import named, of_kind, remark, shown
from tenure.core.events import Event, OnRequest, event_name
from tenure.errors import UsageError
from tenure.options import Rate, Retention, Stall, valid_stall
from tenure.options.rate import rate_key
from tenure.storage.protocol import QUEUE_RATE, Settings, Storage, Target


class Queue:
    """A queue of an app: `app.queue("mail")`. The storage holds its settings, and all workers use them."""

    def __init__(self, opened: Callable[[], Awaitable[Storage]], name: str) -> None:
        self.name = named(name, field="queue")
        self._opened = opened

    async def set_stall(self, stall: Stall) -> None:
        """Override the stall options of the queue's tasks, from each job's next claim on.

        Stall options of a single call still take precedence.

        Raises:
            UsageError: `stall` is not a `Stall`.
            StorageError: the options may or may not have been stored; it is safe to call again.
        """
        await self._tune(Settings(stall=valid_stall(stall).setting()))

    async def pause(self, *, by: str | None = None) -> None:
        """Pause the queue: start no more of its jobs. Running jobs go on. `by` names the operator, for the record.

        Raises:
            UsageError: `by` is not a string.
            StorageError: the change may or may not have been stored; it is safe to call again.
        """
        await self._tune(Settings(paused=True), by)

    async def resume(self, *, by: str | None = None) -> None:
        """Resume the queue: start its jobs again.

        Raises:
            UsageError: `by` is not a string.
            StorageError: the change may or may not have been stored; it is safe to call again.
        """
        await self._tune(Settings(paused=False), by)

    async def set_rate(self, rate: Rate | str | None, *, by: str | None = None) -> None:
        """Set how many of the queue's jobs may start per time, of all its tasks together.

        `rate`: "100/s", a `Rate`, or None for no limit.

        Raises:
            UsageError: `rate` is not a rate, or has a key; or `by` is not a string.
            StorageError: the change may or may not have been stored; it is safe to call again.
        """
        await self._tune(Settings(rate=rate_key(rate, QUEUE_RATE)), by)

    async def set_retention(self, retention: Retention) -> None:
        """Set how long ended jobs are kept; outcomes that `retention` leaves out keep their setting.

        Raises:
            UsageError: `retention` is not a `Retention`.
            StorageError: the change may or may not have been stored; it is safe to call again.
        """
        valid = of_kind(retention, Retention, field="retention", remedy='write Retention(failed=Keep("90d"))')
        await self._tune(Settings(retention=valid.setting()))

    async def record(self, *kinds: type[Event]) -> None:
        """Set which optional events the queue records; without arguments, none of them.

        The optional events are `JobEnqueued`, `JobDeduplicated`, `JobDebounced`, `JobThrottled`, `JobCollected`,
        `JobRescheduled`, `JobStarted`, `JobProgressed`, `JobSuspected` and `QueueDrained`. Each costs a write.

        Raises:
            UsageError: an argument is not one of these classes.
            StorageError: the change may or may not have been stored; it is safe to call again.
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
