"""Heals a worker whose event loop turns and whose claim loop does not: it has its process replaced.

    the claim loop has had no answer for `limit` ──► the storage answers us ──10 s later──► it still does, and the claim
    loop still has none ──► put on record, which is a write that it has answered, too ──► the process has to go

A worker with nothing to claim (paused queues, parked jobs, a rate that is spent, no room) turns all the same. One whose
storage is out of reach does not, but then it is out of our reach as well.
"""

import asyncio
from collections.abc import Awaitable, Callable
from logging import Logger

from msgspec import Struct

from tenure.clock import Clock
from tenure.core.events import WorkerHung
from tenure.core.job import Owner
from tenure.storage.protocol import ClaimRequest, RenewRequest, Storage
from tenure.supervisor.kill_reason import KillReason
from tenure.worker.loop_lag import TICK
from tenure.worker.scoreboard import Scoreboard

LONGEST = 60.0
"""Seconds without an answer after which a claim loop counts as stuck, unless its worker has a shorter `max_block`."""

SHORTEST = 12.0
"""However short that is: a healthy loop turns every 5 s, and a call that fails may take as long."""

AGAIN = 10.0
"""Seconds after the first look at the storage until the second: time for a loop that was only held up to go on."""

LOOK = 1.0
"""Seconds between two looks."""

ANSWER = 5.0
"""Seconds that the storage gets to answer us."""


class ScoreboardReading(Struct, frozen=True):
    """What stands on a slate: the uptimes at which the loops last turned, 0 where nothing is expected of one."""

    turned_at: float
    claimed_at: float


def limit(max_block: float) -> float:
    """Return how many seconds a claim loop may go without an answer."""
    return max(SHORTEST, min(LONGEST, max_block))


def stuck(reading: ScoreboardReading, now: float) -> float:
    """Return for how many seconds the claim loop has had no answer although the event loop turns; 0 if it does not."""
    if not reading.turned_at or not reading.claimed_at or now - reading.turned_at > 2 * TICK:
        return 0.0
    return max(0.0, reading.turned_at - reading.claimed_at)


class ClaimWatchdog:
    """Looks after the claim loop of one worker process; `turn` looks once."""

    def __init__(
        self,
        storage: Storage,
        owner: Owner,
        worker: Owner,
        slate: Scoreboard,
        *,
        queues: tuple[str, ...],
        max_block: float,
        clock: Clock,
        logger: Logger,
        ask: Callable[[], Awaitable[str]],
        condemn: Callable[[KillReason], None],
    ) -> None:
        """Take in whose name the storage is asked, and whom it is about. `queues`: those that the worker serves."""
        self._storage = storage
        self._owner = owner
        self._worker = worker
        self._slate = slate
        self._queues = queues
        self._limit = limit(max_block)
        self._clock = clock
        self._logger = logger
        self._ask = ask
        self._condemn = condemn
        self._suspected: tuple[float, float] | None = None
        """Its last answer, and when the storage has answered us since."""
        self._condemned = False

    async def turn(self) -> float:
        """Look once, and do what has to be done; return the seconds until the next look. Never raises."""
        try:
            await self._look()
        except Exception:
            # Whatever it is: who dies here leaves a worker that nobody heals.
            self._logger.exception("cannot look after the claim loop of worker %d, trying again", self._worker.pid)
        return LOOK

    async def _look(self) -> None:
        reading, now = ScoreboardReading(self._slate.turned_at, self._slate.claimed_at), self._clock.uptime()
        if self._condemned or stuck(reading, now) <= self._limit:
            self._suspected = None
        elif self._suspected is None or self._suspected[0] != reading.claimed_at:
            if await self._answers():
                self._suspected = (reading.claimed_at, self._clock.uptime())
        elif now - self._suspected[1] >= AGAIN:
            answered, since = await self._answers(), self._slate.claimed_at
            if answered and since == reading.claimed_at:
                await self._end(now - reading.claimed_at, since)
            else:
                self._suspected = None

    async def _answers(self) -> bool:
        """Ask the storage what the claim loop asks it for, but for no job."""
        try:
            async with asyncio.timeout(ANSWER):
                await self._storage.exchange(self._owner, [], ClaimRequest(self._queues, 0))
        except Exception:
            # Whatever it is: with such a storage another process would get no further.
            return False
        return True

    async def _end(self, silent: float, since: float) -> None:
        stack = await self._ask()
        if self._slate.claimed_at != since:
            # It had an answer after all, while we asked.
            self._suspected = None
            return
        event = WorkerHung(owner=self._worker.id, blocked_for=silent, stack=stack)
        try:
            async with asyncio.timeout(ANSWER):
                await self._storage.renew(RenewRequest(self._worker, events=(event,)))
        except Exception as error:
            self._logger.warning(
                "worker %d claims nothing, and the storage takes no record of it: %r", self._worker.pid, error
            )
            self._suspected = None
            return
        self._logger.error(
            "worker %d: its event loop turns, but its claim loop has had no answer for %.0f s, though the storage "
            "answers us; it is killed",
            self._worker.pid,
            silent,
        )
        self._condemned = True
        self._condemn(KillReason("not_claiming", silent, self._limit, stack=stack, recorded=True))
