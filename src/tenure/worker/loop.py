"""The loop of a worker: settles what is done, claims what there is room for, then waits well.

    resting ──stirred (a hint, an outcome, an order), or due (the next job, the net under the hints)──► a call, alone
       ▲                                                     │
       └── answered, and nothing is left to ask ◄────────────┤
                                                             │   for half of the room at most
    two calls ◄── gathered meanwhile: a good part of a ──────┤
       │          worker's worth of outcomes, or of room     │
       │          for jobs that are known to wait            │
       └── answered: that many more have gathered, or it is left to the other, and then to one alone

    trouble: a call fails ──► wait until no other is under way ──► back off ──► probe: one call, claims nothing
             its answer is lost ──► the next call of its lane, or a beat, has handed back what it claimed (core/lane.py)
             a failure that no storage has a name for ──► one outcome at a time, claims nothing

While the storage works on one call the handlers of the other run, and their outcomes gather: both sides work. Where
the storage is no other side (`Storage.apart`), one call at a time takes all. An outcome is in one call at a time, and
calls under way count against the room. What a call that had company says of what is left may have been overtaken by
the other; so the last word is always that of one alone.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from random import Random

from tenure.clock import SECOND, Clock
from tenure.core.events import Event, WorkerFailed
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import Owner, Ref
from tenure.core.settlement import Settlement
from tenure.errors import StorageError
from tenure.storage.notification_retry import Hints
from tenure.storage.protocol import SETTLE_LIMIT, ClaimRequest, ExchangeResult, RenewRequest, Storage, queue_topic
from tenure.worker.active_runs import ActiveRun, ActiveRuns, StopReason
from tenure.worker.claim_numbers import ClaimNumbers
from tenure.worker.executor import Executor
from tenure.worker.known_tasks import KnownTasks
from tenure.worker.outcomes import Outcomes
from tenure.worker.recycling import RecyclePolicy
from tenure.worker.worker_metrics import WorkerMetrics

SHORT_FOR = 4.0
"""Seconds without a run after which a burst ends that is short of descriptors."""

POLL = 5.0
"""Seconds between two claims when nothing was hinted at and nothing falls due: the net under the notices."""

PATIENCE = ExponentialDelay(0.05, 2.0)
"""Between two tries at a storage that is out of reach; with the time that a try itself may take, 5 s at most."""

HASTE = 0.25
"""The longest of these rests once the worker is about to leave."""

UNSETTLED_LIMIT = 1000
"""With more outcomes than this waiting for the storage, no more jobs are claimed."""

LEAST_WORTH = 4
"""For fewer outcomes, or less room, than this no second call is made beside another; nor for less than a quarter of
what the worker holds at a time: each call costs both sides something, and soon the other is answered."""


class _Call:
    """One call under way: what it was asked, and when."""

    def __init__(self, batch: list[Settlement], order: ClaimRequest | None, *, asked_at: float, failures: int) -> None:
        self.batch = batch
        self.order = order
        self.asked_at = asked_at
        self.failures = failures
        """How many had failed when it was made."""
        self.room = 0 if order is None else order.room
        """How many jobs it may bring."""
        self.alone = True
        """Whether no other was under way at any time since it was made."""
        self.lane = None if order is None else order.lane
        """How it is numbered, until it is over."""


class ExchangeLoop:
    """Claims and settles for one owner."""

    def __init__(
        self,
        storage: Storage,
        owner: Owner,
        runs: Executor,
        outcomes: Outcomes,
        holdings: ActiveRuns,
        *,
        queues: tuple[str, ...],
        known: KnownTasks,
        concurrency: int,
        wear: RecyclePolicy,
        clock: Clock,
        rng: Random,
        logger: logging.Logger,
        tell: Callable[[Event], None],
        tally: WorkerMetrics,
        short: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._short = short
        self._storage = storage
        self._owner = owner
        self._runs = runs
        runs.over = self._over
        self._outcomes = outcomes
        self._holdings = holdings
        self._queues = queues
        self._known = known
        self._hands = 2 if storage.apart and concurrency >= 2 * LEAST_WORTH else 1
        self.lanes = ClaimNumbers(self._hands)
        self._wear = wear
        self._worn = asyncio.Event()
        self._clock = clock
        self._rng = rng
        self._logger = logger
        self._tell = tell
        self._tally = tally
        self._calls: list[_Call] = []
        """Those under way, the eldest first."""
        self._ordered = 0
        """How many jobs they may bring."""
        self._resting = deque[asyncio.Future[None]]()
        """The hands that have nothing to do."""
        self._looking: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stirred = False
        """Whether something has happened since the last call was made that was alone."""
        self._due = True
        """Whether it is time for the next call, whatever has happened."""
        self._due_at = 0.0
        """When it will be, by the loop's time."""
        self._left = False
        """Whether the latest answer has told of ready jobs that were left behind."""
        self._idle = asyncio.Event()
        self._claiming = True
        self._leaving = False
        self._failures = 0
        self.turned_at = clock.uptime()
        """When the loop last asked for something, or found that it had nothing to ask; the eldest call under way."""
        self.answered_at = self.turned_at
        """When the storage last answered, or it had nothing to ask; but not after the eldest call under way."""
        self.quiet = False
        """Whether an operator has told it to claim no more; what runs goes on."""
        self.empty = False
        """Whether the last claim found nothing to start, and the next one would not either; what a burst waits for."""

    @property
    def released(self) -> int:
        """How many runs were handed back."""
        return self._runs.released

    @property
    def running(self) -> int:
        """How many runs go on."""
        return self._runs.running

    @property
    def unstopped(self) -> tuple[Ref, ...]:
        """The first few exclusive runs that were told to stop and go on; from any thread."""
        return self._runs.unstopped

    @property
    def unsettled(self) -> list[str]:
        """The ids of the jobs whose outcomes the storage has not answered yet."""
        return self._outcomes.ids

    async def run(self) -> None:
        """Settle and claim until cancelled."""
        topics = [queue_topic(queue) for queue in self._queues]
        hints = Hints(self._storage, topics, rng=self._rng, logger=self._logger, hear=self._hinted)

        async def listen() -> None:
            while True:
                await hints.next()
                self._hinted()

        try:
            async with asyncio.TaskGroup() as crew:
                failure = self._runs.begin()
                crew.create_task(listen())
                for _ in range(self._hands):
                    crew.create_task(self._hand())
                try:
                    await failure
                finally:
                    # What is cut off with this loop is handed back; it must not look as if its handlers had failed.
                    self.stop_all()
        except GeneratorExit:
            # Nothing turns any more, so there is nothing to wait for.
            raise
        except BaseException:
            await self._runs.end()
            raise
        finally:
            hints.close()

    def be_quiet(self, quiet: bool) -> None:
        """Claim no more until told otherwise; what a claim in flight still brings is run."""
        self.quiet = quiet
        if quiet:
            self._runs.hand_back()
        self._stir()

    def stop_claiming(self) -> None:
        """Claim no more; what a claim in flight still brings is handed back unbegun."""
        self._claiming = False
        self._runs.stopping = True
        self._runs.hand_back()
        # Whatever it waits for, the next try is made at once.
        self._due = True
        self._stir()

    def stop_run(self, held: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Make a run end. A coroutine is cancelled; a thread can only be told, and is."""
        self._runs.stop(held, reason, detail)

    def stop_all(self) -> None:
        """Make all runs end, for the worker must."""
        self._runs.stop_all()

    def release_rest(self, delay: int) -> None:
        """Hand back the runs that would not end, due again after `delay` microseconds: by then we are gone."""
        self._leaving = True
        self._runs.release(delay)
        # Outcomes may wait for a storage that was out of reach for long; this is their last chance.
        self._stir()

    async def settled(self) -> None:
        """Wait until no run goes on, no call is under way that may bring more, and every outcome has been answered."""
        while self._runs or self._outcomes or self._calls:
            self._idle.clear()
            await self._idle.wait()

    async def flush(self) -> None:
        """Send the outcomes that wait, where no loop does."""
        self._claiming = False
        while self._outcomes:
            self._due = True
            call = self._next()
            if call is not None:
                await self._make(call)
            if not self._due:
                await asyncio.sleep(PATIENCE.first)

    def wear_out(self, why: str) -> None:
        """Claim no more, for this process is to be replaced; its runs go on."""
        self._wear.wear_out(why)
        self._runs.hand_back()
        self._stir()

    async def worn_out(self) -> str:
        """Wait until this process is worn out and claims no more; return why."""
        await self._worn.wait()
        return self._wear.out() or ""

    async def runs_over(self) -> None:
        """Wait until no run goes on."""
        while self._runs:
            self._idle.clear()
            await self._idle.wait()

    async def dry(self) -> str | None:
        """Wait until a claim has found nothing, no run goes on, and every outcome has been answered.

        Returns why nothing can be claimed if no run goes on and the process has been short of something for a while.
        """
        short_since: float | None = None
        while not self.empty or self._runs or self._outcomes:
            now, why = self._clock.uptime(), self._short()
            if why is None or self._runs or self._outcomes or self._calls:
                short_since = None
            elif short_since is None:
                short_since = now
            elif now - short_since >= SHORT_FOR:
                return why
            self._idle.clear()
            await self._idle.wait()
        return None

    # ------------------------------------------------------------------------------------------------------ the hands

    async def _hand(self) -> None:
        while True:
            call = self._next()
            if call is None:
                await self._rest()
            else:
                await self._make(call)

    async def _rest(self) -> None:
        resting = asyncio.get_running_loop().create_future()
        self._resting.append(resting)
        if not self._calls:
            self._set_timer()
        try:
            await resting
        finally:
            if resting in self._resting:
                self._resting.remove(resting)

    def _stir(self) -> None:
        self._stirred = True
        self._look_soon()

    def _hinted(self) -> None:
        self._stirred = True
        # At once: nothing else of this turn could go along.
        self._look()

    def _over(self) -> None:
        """Take note that a run is over."""
        self._idle.set()
        self._stirred = True
        if self._looking is None and self._resting:
            self._look_soon()

    def _look_soon(self) -> None:
        # At the end of this turn of the loop: what ends in it goes along.
        if self._looking is None and self._resting:
            self._looking = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Let a hand go to work if there is something to do."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._resting and self._wanted():
            hand = self._resting.popleft()
            # It may have been cancelled in this very turn.
            if not hand.done():
                hand.set_result(None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._due_at, self._fall_due)

    def _fall_due(self) -> None:
        self._due = True
        self._look()

    # ------------------------------------------------------------------------------------------------------ the calls

    @property
    def _troubled(self) -> bool:
        return self._failures > 0 or self._outcomes.refused

    def _room(self) -> int:
        if not self._claiming or self.quiet or len(self._outcomes) > UNSETTLED_LIMIT:
            return 0
        if self._short() is not None:
            return 0
        return max(0, self._runs.room - self._ordered)

    def _wanted(self) -> bool:
        """Say whether it is time for a call."""
        if not self._calls:
            # While the storage is in trouble neither a hint nor an outcome shortens the rest: they would storm it.
            return self._due or (self._stirred and not self._failures)
        if len(self._calls) == self._hands or self._troubled:
            return False
        worth = max(LEAST_WORTH, self._runs.capacity // 4)
        return self._outcomes.waiting >= worth or (self._left and self._room() >= worth)

    def _next(self) -> _Call | None:
        """Return the next call, if it is time for one and there is something to ask; it is under way from now on."""
        if not self._wanted():
            return None
        now = self._clock.uptime()
        if self._wear.out() is not None:
            self._worn.set()
        if not self._calls:
            self._due = self._stirred = False
            self.turned_at = now
            if self._timer is not None:
                self._timer.cancel()
        # After a failure that no storage has a name for: one at a time, and no claim. What is at fault must not hold up
        # the others, and an innocent outcome must not be blamed for it.
        refused = self._outcomes.refused
        batch = self._outcomes.take(1 if refused else SETTLE_LIMIT)
        room = 0 if refused else min(self._room(), -(-self._runs.capacity // self._hands))
        if not batch and room == 0:
            self.answered_at = now
            self._idle.set()
            self._rest_for(POLL)
            return None
        # After a failure nothing is claimed before the storage has answered again: each claim whose answer is lost
        # would cost its jobs a start.
        order = None
        if room:
            room_now = 0 if self._failures else room
            order = ClaimRequest(self._queues, room_now, self.lanes.take(), tasks=self._known.versions)
        call = _Call(batch, order, asked_at=now, failures=self._failures)
        for other in self._calls:
            other.alone = call.alone = False
        self._calls.append(call)
        self._ordered += call.room
        # There may be enough to do for the other hand, too.
        self._look_soon()
        return call

    async def _make(self, call: _Call) -> None:
        try:
            await self._send_signs(call.batch)
            answer = await self._storage.exchange(self._owner, call.batch, call.order)
        except StorageError as error:
            self._back_off(call, error)
        except Exception as error:
            self._logger.exception("an exchange failed in a way that no storage should")
            self._back_off(call, error)
            self._outcomes.back(call.batch)
            self._outcomes.blame(call.batch, error)
        else:
            self._answered(call, answer)
        finally:
            if call.lane is not None:
                self.lanes.lost(call.lane)
            self._outcomes.back(call.batch)
            self._calls.remove(call)
            self._ordered -= call.room
            self._tally.called("exchange", self._clock.uptime() - call.asked_at)
            if self._calls:
                self.turned_at = self._calls[0].asked_at
                self.answered_at = min(self.answered_at, self.turned_at)
            self._idle.set()

    def _answered(self, call: _Call, answer: ExchangeResult) -> None:
        if call.failures == self._failures:
            # It was asked after whatever has failed.
            self._failures = 0
        self.answered_at = self._clock.uptime()
        missing = 0
        if call.batch:
            self._outcomes.heed(answer.verdicts)
            missing = self._outcomes.back(call.batch) if len(answer.verdicts) < len(call.batch) else 0
            call.batch = []
        # From here on the runs themselves count.
        self._ordered -= call.room
        claimed, call.room = call.room > 0, 0
        taken = self._runs.hold(answer.leases, call.asked_at)
        # Before the first of them begins: what this worker holds, it hands back itself, and the storage must not.
        if call.lane is not None and not answer.seen:
            self.lanes.answered(call.lane)
            call.lane = None
        self._runs.take(taken, begin=self._claiming)
        last = len(self._calls) == 1
        # Each queue is the first in its turn, so that a full one cannot keep the others waiting.
        self._queues = self._queues[1:] + self._queues[:1]
        self._left = answer.left
        self.empty = claimed and call.alone and not answer.leases and not answer.left and answer.next_due != 0
        if self._failures or not last:
            return
        if missing:
            # A part of the storage gave no verdict on them; they wait for the others.
            self._rest_for(PATIENCE.first)
        elif (
            self._outcomes
            or (answer.left and self._room())
            or call.failures
            or not call.alone
            or answer.seen
            or self.lanes.any_lost
        ):
            self._due = True
        else:
            self._rest_for(POLL if answer.next_due is None else min(POLL, answer.next_due / SECOND))

    def _rest_for(self, seconds: float) -> None:
        self._due_at = asyncio.get_running_loop().time() + seconds

    def _back_off(self, call: _Call, error: Exception) -> None:
        if call.failures < self._failures:
            # It was under way when another failed; that is the same trouble.
            return
        self._failures += 1
        wait = min(PATIENCE.rest(self._failures, self._rng), HASTE if self._leaving else math.inf)
        self._rest_for(wait)
        if self._failures == 1:
            self._logger.warning("the storage cannot be used, trying again: %s", error)
        self._tell(WorkerFailed(error=str(error), retry_in=wait))

    async def _send_signs(self, batch: list[Settlement]) -> None:
        """Send what the handlers said at last; a job that ends before its first beat has a log all the same."""
        find = self._holdings.get
        talking = [
            held for asked in batch if (held := find((asked.ref, asked.fence))) is not None and held.signs.pending
        ]
        if not talking:
            return
        now = self._clock.uptime()
        messages = [one.message(now) for one in talking]
        try:
            pulse = await self._storage.renew(RenewRequest(self._owner, tuple(message.renewal for message in messages)))
        except BaseException:
            for message in messages:
                message.unsent()
            raise
        unanswered = set(pulse.unanswered)
        for message in messages:
            if message.held.key in unanswered:
                # Its settlement is not answered either, and both are sent again.
                message.unsent()
