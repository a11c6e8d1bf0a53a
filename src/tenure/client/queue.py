"""The queue handle: changes the settings of a queue, which the storage holds and all workers use."""

from collections.abc import Awaitable, Callable
from typing import cast, get_args

from msgspec import Struct

from tenure.background_loop import PORTAL
from tenure.core.check import named, of_kind, remark, shown
from tenure.core.events import AnyEvent, Event, OnRequest, event_name
from tenure.errors import UsageError
from tenure.options import Rate, Retention, Stall, valid_stall
from tenure.options.lifetime import retention_in_force
from tenure.options.rate import rate_key, rate_of
from tenure.options.stall import stall_of
from tenure.storage.protocol import QUEUE_RATE, Settings, Storage, Target


class QueueSettings(Struct, frozen=True, kw_only=True):
    """The settings of a queue that are in force for all its jobs.

    - `paused`: True if the queue starts no jobs.
    - `rate`: how often its jobs may start, all tasks together; None: no limit.
    - `stall`: the stall options that override those of the tasks; None: the tasks' own hold.
    - `retention`: how long ended jobs are kept, by outcome, with the defaults where nothing is set.
    - `record`: the optional events that it records.
    """

    paused: bool
    rate: Rate | None
    stall: Stall | None
    retention: Retention
    record: tuple[type[Event], ...]


class Queue:
    """A queue of an app: `app.queue("mail")`. The storage holds its settings, and all workers use them."""

    def __init__(self, opened: Callable[[], Awaitable[Storage]], name: str) -> None:
        self.name = named(name, field="queue")
        self._opened = opened

    async def settings(self) -> QueueSettings:
        """Return the settings that are in force; for a queue that the storage does not know, the defaults.

        Raises:
            StorageError: the storage cannot be reached.
        """
        (queue,) = (await (await self._opened()).survey([self.name])).queues
        stored = queue.settings
        return QueueSettings(
            paused=queue.paused,
            rate=rate_of(stored.rate),
            stall=stall_of(stored.stall),
            retention=retention_in_force(stored.retention),
            record=tuple(_OPTIONAL_EVENTS[name] for name in stored.record or ()),
        )

    def settings_sync(self) -> QueueSettings:
        """Call `settings` from code without a running event loop."""
        return PORTAL.call(self.settings(), verb="settings")

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

    async def lift_limit(self, rate: str | None = None, *, by: str | None = None) -> None:
        """End the limits that handlers of the queue's jobs have set with `RateLimited`: start these jobs again.

        `rate`: the name of the one rate whose limit ends, as `tenure queues list` shows it, or "queue" for the limit of
        the whole queue. None ends all of them. Jobs that raised `RateLimited` themselves keep their delay.

        Raises:
            UsageError: `rate` is not a name, or `by` is not a string.
            StorageError: the change may or may not have been stored; it is safe to call again.
        """
        await self._tune(Settings(lift="*" if rate is None else named(rate, field="rate")), by)

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


_OPTIONAL_EVENTS: dict[str, type[Event]] = {
    name: kind for kind in get_args(AnyEvent) if (name := event_name(kind.__name__)) in get_args(OnRequest)
}


def _on_request(kind: object) -> OnRequest:
    name = event_name(kind.__name__) if isinstance(kind, type) else None
    for known in get_args(OnRequest):
        if name == known:
            return cast(OnRequest, known)
    raise UsageError(f"{shown(kind)} is not recorded on request; use a class such as JobStarted")
