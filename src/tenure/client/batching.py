"""Batches concurrent enqueues: jobs that callers on one event loop enqueue at the same time go in one storage call.

    a caller ──no call for its queue is in flight──► a call for its job alone
             └─one is──► waits ──that one returns──► one call for all that wait ──► each gets the result of its job

No timer is used: a batch is sent when the previous call returns, so a single caller never waits. Callers that a batch
has answered may join the next one before it is sent, so callers in lockstep stay together. Each queue has batches of
its own, so a part of the storage that refuses jobs does not delay others. `enqueue_many` does not use this: its jobs
are stored together or not at all, so they are sent as given.
"""

import asyncio
import contextvars
from collections import deque

from msgspec import Struct, field

from tenure.core.job import NewJob
from tenure.errors import NotDurableError, StorageFullError, StorageUnavailableError
from tenure.storage.protocol import EnqueueResult, Storage

JOBS = 100
"""The most jobs in one call: Redis does nothing else while it stores them.

See docs/decisions/026-short-redis-scripts.md.
"""

BYTES = 1_000_000
"""The bytes of arguments after which a batch takes no more jobs."""

LONG = 0.05
"""Seconds after which new callers no longer wait for a call in flight: its connection may be dead."""

FIRST = 1
"""The number of the first call in a `_QueueBatch`."""

_COMMON_ERRORS = (StorageUnavailableError, StorageFullError, NotDurableError)
"""Errors that no single job causes. After any other error, each job is sent once more, alone."""


class EnqueueBatcher:
    """Batches the enqueues of one app, for each event loop of this process."""

    def __init__(self) -> None:
        self._batches: dict[asyncio.AbstractEventLoop, dict[str, _QueueBatch]] = {}

    async def enqueue(self, storage: Storage, job: NewJob) -> EnqueueResult:
        """Store one job, together with jobs that other callers enqueue meanwhile. Return its `EnqueueResult`.

        If the caller is cancelled, the job is withdrawn only if it has not been sent yet.

        Raises:
            StorageError: the job may or may not have been stored. Other callers of the batch may get the same error.
        """
        loop = asyncio.get_running_loop()
        batches = self._batches.get(loop)
        if batches is None:
            batches = self._batches_of(loop)
        batch = batches.get(job.queue)
        if batch is not None:
            return await batch.add(job)
        batch = batches[job.queue] = _QueueBatch(loop, storage, batches, job.queue, loop.time())
        try:
            [receipt] = await storage.enqueue([job])
            return receipt
        finally:
            batch.returned(FIRST)

    def _batches_of(self, loop: asyncio.AbstractEventLoop) -> "dict[str, _QueueBatch]":
        # Other threads may add and remove their event loops at the same time.
        for closed in [known for known in list(self._batches) if known.is_closed()]:
            self._batches.pop(closed, None)
        batches = self._batches[loop] = {}
        return batches


_Caller = tuple[NewJob, "asyncio.Future[EnqueueResult]"]
"""A caller that waits for the next batch: its job, and the future for the result."""


class _QueueBatch(Struct, eq=False):
    """The calls in flight for one queue. It exists from the first call until no call is in flight and no caller waits.

    Usually one call is in flight. If there are more, the older ones are late, and only the latest sends the next batch.
    The first call runs in its caller's own task. Most of these objects see no other call, so it is a Struct, which is
    cheap to make.
    """

    loop: asyncio.AbstractEventLoop
    storage: Storage
    batches: "dict[str, _QueueBatch]"
    queue: str
    sent_at: float
    latest: int = FIRST
    latest_in_flight: bool = True
    in_flight: int = 1
    tasks: dict[int, asyncio.Task[None]] = {}
    waiting: deque[_Caller] = field(default_factory=deque[_Caller])

    def add(self, job: NewJob) -> "asyncio.Future[EnqueueResult]":
        """Add a job to the next batch and return the future for its result."""
        answer: asyncio.Future[EnqueueResult] = self.loop.create_future()
        self.waiting.append((job, answer))
        if not self.latest_in_flight or self.loop.time() - self.sent_at > LONG:
            self._send()
        return answer

    def returned(self, number: int) -> None:
        """Note that a call has returned. If it was the latest and callers wait, send the next batch."""
        self.in_flight -= 1
        self.tasks.pop(number, None)
        if number == self.latest:
            self.latest_in_flight = False
            if self.waiting:
                self._send()
        if not self.in_flight:
            del self.batches[self.queue]

    def _send(self) -> None:
        self.sent_at = self.loop.time()
        self.latest += 1
        self.latest_in_flight = True
        self.in_flight += 1
        # Use an empty context: the batch belongs to no single caller.
        self.tasks[self.latest] = self.loop.create_task(
            self._run(self.latest), name="tenure-enqueue", context=contextvars.Context()
        )

    async def _run(self, number: int) -> None:
        callers = self._next_callers()
        try:
            if callers:
                await self._enqueue(callers)
        finally:
            for _, answer in callers:
                # Cancels only futures without an answer: the event loop is ending.
                answer.cancel()
            # Run after the answered callers, which may enqueue again at once.
            self.loop.call_soon(self.returned, number)

    def _next_callers(self) -> list[_Caller]:
        """Return the callers of the next batch, without those that were cancelled."""
        callers: list[_Caller] = []
        size = 0
        while self.waiting and len(callers) < JOBS and size <= BYTES:
            caller = self.waiting.popleft()
            job, answer = caller
            if not answer.done():
                callers.append(caller)
                size += len(job.payload)
        return callers

    async def _enqueue(self, callers: list[_Caller]) -> None:
        try:
            receipts = await self.storage.enqueue([job for job, _ in callers])
        except Exception as error:
            if len(callers) > 1 and not isinstance(error, _COMMON_ERRORS):
                for caller in callers:
                    await self._enqueue([caller])
                return
            for _, answer in callers:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for (_, answer), receipt in zip(callers, receipts, strict=True):
                if not answer.done():
                    answer.set_result(receipt)
