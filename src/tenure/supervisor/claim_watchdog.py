"""Kills a worker process whose event loop turns but whose claim loop hangs, so that it is replaced.

    the claim loop has had no answer for `limit` ──► the storage answers us ──10 s later──► it still does, and the claim
    loop still has no answer ──► the event is recorded, so the storage also accepts writes ──► the process is killed

The claim loop turns even if there is nothing to claim (paused queues, parked jobs, a used-up rate, no free capacity).
It stops if the storage is out of reach, but then we cannot reach the storage either.
"""

import asyncio
from collections.abc import Awaitable, Callable
from logging import Logger

from msgspec import Struct

from tenure.clock import Clock
from tenure.core.events import WorkerHung
from tenure.core.job import Owner
from tenure.storage.protocol import ClaimRequest, RenewRequest, Storage
from tenure.supervisor.child import KillReason
from tenure.worker.loop_lag import TICK
from tenure.worker.scoreboard import Scoreboard

LONGEST_LIMIT = 60.0
"""Seconds without an answer after which a claim loop counts as stuck, unless its worker has a shorter `max_block`."""

SHORTEST_LIMIT = 12.0
"""The least limit, even if `max_block` is shorter: a healthy loop turns every 5 s, and a failing call may take 5 s."""

CONFIRM_AFTER = 10.0
"""Seconds between the first and the second check of the storage: a loop that was only delayed continues meanwhile."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks of the scoreboard."""

ANSWER_TIMEOUT = 5.0
"""Seconds that the storage gets to answer us."""


class ScoreboardReading(Struct, frozen=True):
    """The uptimes at which the loops last turned, as read from a scoreboard; 0 if a loop is not expected to turn."""

    turned_at: float
    claimed_at: float


def limit(max_block: float) -> float:
    """Return how many seconds a claim loop may go without an answer."""
    return max(SHORTEST_LIMIT, min(LONGEST_LIMIT, max_block))


def stuck(reading: ScoreboardReading, now: float) -> float:
    """Return for how many seconds the claim loop has had no answer; 0 if the event loop does not turn either."""
    if not reading.turned_at or not reading.claimed_at or now - reading.turned_at > 2 * TICK:
        return 0.0
    return max(0.0, reading.turned_at - reading.claimed_at)


class ClaimWatchdog:
    """Monitors the claim loop of one worker process; `turn` checks once."""

    def __init__(
        self,
        storage: Storage,
        owner: Owner,
        worker: Owner,
        scoreboard: Scoreboard,
        *,
        queues: tuple[str, ...],
        max_block: float,
        clock: Clock,
        logger: Logger,
        read_stacks: Callable[[], Awaitable[str]],
        kill: Callable[[KillReason], None],
    ) -> None:
        """Monitor `worker`; ask the storage as `owner`.

        `queues`: those that the worker serves. `ask`: returns the stacks of its threads. `condemn`: kills the process.
        """
        self._storage = storage
        self._owner = owner
        self._worker = worker
        self._scoreboard = scoreboard
        self._queues = queues
        self._limit = limit(max_block)
        self._clock = clock
        self._logger = logger
        self._read_stacks = read_stacks
        self._kill = kill
        self._suspected: tuple[float, float] | None = None
        """The uptime of the claim loop's last answer, and when the storage has answered us since."""
        self._killed = False

    async def turn(self) -> float:
        """Check once, and act if necessary; return the seconds until the next check. Never raises."""
        try:
            await self._check()
        except Exception:
            # Catch every error: without this loop a worker whose claim loop hangs is never replaced.
            self._logger.exception("cannot check the claim loop of worker %d, retrying", self._worker.pid)
        return CHECK_INTERVAL

    async def _check(self) -> None:
        reading, now = ScoreboardReading(self._scoreboard.turned_at, self._scoreboard.claimed_at), self._clock.uptime()
        if self._killed or stuck(reading, now) <= self._limit:
            self._suspected = None
        elif self._suspected is None or self._suspected[0] != reading.claimed_at:
            if await self._answers():
                self._suspected = (reading.claimed_at, self._clock.uptime())
        elif now - self._suspected[1] >= CONFIRM_AFTER:
            answered, since = await self._answers(), self._scoreboard.claimed_at
            if answered and since == reading.claimed_at:
                await self._kill_worker(now - reading.claimed_at, since)
            else:
                self._suspected = None

    async def _answers(self) -> bool:
        """Send the storage the claim loop's request, for 0 jobs; return True if it answers."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self._storage.exchange(self._owner, [], ClaimRequest(self._queues, 0))
        except Exception:
            # After any error a new process would not get an answer either.
            return False
        return True

    async def _kill_worker(self, silent: float, since: float) -> None:
        stack = await self._read_stacks()
        if self._scoreboard.claimed_at != since:
            # It had an answer after all, while we asked.
            self._suspected = None
            return
        event = WorkerHung(owner=self._worker.id, blocked_for=silent, stack=stack)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self._storage.renew(RenewRequest(self._worker, events=(event,)))
        except Exception as error:
            self._logger.warning(
                "worker %d claims nothing, and the storage does not record the event: %r", self._worker.pid, error
            )
            self._suspected = None
            return
        self._logger.error(
            "worker %d: its event loop turns, but its claim loop has had no answer for %.0f s, although the "
            "storage answers; killing it",
            self._worker.pid,
            silent,
        )
        self._killed = True
        self._kill(KillReason("not_claiming", silent, self._limit, stack=stack, recorded=True))
