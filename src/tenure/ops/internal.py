"""Tenure's own tasks: makes their jobs, and serves their queues in consoles and in workers with `--internal`."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from msgspec import structs

from tenure.client.codec import JsonCodec
from tenure.client.decorators import TaskDeclaration
from tenure.client.encoder import CallEncoder
from tenure.client.migration import versions
from tenure.client.storage_client import StorageClient
from tenure.client.task import AppServices, Task
from tenure.client.value_types import ValueTypes
from tenure.clock import entropy
from tenure.core.duration import micros
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.internal import INTERNAL, INTERNAL_QUEUES
from tenure.core.job import NewJob
from tenure.core.lifecycle import State
from tenure.errors import StorageError
from tenure.events.bus import Handlers
from tenure.maintenance.lost_runs import settle_stalled
from tenure.ops.access import StorageAccess
from tenure.options import TaskOptions, Timing
from tenure.options.tasks import CallOptions
from tenure.runtime import Runtime
from tenure.storage.protocol import Query, Storage
from tenure.worker.worker import Worker

logger = logging.getLogger("tenure.internal")

CONCURRENCY = 10
"""How many internal jobs one process runs at once, in addition to those of tasks with a concurrency limit."""

DRAIN = 0.5
"""Seconds that internal jobs get to end when their worker stops. They go on where another worker serves them."""

PATIENCE = ExponentialDelay(1.0, 30.0)
"""Delay between two starts of a worker that failed, or whose storage is unreachable."""

LOOKED_AT = 100
"""How many active jobs of internal queues one look for lost ones reads."""

Agent = Callable[[str], Coroutine[Any, Any, None]]
"""Takes the owner id of a worker, and runs as long as that works."""

InternalHandler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class InternalTask:
    """A task of ours. `handler`: returns the coroutine function of the task, for a storage."""

    name: str
    queue: str
    options: TaskOptions
    handler: Callable[[Storage], InternalHandler]

    def bound(self, storage: Storage, timing: Timing) -> Task[..., Any]:
        """Return the task for a worker of this storage."""
        codec = JsonCodec()
        encoder = CallEncoder(codec, new_id=str, logger=logger)
        client = StorageClient(storage, lambda: storage, codec, rng=entropy(), logger=logger)
        services = AppServices(timing, encoder, client, Handlers(), ValueTypes(None), serves_others=False)
        task = TaskDeclaration(self.name, self.options, versions(1, 1)).define(self.handler(storage)).task
        task.bind(task.binding_in(services, self.name, self.options))
        return task

    def job(self, storage: Storage, timing: Timing, *arguments: Any, options: CallOptions) -> NewJob:
        """Return a new job of the task, which no caller has enqueued yet."""
        call = self.bound(storage, timing).options(**options).call(*arguments)
        return structs.replace(call.job, queue=self.queue)


@dataclass
class InternalWorker:
    """Serves the internal queues in the running event loop, from `start` to `stop`.

    `access`: returns the storage, open. If it is unreachable, this tries again. It recovers internal jobs whose process
    died even if no reaper runs, because an operator must be able to act when all workers are down.
    """

    access: Callable[[], Awaitable[StorageAccess]]
    tasks: Callable[[StorageAccess], Sequence[InternalTask]]
    agents: Callable[[StorageAccess], Sequence[Agent]]
    _serving: asyncio.Task[None] | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    """The number of attempts in a row in which no worker has started."""

    def start(self) -> None:
        """Begin to serve. Idempotent."""
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve(), name="tenure internal queues")

    async def stop(self) -> None:
        """Claim no more and hand back what runs. Idempotent."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.wait([serving])

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self) -> None:
        rng = entropy()
        while True:
            try:
                await self._work()
            except Exception as error:
                self._failures += 1
                if self._failures == 1:
                    unexpected = None if isinstance(error, StorageError | OSError) else error
                    logger.warning("cannot serve internal queues, trying again: %r", error, exc_info=unexpected)
            await asyncio.sleep(PATIENCE.rest(self._failures or 1, rng))

    async def _work(self) -> None:
        access = await self.access()
        tasks = self.tasks(access)
        runtime = self._runtime(access, tasks)
        # Each limited task, such as the one of a webhook whose receiver hangs, leaves the other slots to other tasks.
        limits = [task.options.concurrency_limit or 0 for task in tasks]
        worker = Worker(runtime, queues=INTERNAL_QUEUES, concurrency=CONCURRENCY + sum(limits), drain=DRAIN)
        try:
            await worker.start()
            self._failures = 0
            async with asyncio.TaskGroup() as group:
                agents = [agent(worker.owner.id) for agent in self.agents(access)]
                background = [group.create_task(agent) for agent in (_recover(runtime), *agents)]
                await worker.wait()
                for task in background:
                    task.cancel()
        finally:
            await worker.stop()

    def _runtime(self, access: StorageAccess, tasks: Sequence[InternalTask]) -> Runtime:
        return Runtime(
            app=INTERNAL.rstrip("."),
            storage=access.storage,
            tasks={task.name: task.bound(access.storage, access.timing) for task in tasks},
            codec=JsonCodec(),
            event_handlers=Handlers(),
            timing=access.timing,
            logger=logger,
        )


async def _recover(runtime: Runtime) -> None:
    """Recover internal jobs that a reaper should have recovered and did not.

    This does not sweep: a sweep would also fire the schedules and recover the jobs of a fleet that is down on purpose.
    """
    timing, storage = runtime.timing, runtime.storage
    late = micros(timing.grace + 2 * timing.sweep)
    while True:
        await asyncio.sleep(timing.beat.total_seconds())
        with contextlib.suppress(StorageError, OSError):
            active = Query(queues=INTERNAL_QUEUES, states=(State.ACTIVE,), limit=LOOKED_AT)
            jobs = (await storage.find(active)).jobs
            if not jobs:
                continue
            now = (await storage.survey(INTERNAL_QUEUES)).now
            for owner in {job.owner for job in jobs if job.owner and job.lease_until and job.lease_until + late < now}:
                logger.info("no reaper recovers the internal jobs of %s; recovering them here", owner)
                await _take_over(runtime, owner)


async def _take_over(runtime: Runtime, owner: str) -> None:
    """Take the jobs of an owner whose leases have ended, and settle their runs. It serves internal queues alone."""
    # A new owner for each call: if an answer is lost, the next look finds the jobs under it.
    taker = runtime.owner()
    while True:
        taken = await runtime.storage.reclaim(owner, taker)
        if not await settle_stalled(runtime.storage, taker, taken.stalled, runtime.rng, metrics=runtime.metrics):
            return
        if not taken.more:
            return
