"""Shared trips: what several callers of one event loop enqueue at the same time goes to the storage in one call.

    a caller ──nobody of its queue is on the way──► a call for it alone
             └─somebody is──► waits ──that one is back──► one call for all who wait ──► to each what became of its job

There is no timer: the calls are their own clock, and who is alone waits for nobody. Those whom one call has answered
come first to be heard again before the next one leaves, so that callers in step stay together. Each queue has trips of
its own: what one part of a storage cannot take holds up no other. Calls that are to be remembered together or not at
all, those of an `enqueue_many`, are no part of this: they travel as they were given.
"""

import asyncio
import contextvars
from collections import deque

from msgspec import Struct, field

from tenure.core.job import NewJob
from tenure.errors import NotDurableError, StorageFullError, StorageUnavailableError
from tenure.storage.protocol import EnqueueResult, Storage

JOBS = 100
"""How many jobs go along in one call at most: a Redis does nothing else meanwhile (docs/why/short-scripts.md)."""

BYTES = 1_000_000
"""After how many bytes of arguments no more go along."""

LONG = 0.05
"""Seconds after which who comes does not wait for a call that is not back: its connection may have gone silent."""

FIRST = 1
"""The number of a lane's first call."""

_OF_ALL = (StorageUnavailableError, StorageFullError, NotDurableError)
"""What is no one job's fault. After any other error each job is sent once more, alone."""


class EnqueueBatcher:
    """The trips of one app, on every event loop of this process."""

    def __init__(self) -> None:
        self._lanes: dict[asyncio.AbstractEventLoop, dict[str, _QueueBatch]] = {}

    async def enqueue(self, storage: Storage, job: NewJob) -> EnqueueResult:
        """Remember one job, along with what others enqueue meanwhile, and return what became of it.

        Whoever is cancelled meanwhile takes the job back only if it has not been sent yet.

        Raises:
            StorageError: the job may have been remembered or not. The error may be told to others, too.
        """
        loop = asyncio.get_running_loop()
        lanes = self._lanes.get(loop)
        if lanes is None:
            lanes = self._new(loop)
        lane = lanes.get(job.queue)
        if lane is not None:
            return await lane.join(job)
        lane = lanes[job.queue] = _QueueBatch(loop, storage, lanes, job.queue, loop.time())
        try:
            [receipt] = await storage.enqueue([job])
            return receipt
        finally:
            lane.back(FIRST)

    def _new(self, loop: asyncio.AbstractEventLoop) -> "dict[str, _QueueBatch]":
        # Event loops of other threads may come and go at the same time.
        for over in [one for one in list(self._lanes) if one.is_closed()]:
            self._lanes.pop(over, None)
        lanes = self._lanes[loop] = {}
        return lanes


_Caller = tuple[NewJob, "asyncio.Future[EnqueueResult]"]
"""One who waits for a call to go along with, and then for the answer."""


class _QueueBatch(Struct, eq=False):
    """The calls for one queue, from when one is on the way until none is and nobody waits.

    As a rule there is one. Where others are, they are late, and the latest alone sees to those who wait. The first is
    its caller's own, and has no task here; most lanes see no other, so one is made in C.
    """

    loop: asyncio.AbstractEventLoop
    storage: Storage
    lanes: "dict[str, _QueueBatch]"
    queue: str
    left_at: float
    latest: int = FIRST
    latest_is_out: bool = True
    out: int = 1
    tasks: dict[int, asyncio.Task[None]] = {}
    waiting: deque[_Caller] = field(default_factory=deque[_Caller])

    def join(self, job: NewJob) -> "asyncio.Future[EnqueueResult]":
        """Wait for the next call, and go along with it."""
        answer: asyncio.Future[EnqueueResult] = self.loop.create_future()
        self.waiting.append((job, answer))
        if not self.latest_is_out or self.loop.time() - self.left_at > LONG:
            self._leave()
        return answer

    def back(self, number: int) -> None:
        """Note that a call is back; if it was the latest, the next one leaves if anybody waits."""
        self.out -= 1
        self.tasks.pop(number, None)
        if number == self.latest:
            self.latest_is_out = False
            if self.waiting:
                self._leave()
        if not self.out:
            del self.lanes[self.queue]

    def _leave(self) -> None:
        self.left_at = self.loop.time()
        self.latest += 1
        self.latest_is_out = True
        self.out += 1
        # Of nobody's context: none of those who share it is the one that it is for.
        self.tasks[self.latest] = self.loop.create_task(
            self._trip(self.latest), name="tenure-enqueue", context=contextvars.Context()
        )

    async def _trip(self, number: int) -> None:
        callers = self._aboard()
        try:
            if callers:
                await self._carry(callers)
        finally:
            for _, answer in callers:
                # As the event loop ends.
                answer.cancel()
            # After those who have their answers by now, and may come again at once.
            self.loop.call_soon(self.back, number)

    def _aboard(self) -> list[_Caller]:
        """Return those who go along with the next call; who has given up waiting does not."""
        callers: list[_Caller] = []
        size = 0
        while self.waiting and len(callers) < JOBS and size <= BYTES:
            caller = self.waiting.popleft()
            job, answer = caller
            if not answer.done():
                callers.append(caller)
                size += len(job.payload)
        return callers

    async def _carry(self, callers: list[_Caller]) -> None:
        try:
            receipts = await self.storage.enqueue([job for job, _ in callers])
        except Exception as error:
            if len(callers) > 1 and not isinstance(error, _OF_ALL):
                for caller in callers:
                    await self._carry([caller])
                return
            for _, answer in callers:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for (_, answer), receipt in zip(callers, receipts, strict=True):
                if not answer.done():
                    answer.set_result(receipt)
