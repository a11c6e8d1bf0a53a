"""The relay: takes the calls that users' transactions have committed from the outbox, and enqueues them.

    read the first calls of a queue ──► receive(number, calls) ──► delete them

Each batch of a queue raises a number in the target, and the target remembers the calls of the latest batch. A relay
deletes those calls before it sends the next batch. So a batch that is sent again, by this relay or by another one, is
refused, however much later that is. See docs/decisions/036-outbox.md.
"""

import asyncio
import math
from collections.abc import Callable

from tenure.clock import SECOND
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.move import Call, MoveBatch, MoveReceipt
from tenure.errors import (
    NotDurableError,
    SchemaMismatchError,
    StorageFullError,
    StorageMovedError,
    StorageUnavailableError,
    UsageError,
)
from tenure.metrics import RELAY_DELAY, RELAYED
from tenure.outbox.outbox import LIMIT, Outbox, StoredCall
from tenure.runtime import Runtime
from tenure.storage.moving import MoveTarget

POLL = 0.2
"""Seconds between two looks at an outbox."""

OVERTAKEN = 1.0
"""Seconds for which a relay leaves a queue alone if another one works on it."""

TRIES = 5
"""A call is put aside after it has failed alone so often, while the target takes others. Invalid ones at once."""

FORGET_EVERY = 60.0
"""Seconds between two deletions of old answers."""

SPREAD = 0.2
"""Each wait is shorter by a random share up to this one."""

RETRY = ExponentialDelay(0.5, 15.0)
"""Delay after failures of a queue, or of the outbox."""

BATCHES = 50
"""After this number of batches of one queue the other queues get their turn."""

_INVALID = (UsageError, ValueError, TypeError)
"""Errors that come again with each try."""

_PASSING = (NotDurableError, SchemaMismatchError, StorageFullError, StorageMovedError, StorageUnavailableError, OSError)
"""Errors that concern the target as a whole, not a call."""


def _nothing(step: str) -> None:
    """Ignore a step."""


class Relay:
    """The relay of one process. Any number of them may run.

    `on_step`: called after each step that is not undone if the process ends: `read`, `received`, `settled`.
    """

    def __init__(self, runtime: Runtime, *, on_step: Callable[[str], None] = _nothing) -> None:
        """Take the runtime of an app that has an outbox.

        Raises:
            UsageError: it has none.
        """
        if runtime.outbox is None:
            raise UsageError('this app has no outbox; write Tenure(..., outbox="postgresql://...")')
        if not isinstance(runtime.storage, MoveTarget):
            raise UsageError(f"{runtime.storage.url} cannot receive the calls of an outbox")
        self._outbox: Outbox = runtime.outbox
        self._target: MoveTarget = runtime.storage
        self._storage = runtime.storage
        self._clock = runtime.clock
        self._rng = runtime.rng
        self._logger = runtime.logger
        self._metrics = runtime.metrics
        self._on_step = on_step
        self._numbers: dict[str, int] = {}
        """The number of the latest batch of a queue, if its calls are deleted."""
        self._failures: dict[str, int] = {}
        self._retry_at: dict[str, float] = {}
        """Until when a queue is left alone."""
        self._tries: dict[tuple[str, int], int] = {}
        """How often a call has failed alone."""
        self._forgot_at = float("-inf")

    async def run(self) -> None:
        """Relay until cancelled."""
        failures = 0
        while True:
            try:
                wait = await self.turn()
                failures = 0
            except Exception as error:
                failures += 1
                if failures == 1:
                    self._logger.warning("cannot read the outbox %s, trying again: %s", self._outbox.url, error)
                wait = RETRY.rest(failures, self._rng)
            await asyncio.sleep(wait * (1 - SPREAD * self._rng.random()))

    async def turn(self) -> float:
        """Relay what waits; return the seconds until the next turn.

        Raises:
            StorageError: the outbox cannot be read.
        """
        await self._outbox.open()
        await self._storage.open()
        now = self._clock.uptime()
        if now >= self._forgot_at + FORGET_EVERY:
            self._forgot_at = now
            await self._outbox.forget()
        more = False
        for one in await self._outbox.queues():
            if self._retry_at.get(one.queue, -math.inf) <= self._clock.uptime():
                more = await self._tried(one.queue) or more
        return 0.0 if more else POLL

    async def _tried(self, queue: str) -> bool:
        """Relay the calls of a queue; return True if more may wait. If that fails, the calls of the others go on."""
        try:
            more = await self._relay(queue)
        except Exception as error:
            self._numbers.pop(queue, None)
            failures = self._failures[queue] = self._failures.get(queue, 0) + 1
            self._retry_at[queue] = self._clock.uptime() + RETRY.rest(failures, self._rng)
            if failures == 1:
                self._logger.warning(
                    "cannot relay the calls for queue %s from the outbox %s, trying again: %s",
                    queue,
                    self._outbox.url,
                    error,
                )
            return False
        self._failures.pop(queue, None)
        return more

    async def _relay(self, queue: str) -> bool:
        """Relay the calls of a queue; return True if more may wait."""
        if queue not in self._numbers:
            await self._settled(queue, await self._send(queue, None, ()))
        limit = LIMIT
        for _ in range(BATCHES):
            calls = await self._outbox.waiting(queue, limit=limit)
            if not calls:
                return False
            self._on_step("read")
            try:
                receipt = await self._send(queue, self._numbers[queue], calls)
            except _PASSING:
                raise
            except Exception as error:
                if limit > 1:
                    # One of them cannot be enqueued: send each alone.
                    limit = 1
                    continue
                if not await self._put_aside(queue, calls[0], error):
                    return self._overtaken(queue)
                continue
            if not receipt.applied:
                return self._overtaken(queue)
            self._on_step("received")
            await self._settled(queue, receipt)
            self._metrics.count(RELAYED, queue, by=len(calls))
            self._metrics.observe(RELAY_DELAY, [call.age / SECOND for call in calls], queue)
        return True

    def _overtaken(self, queue: str) -> bool:
        """Leave a queue to the relay that works on it."""
        self._numbers.pop(queue, None)
        self._retry_at[queue] = self._clock.uptime() + OVERTAKEN
        return False

    async def _send(self, queue: str, expected: int | None, calls: "list[StoredCall] | tuple[()]") -> MoveReceipt:
        jobs = tuple(Call(call.name, call.decoded()) for call in calls)
        return await self._target.receive(MoveBatch(f"outbox:{self._outbox.identity}", queue, expected, calls=jobs))

    async def _settled(self, queue: str, receipt: MoveReceipt) -> None:
        """Delete the calls of the latest batch. Only then may another batch follow."""
        await self._outbox.settle(queue, receipt)
        self._numbers[queue] = receipt.number
        self._on_step("settled")

    async def _put_aside(self, queue: str, call: StoredCall, error: Exception) -> bool:
        """Put a call aside that cannot be enqueued; return False if another relay works on this queue.

        An empty batch shows that the target takes others, and refuses the call's own batch if that is still on its way.

        Raises:
            Exception: the error, which may not come again with the next try.
        """
        receipt = await self._send(queue, self._numbers[queue], ())
        if not receipt.applied:
            return False
        await self._settled(queue, receipt)
        tries = self._tries[queue, call.seq] = self._tries.get((queue, call.seq), 0) + 1
        if tries < TRIES and not isinstance(error, _INVALID):
            raise error
        del self._tries[queue, call.seq]
        why = f"{type(error).__name__}: {error}"
        await self._outbox.refuse(queue, call, why)
        self._logger.error(
            "no job can be made of call %s for queue %s in the outbox %s: %s", call.id, queue, self._outbox.url, why
        )
        return True
