"""Monitors a worker process from its supervisor: renews its leases when it cannot, and kills it if it hangs.

    scoreboard ──a run whose renewal is overdue──► renew as its owner ──► scoreboard, where the worker reads it back
      │
      ├── the process is stopped (SIGSTOP), or its loop is blocked beyond max_block: no renewal
      └── its loop is blocked beyond max_block, or by a run far beyond its own timeout: kill the process

A worker renews its own leases as long as any of its threads runs. So usually the renewer only reads shared memory. It
is needed when a handler holds the interpreter (the GIL), which also blocks the worker's keeper thread.

    the claim loop has had no answer for `limit` ──► the storage answers us ──10 s later──► it still does, and the claim
    loop still has no answer ──► the event is recorded, so the storage also accepts writes ──► the process is killed

The claim loop turns even if there is nothing to claim (paused queues, parked jobs, a used-up rate, no free capacity).
It stops if the storage is out of reach, but then we cannot reach the storage either.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from logging import Logger
from random import Random
from typing import Protocol

from msgspec import Struct

from tenure.clock import SECOND, Clock
from tenure.core.events import WorkerHung
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import Owner, Ref
from tenure.core.lease import answer_limit
from tenure.errors import StorageError
from tenure.storage.protocol import RENEW_LIMIT, ClaimRequest, LeaseRenewal, RenewRequest, Storage
from tenure.supervisor.child import KillCode, KillReason
from tenure.worker.loop_lag import TICK, extended_limits
from tenure.worker.scoreboard import Scoreboard, WatchedRun
from tenure.worker.stacks.positions import Dump, HandlerPosition
from tenure.worker.watchdog import REMEDY, SUSPENDED_AFTER, WARN
from tenure.worker.worker_metrics import WorkerMetrics

LONGEST_INTERVAL, SHORTEST_INTERVAL = 0.5, 0.02
"""The longest and the shortest time between two checks, in seconds; short enough for a new lease of one second."""

LATE = 2.0
"""Beats after its last renewal until a run is renewed from here; its worker renews it within 1.5 beats."""

OVERDUE = 2.0
"""Seconds past its timeout after which a run that blocks its loop is killed with its process."""

STACKS_INTERVAL = 10.0
"""Seconds until a process is asked again for its stacks, if the last ones did not show which run holds the GIL."""

RETRY_DELAY = ExponentialDelay(0.1, 1.0)
"""The delay between two calls to a storage that is out of reach; short, so that a short outage costs no lease."""

RECORD_TIMEOUT = 1.0
"""Seconds that the storage gets to record that a worker hangs, if the worker may not be killed."""


class WatchedProcess(Protocol):
    """The watched process, as it is seen from outside."""

    @property
    def stopped(self) -> bool:
        """Return True if the process is stopped, so that none of its threads runs."""
        ...


class ExternalRenewer:
    """Watches one worker process; `turn` checks once."""

    def __init__(
        self,
        storage: Storage,
        owner: Owner,
        scoreboard: Scoreboard,
        process: WatchedProcess,
        *,
        beat: float,
        max_block: float,
        clock: Clock,
        rng: Random,
        logger: Logger,
        read_stacks: Callable[[], Awaitable[str]] | None,
        kill: Callable[[KillReason], None] | None,
        metrics: WorkerMetrics | None,
    ) -> None:
        """Watch the process of `owner`.

        `read_stacks`: returns the stacks of its threads, or None if not available. `kill`: kills the process, or None
        if it may not be killed. `metrics`: counts the renewals, or None.
        """
        self._storage = storage
        self._owner = owner
        self._scoreboard = scoreboard
        self._process = process
        self._beat = beat
        self._max_block = max_block
        self._clock = clock
        self._rng = rng
        self._logger = logger
        self._read_stacks = read_stacks
        self._kill = kill
        self._metrics = metrics
        self._checked_at = 0.0
        self._next_check = 0.0
        self._excused_at = 0.0
        """The uptime before which a late turn is excused, because the process or the supervisor was stopped."""
        self._warned = self._hung = 0.0
        """The last turn of the loop before the blockage that was warned about, and before the one that was ended."""
        self._blocking: tuple[Ref, int] | None = None
        """The run that has blocked the loop since its last turn, if it is known."""
        self._blocking_of = self._blocking_since = 0.0
        """That turn, and since when this run is known to block."""
        self._stacks_read_at = 0.0
        self._lost: set[tuple[Ref, int]] = set()
        self._failures = 0
        self._retry_at = 0.0
        self.killed = False

    async def turn(self) -> float:
        """Check once, and act if necessary; return the seconds until the next check. Never raises."""
        now = self._clock.uptime()
        try:
            if self._checked_at and now > self._next_check + SUSPENDED_AFTER:
                self._excused_at = now
            self._checked_at = now
            runs = self._scoreboard.runs()
            if not self.killed:
                await self._check(runs, now)
            wait = self._interval(runs)
        except Exception:
            # Catch every error: without this loop nothing renews the leases of a blocked worker.
            self._logger.exception("cannot check worker %d, retrying", self._owner.pid)
            wait = LONGEST_INTERVAL
        self._next_check = self._clock.uptime() + wait
        self._scoreboard.checked(self._clock.uptime(), self._next_check)
        return wait

    async def _check(self, runs: Sequence[WatchedRun], now: float) -> None:
        if not self._scoreboard.turned_at:
            # The loop has not started yet, or has ended in order.
            return
        silent = self._silent(now)
        self._note_blocker(runs, now)
        late = [run for run in runs if now - run.renewed_at >= self._renew_after(run, now)]
        if not late and silent <= TICK + WARN:
            return
        if self._process.stopped:
            self._excused_at = now
            return
        if silent > self._max_block + TICK:
            await self._handle_hang(runs, silent)
            return
        if late and now >= self._retry_at:
            await self._renew([run for run in late if (run.ref, run.fence) not in self._lost], now)
        if silent > TICK + WARN:
            await self._handle_block(runs, silent, now)

    def _silent(self, now: float) -> float:
        return now - max(self._scoreboard.turned_at, self._excused_at)

    def _beat_of(self, run: WatchedRun) -> float:
        return min(self._beat, run.lease / 4, run.heartbeat_timeout / 4) if run.lease < float("inf") else run.lease

    def _interval(self, runs: Sequence[WatchedRun]) -> float:
        shortest = min([self._beat, *(self._beat_of(run) for run in runs)])
        return max(SHORTEST_INTERVAL, min(LONGEST_INTERVAL, shortest / 2))

    async def _renew(self, runs: Sequence[WatchedRun], now: float) -> None:
        answered = 0
        limit = max(self._beat, LONGEST_INTERVAL)
        within = round(answer_limit(min([self._beat, *map(self._beat_of, runs)]), limit) * SECOND)
        try:
            async with asyncio.timeout(limit):
                for start in range(0, len(runs), RENEW_LIMIT):
                    part = runs[start : start + RENEW_LIMIT]
                    asked_at = self._clock.uptime()
                    renewals = tuple(self._renewal(run, now) for run in part)
                    pulse = await self._storage.renew(RenewRequest(self._owner, renewals, answer_within=within))
                    lost = {*pulse.lost}
                    self._lost |= lost
                    answered += len(part)
                    self._count(part, lost=len(lost), failed=len(pulse.incomplete))
                    for run in part:
                        if (run.ref, run.fence) not in lost and (run.ref, run.fence) not in pulse.incomplete:
                            self._scoreboard.note_external_renewal(run, asked_at)
        except (StorageError, TimeoutError) as error:
            left = runs[answered:]
            self._count(left, failed=len(left))
            if not self._failures:
                self._logger.warning(
                    "cannot renew %d leases for worker %d, retrying: %r", len(runs), self._owner.pid, error
                )
            self._failures += 1
            self._retry_at = self._clock.uptime() + RETRY_DELAY.rest(self._failures, self._rng)
        else:
            self._failures = 0
            self._lost &= {(run.ref, run.fence) for run in self._scoreboard.runs()}

    def _count(self, runs: Sequence[WatchedRun], *, lost: int = 0, failed: int = 0) -> None:
        if self._metrics is not None:
            self._metrics.renewed(renewed=len(runs) - lost - failed, lost=lost, failed=failed)

    def _renew_after(self, run: WatchedRun, now: float) -> float:
        """Return the seconds after its last renewal until a run is renewed from here."""
        # A renewal of a run with extended limits may have granted only a quarter of a lease.
        return (0.5 if self._extends(run, now) else LATE) * self._beat_of(run)

    def _extends(self, run: WatchedRun, now: float) -> bool:
        return self._extended(run, now) != (now - run.claimed_at, now - run.signed_at)

    def _renewal(self, run: WatchedRun, now: float) -> LeaseRenewal:
        ran, silent = self._extended(run, now)
        # If a run has not begun, both moments are infinite, so the differences are negative.
        return LeaseRenewal(
            run.ref,
            run.fence,
            exclusive=run.exclusive,
            ran=round(max(0.0, ran) * SECOND),
            silent=round(max(0.0, silent) * SECOND),
        )

    def _extended(self, run: WatchedRun, now: float) -> tuple[float, float]:
        return extended_limits(
            now,
            turned_at=self._scoreboard.turned_at,
            blocks_loop=(run.ref, run.fence) == self._blocking,
            no_thread_runs=self._no_thread_runs(now),
            claimed_at=run.claimed_at,
            signed_at=run.signed_at,
            lease=run.lease,
            timeout=run.timeout,
            heartbeat_timeout=run.heartbeat_timeout,
            way=run.way,
        )

    def _no_thread_runs(self, now: float) -> bool:
        """Return True if no thread of the process runs, for example because a handler holds the GIL."""
        return now - max(self._scoreboard.beaten_at, self._excused_at) > TICK + WARN

    def _note_blocker(self, runs: Sequence[WatchedRun], now: float) -> None:
        """Note which run blocks the loop, as far as the worker's own watchdog thread knows it."""
        of = self._scoreboard.turned_at
        if of != self._blocking_of:
            self._blocking, self._blocking_of, self._stacks_read_at = None, of, 0.0
        seen = None if self._no_thread_runs(now) else self._scoreboard.blocker
        if seen is None:
            # A run in a thread can block the loop only by holding the GIL, and then no other thread runs.
            able = len(runs) == 1 and (runs[0].way == "loop" or (runs[0].way == "thread" and self._no_thread_runs(now)))
            if able and self._blocking is None and now - max(of, self._excused_at) > TICK + WARN:
                # It is the only run.
                self._set_blocker(runs[0], now)
            return
        for run in runs:
            if (run.row, run.fence) == seen:
                self._set_blocker(run, now)

    def _set_blocker(self, run: WatchedRun, now: float) -> None:
        if (key := (run.ref, run.fence)) != self._blocking:
            # The first run seen counts as blocking since the last turn; a later one counts from now.
            self._blocking_since = self._blocking_of if self._blocking is None else now
            self._blocking = key

    async def _handle_block(self, runs: Sequence[WatchedRun], silent: float, now: float) -> None:
        turned_at = self._scoreboard.turned_at
        since = max(turned_at, self._excused_at)
        # The loop has not turned since their timeouts, so the worker itself could not end these runs.
        overdue = [
            run
            for run in runs
            if run.claimed_at + run.timeout + OVERDUE < now and since <= run.claimed_at + run.timeout + TICK
        ]
        unclear = self._blocking is None and self._no_thread_runs(now) and any(self._extends(run, now) for run in runs)
        if unclear and self._read_stacks is not None and now - self._stacks_read_at > STACKS_INTERVAL:
            self._stacks_read_at = now
            holder = _holder(Dump(await self._read_stacks()), runs)
            if self._scoreboard.turned_at != turned_at:
                return
            if holder is not None:
                self._set_blocker(holder, now)
        # Only the blocking run matters: the other runs cannot end before it does.
        causes = [key for run in overdue if (key := (run.ref, run.fence)) == self._blocking]
        if causes and now - max(self._blocking_since, self._excused_at) > OVERDUE:
            await self._kill_worker("timeout", silent, causes)
            return
        # As long as the worker's own watchdog thread runs, it logs the warning.
        alone = self._no_thread_runs(now)
        if (
            alone
            and self._read_stacks is not None
            and self._warned != turned_at
            and self._scoreboard.supervisor_must_warn(turned_at)
        ):
            self._warned = turned_at
            self._warn(runs, await self._read_stacks(), silent)

    async def _handle_hang(self, runs: Sequence[WatchedRun], silent: float) -> None:
        if self._hung == self._scoreboard.turned_at:
            return
        self._hung = self._scoreboard.turned_at
        causes = [key for run in runs if (key := (run.ref, run.fence)) == self._blocking]
        await self._kill_worker("loop_blocked", silent, causes)

    async def _kill_worker(self, reason: KillCode, silent: float, causes: list[tuple[Ref, int]]) -> None:
        """Kill the worker, if that is allowed; its recovery then records the hang. Otherwise record the hang here."""
        if self._kill is None and reason == "timeout":
            return
        turned_at = self._scoreboard.turned_at
        stack = "" if self._read_stacks is None else await self._read_stacks()
        if self._scoreboard.turned_at != turned_at:
            # The blockage ended by itself while we asked for the stacks.
            return
        limit = self._max_block if reason == "loop_blocked" else OVERDUE
        kill_reason = KillReason(reason, silent, limit, tuple(causes), stack)
        at = Dump(stack).on_loop()
        self._logger.error(
            "worker %d: %s%s; %s",
            self._owner.pid,
            f"its event loop has been blocked for {silent:.1f} s",
            f" at {at}" if at is not None else "",
            "its leases are no longer renewed" if self._kill is None else "killing it",
        )
        if self._kill is not None:
            # Kill without a write to the storage before: the hanging process may block other writers.
            self.killed = True
            self._kill(kill_reason)
            return
        try:
            async with asyncio.timeout(RECORD_TIMEOUT):
                await self._storage.renew(RenewRequest(self._owner, events=kill_reason.hung(self._owner.id)))
        except (StorageError, TimeoutError) as error:
            self._logger.warning("cannot record that worker %d hangs: %r", self._owner.pid, error)

    def _warn(self, runs: Sequence[WatchedRun], stack: str, silent: float) -> None:
        dump = Dump(stack)
        on_loop, in_threads = dump.on_loop(), dump.in_threads()
        found = [on_loop] if on_loop is not None else in_threads
        job_names = _name_jobs(found, [run for run in runs if run.way == ("loop" if on_loop is not None else "thread")])
        self._logger.warning(
            "%s has held the interpreter of worker %d for %.1f s: %s; its supervisor renews its leases, but no "
            "other code runs there: %s",
            job_names,
            self._owner.pid,
            silent,
            ", or ".join(map(str, found)) or "its line is unknown",
            REMEDY,
        )


def _holder(dump: Dump, runs: Sequence[WatchedRun]) -> WatchedRun | None:
    """Return the run that holds the interpreter, if the stacks of the threads show it."""
    if (on_loop := dump.on_loop()) is not None:
        found, candidates = [on_loop], [run for run in runs if run.way == "loop"]
    else:
        found, candidates = dump.in_threads(), [run for run in runs if run.way == "thread"]
    functions = {at.handler.function for at in found}
    likely = [run for run in candidates if run.task.rpartition(".")[2] in functions] or candidates
    return likely[0] if len(found) == 1 and len(likely) == 1 else None


def _name_jobs(found: Sequence[HandlerPosition], runs: Sequence[WatchedRun]) -> str:
    """Name the job that is at one of these positions, as far as the name of its function shows it."""
    functions = {at.handler.function for at in found}
    likely = [run for run in runs if run.task.rpartition(".")[2] in functions] or runs
    if not likely:
        return "something"
    named = [f"job {run.ref.id} ({run.task})" for run in likely[:3]]
    return (
        named[0] if len(likely) == 1 else f"one of {len(likely)} jobs ({', '.join(named)}{', …' * (len(likely) > 3)})"
    )


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

        `queues`: those that the worker serves. `read_stacks`: returns the stacks of its threads.
        `kill`: kills the process.
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
