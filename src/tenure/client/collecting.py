"""Tasks that collect: each call brings one item, and the handler gets the list of the collected items."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from tenure.background_loop import PORTAL
from tenure.client.job_template import collect_key
from tenure.client.task import DeclaredTask, Task
from tenure.core.check import named
from tenure.core.deduplication import accepts_merge, merge_name
from tenure.core.duration import moment
from tenure.core.job import CollectKey, JobRecord, Ref
from tenure.core.lifecycle import State
from tenure.errors import UsageError
from tenure.handlers.functions import is_async
from tenure.options import Collect
from tenure.options.keys import own_key
from tenure.storage.protocol import Query, Storage

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Item = TypeVar("Item")

PAGE = 50
"""How many batches of a key one query reads; there is seldom more than one that is not full."""


@dataclass(frozen=True)
class Batch(Generic[Item]):
    """The items that a job has collected so far; the next call joins the batch, unless it starts before.

    `queue`, `id`: the job's. `items`: in the order of their calls. `began`: the time of the first call. `due`: the time
    when the batch starts, if no further call comes and a worker is free.
    """

    queue: str
    id: str
    items: list[Item]
    began: datetime
    due: datetime

    @property
    def count(self) -> int:
        """The number of collected items."""
        return len(self.items)


class CollectTask(Task[[Item], R]):
    """A task whose calls bring one item each and are collected into one job; its handler gets the list of items."""

    async def collected(self, key: str | None = None, *, queue: str | None = None) -> Batch[Item] | None:
        """Return the batch that the next call with this key would join, or None if it would begin a new one.

        `key`: the key that `Collect` makes from an item; leave it out if `Collect` has no key. `queue`: by default
        the task's queue.

        Raises:
            UsageError: the key or the queue name is invalid, or an item cannot be decoded.
            StorageError: the storage cannot be reached.
        """
        return await self._current_batch(
            None if key is None else own_key(key, field="key"),
            self.queue if queue is None else named(queue, field="queue"),
        )

    def collected_sync(self, key: str | None = None, *, queue: str | None = None) -> Batch[Item] | None:
        """Call `collected` from code without a running event loop."""
        return PORTAL.call(self.collected(key, queue=queue), verb="collected")

    def on_cancel(  # type: ignore[override]  # its arguments are the handler's, not the call's
        self, hook: Callable[[list[Item]], T]
    ) -> Callable[[list[Item]], T]:
        """Register a hook as `Task.on_cancel` does; the hook gets the list of items, as the handler does."""
        return cast("Callable[[list[Item]], T]", super().on_cancel(cast("Callable[[Item], T]", hook)))

    async def _current_batch(self, key: str | None, queue: str) -> Batch[Item] | None:
        app = self.binding.app
        merge = collect_key(self.name, cast(Collect, self.collect), key, self.migrations.version)
        storage = await app.client.opened()
        ref = await _open_batch(storage, queue, merge)
        detail = None if ref is None else (await storage.get([ref]))[0]
        if detail is None or not accepts_merge(detail.job, merge):
            # It may have started since the query.
            return None
        job = detail.job
        try:
            (items,), _ = self.decode(app.encoder.codec, job)
        except Exception as error:
            raise UsageError(
                f"job {job.id} of task {self.name!r} has collected items that cannot be decoded: {error}; it will "
                "fail as undecodable, and can be redriven once the handler accepts them"
            ) from error
        return Batch(job.queue, job.id, items, moment(job.created), moment(job.run_at))


class AsyncCollectTask(CollectTask[Item, R]):
    """A collecting task whose handler is a coroutine function, which runs on the worker's event loop."""

    async def __call__(self, items: list[Item], /, **injected: Any) -> R:
        """Run the plain function. Pass the values that a worker would inject.

        Raises:
            UsageError: an injected value is missing.
        """
        self.signature.check_injected((items,), injected)
        value: R = await self.function(items, **injected)
        return value


class PlainCollectTask(CollectTask[Item, R]):
    """A collecting task whose handler is a plain function, which runs in one of the worker's threads."""

    def __call__(self, items: list[Item], /, **injected: Any) -> R:
        """Run the plain function. Pass the values that a worker would inject.

        Raises:
            UsageError: an injected value is missing.
        """
        self.signature.check_injected((items,), injected)
        value: R = self.function(items, **injected)
        return value


class DeclaredCollectTask(CollectTask[Item, R], DeclaredTask[[Item], R]):
    """A collecting task whose handler is in another app: items are enqueued here, and their batches run there."""

    def on_cancel(  # type: ignore[override]  # as that of any task that collects
        self, hook: Callable[[list[Item]], T]
    ) -> Callable[[list[Item]], T]:
        """Raise UsageError: the hook belongs to the task that implements this one.

        Raises:
            UsageError: always.
        """
        return super().on_cancel(hook)


def collecting_class(function: Callable[..., Any]) -> type[Task[..., Any]]:
    """Return the class of a collecting task for this function."""
    return cast("type[Task[..., Any]]", AsyncCollectTask if is_async(function) else PlainCollectTask)


class DeclareCollectDecorator(Protocol):
    """The decorator that `@app.declare(collect=...)` returns, for functions without a body that take a list."""

    @overload
    def __call__(self, function: Callable[[list[Item]], Coroutine[Any, Any, R]], /) -> DeclaredCollectTask[Item, R]: ...
    @overload
    def __call__(self, function: Callable[[list[Item]], R], /) -> DeclaredCollectTask[Item, R]: ...


class ImplementCollectDecorator(Protocol[Item, R]):
    """The decorator that `@app.implement(declared)` returns for a collecting task; its function takes the list."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[[list[Item]], Coroutine[Any, Any, R]], /
    ) -> AsyncCollectTask[Item, R]: ...
    @overload
    def __call__(self, function: Callable[[list[Item]], R], /) -> PlainCollectTask[Item, R]: ...


class CollectDecorator(Protocol):
    """The decorator that `@app.task(collect=...)` returns, for functions that take a list."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[[list[Item]], Coroutine[Any, Any, R]], /
    ) -> AsyncCollectTask[Item, R]: ...
    @overload
    def __call__(self, function: Callable[[list[Item]], R], /) -> PlainCollectTask[Item, R]: ...


async def _open_batch(storage: Storage, queue: str, key: CollectKey) -> Ref | None:
    """Return the job that the next call joins: the oldest one that still accepts calls."""
    states = (State.DELAYED, State.WAITING)
    oldest: JobRecord | None = None
    after: str | None = None
    while True:
        query = Query(queues=(queue,), states=states, merge=merge_name(key), limit=PAGE, after=after)
        page = await storage.find(query)
        # Pages list the newest jobs first.
        oldest = next((job for job in reversed(page.jobs) if accepts_merge(job, key)), oldest)
        after = page.next
        if after is None:
            return None if oldest is None else oldest.ref
