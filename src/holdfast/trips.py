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

from holdfast.core.job import NewJob
from holdfast.errors import NotDurableError, StorageFullError, StorageUnavailableError
from holdfast.storage.protocol import Receipt, Storage

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


class Trips:
    """The trips of one app, on every event loop of this process."""

    def __init__(self) -> None:
        self._lanes: dict[asyncio.AbstractEventLoop, _Lanes] = {}

    async def enqueue(self, storage: Storage, job: NewJob) -> Receipt:
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
            if not isinstance(lane, _Lane):
                lane = lanes[job.queue] = _Lane(loop, storage, lanes, job.queue, lane)
            return await lane.join(job)
        lanes[job.queue] = loop.time()
        try:
            [receipt] = await storage.enqueue([job])
            return receipt
        finally:
            lane = lanes[job.queue]
            if isinstance(lane, _Lane):
                lane.back(FIRST)
            else:
                del lanes[job.queue]

    def _new(self, loop: asyncio.AbstractEventLoop) -> "_Lanes":
        # Event loops of other threads may come and go at the same time.
        for over in [one for one in list(self._lanes) if one.is_closed()]:
            self._lanes.pop(over, None)
        lanes = self._lanes[loop] = {}
        return lanes


_Caller = tuple[NewJob, "asyncio.Future[Receipt]"]
"""One who waits for a call to go along with, and then for the answer."""


class _Lane:
    """The calls for one queue, from when somebody comes while one is on the way until none is and nobody waits.

    As a rule there is one. Where others are, they are late, and the latest alone sees to those who wait.
    """

    __slots__ = ("_lanes", "_latest", "_latest_is_out", "_left_at", "_loop", "_out", "_queue", "_storage", "_waiting")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, storage: Storage, lanes: "_Lanes", queue: str, left_at: float
    ) -> None:
        self._loop = loop
        self._storage = storage
        self._lanes = lanes
        self._queue = queue
        self._waiting: deque[_Caller] = deque()
        self._out: dict[int, asyncio.Task[None] | None] = {FIRST: None}
        self._latest = FIRST
        self._latest_is_out = True
        self._left_at = left_at

    def join(self, job: NewJob) -> "asyncio.Future[Receipt]":
        """Wait for the next call, and go along with it."""
        answer: asyncio.Future[Receipt] = self._loop.create_future()
        self._waiting.append((job, answer))
        if not self._latest_is_out or self._loop.time() - self._left_at > LONG:
            self._leave()
        return answer

    def back(self, number: int) -> None:
        """Note that a call is back; if it was the latest, the next one leaves if anybody waits."""
        del self._out[number]
        if number == self._latest:
            self._latest_is_out = False
            if self._waiting:
                self._leave()
        if not self._out:
            del self._lanes[self._queue]

    def _leave(self) -> None:
        self._left_at = self._loop.time()
        self._latest += 1
        self._latest_is_out = True
        # Of nobody's context: none of those who share it is the one that it is for.
        self._out[self._latest] = self._loop.create_task(
            self._trip(self._latest), name="holdfast-enqueue", context=contextvars.Context()
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
            self._loop.call_soon(self.back, number)

    def _aboard(self) -> list[_Caller]:
        """Return those who go along with the next call; who has given up waiting does not."""
        callers: list[_Caller] = []
        size = 0
        while self._waiting and len(callers) < JOBS and size <= BYTES:
            caller = self._waiting.popleft()
            job, answer = caller
            if not answer.done():
                callers.append(caller)
                size += len(job.payload)
        return callers

    async def _carry(self, callers: list[_Caller]) -> None:
        try:
            receipts = await self._storage.enqueue([job for job, _ in callers])
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


_Lanes = dict[str, _Lane | float]
"""The calls by their queues; of one for which nobody waits so far, when it has left."""
