"""The exchange loop of a worker: it settles outcomes, claims jobs while there is room, then waits for an event.

    idle ──event (a hint, an outcome, an order), or due (the next job, the poll behind the hints)──► one call, alone
       ▲                                                     │
       └── answered, and nothing is left to send ◄───────────┤
                                                             │   for half of the room at most
    two calls ◄── ready meanwhile: at least a quarter ───────┤
       │          of the capacity in outcomes, or in room    │
       │          for jobs that are known to wait            │
       └── answered: the same amount is ready again, or the other call goes on, and then one call alone

    errors:  a call fails ──► wait until no other call is open ──► back off ──► probe: one call, claims nothing
             its answer is lost ──► the next call of its lane, or a beat, has its jobs handed back (core/lane.py)
             an unexpected exception of the storage ──► one outcome at a time, claims nothing

While the storage works on one call, the handlers of the other call run and their outcomes wait: both sides work. If
the storage works in this process (`Storage.remote` is false), one call at a time carries everything. An outcome is in
one call at a time, and open calls count against the room. If two calls overlap, either answer about the jobs that are
left may be out of date. So only a call alone decides that the queues are empty.

The claims of a worker are numbered: a call takes a lane that no other call uses, and the next number of that lane.

    take ──► under way ──┬── answered: its leases are held
                         └── lost: the next call of the lane, or a beat, has the storage hand back the claimed jobs
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import Event, WorkerFailed
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import Ref
from tenure.core.lane import Lane
from tenure.core.settlement import Settlement
from tenure.errors import StorageError
from tenure.storage.notification_retry import Hints
from tenure.storage.protocol import SETTLE_LIMIT, ClaimRequest, ExchangeResult, RenewRequest, queue_topic
from tenure.worker.active_runs import ActiveRun, StopReason
from tenure.worker.deps import WorkerDeps
from tenure.worker.executor import Executor
from tenure.worker.known_tasks import KnownTasks
from tenure.worker.outcomes import Outcomes
from tenure.worker.recycling import RecyclePolicy


class ClaimNumbers:
    """The lanes of one worker. Each is replaced as a whole, because beats read them from another thread."""

    def __init__(self, count: int) -> None:
        self._lanes = [Lane(number, 1) for number in range(count)]
        self._free = deque(range(count))

    @property
    def all(self) -> tuple[Lane, ...]:
        """The current state of each lane."""
        return tuple(self._lanes)

    @property
    def any_lost(self) -> bool:
        """Return True if a lane that is free has lost its last answer."""
        return any(map(self._is_lost, self._free))

    def take(self) -> Lane:
        """Return a free lane for a call, preferably one that has lost an answer."""
        number = next(filter(self._is_lost, self._free), self._free[0])
        self._free.remove(number)
        return self._lanes[number]

    def answered(self, lane: Lane) -> None:
        """Note that a call is over, and that the worker holds the claimed leases."""
        self._over(Lane(lane.id, lane.number + 1, lane.number))

    def lost(self, lane: Lane) -> None:
        """Note that a call is over, and that its answer will never be used."""
        self._over(structs.replace(lane, number=lane.number + 1))

    def _over(self, lane: Lane) -> None:
        self._lanes[lane.id] = lane
        self._free.append(lane.id)

    def _is_lost(self, number: int) -> bool:
        lane = self._lanes[number]
        return lane.answered < lane.number - 1


SHORTAGE_LIMIT = 4.0
"""A burst that is short of descriptors ends after this many seconds without a run."""

POLL = 5.0
"""Seconds between two claims if no hint comes and no job falls due. A poll finds the jobs of lost notifications."""

RETRY_DELAY = ExponentialDelay(0.05, 2.0)
"""The backoff between two tries at an unreachable storage: with the time of the try itself, 5 s at most."""

LAST_RETRY_DELAY = 0.25
"""The longest backoff once the worker is about to leave, in seconds."""

UNSETTLED_LIMIT = 1000
"""If more outcomes than this wait for the storage, the worker claims no more jobs."""

SECOND_CALL_MINIMUM = 4
"""A second call needs at least this many outcomes or this much room, and at least a quarter of the capacity. Each call
costs both sides something, and the first call is answered soon."""


class _Call:
    """One open call to the storage: its content and when it was sent."""

    def __init__(self, batch: list[Settlement], order: ClaimRequest | None, *, asked_at: float, failures: int) -> None:
        self.batch = batch
        self.claim = order
        self.asked_at = asked_at
        self.failures = failures
        """The value of the failure counter when the call was made."""
        self.room = 0 if order is None else order.room
        """How many jobs the call may claim."""
        self.alone = True
        """True if no other call was open at any time since this one was made."""
        self.lane = None if order is None else order.lane
        """The lane and number of the claim, until the call is over."""


class ExchangeLoop:
    """Claims and settles for one owner."""

    def __init__(
        self,
        deps: WorkerDeps,
        runs: Executor,
        outcomes: Outcomes,
        *,
        queues: tuple[str, ...],
        known: KnownTasks,
        concurrency: int,
        recycle_policy: RecyclePolicy,
        publish: Callable[[Event], None],
        short: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._short = short
        self._storage, self._owner, self._active_runs = deps.storage, deps.owner, deps.active_runs
        self._clock, self._rng, self._logger, self._metrics = deps.clock, deps.rng, deps.logger, deps.metrics
        self._runs = runs
        runs.over = self._over
        self._outcomes = outcomes
        self._queues = queues
        self._known = known
        self._parallel_calls = 2 if deps.storage.remote and concurrency >= 2 * SECOND_CALL_MINIMUM else 1
        self.lanes = ClaimNumbers(self._parallel_calls)
        self._recycle_policy = recycle_policy
        self._recycling = asyncio.Event()
        self._publish = publish
        self._calls: list[_Call] = []
        """The open calls, the oldest first."""
        self._requested = 0
        """How many jobs the open calls may claim."""
        self._idle_tasks = deque[asyncio.Future[None]]()
        """The futures of the call tasks that have nothing to do."""
        self._wake_handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._event_came = False
        """True if an event came since the last call that was made alone."""
        self._due = True
        """True if the next call is due even without an event."""
        self._due_at = 0.0
        """The loop time at which the next call is due."""
        self._more_ready = False
        """True if the latest answer said that more jobs are ready."""
        self._idle = asyncio.Event()
        self._driven = False
        """True while `idle` makes the calls, and the call tasks make none."""
        self._began = asyncio.Event()
        """Set when claimed jobs can begin, or when none will."""
        self._claiming = True
        self._leaving = False
        self._failures = 0
        self.turned_at = deps.clock.uptime()
        """The uptime of the last call, or of the last check that found nothing to send; or of the oldest open call."""
        self.answered_at = self.turned_at
        """The uptime of the last answer, or of the last check that found nothing to send; never after the oldest open
        call."""
        self.quiet = False
        """True if an operator ordered this worker to claim no more. Its runs go on."""
        self.empty = False
        """True if the last claim found nothing to start, and the next one would not either. A burst waits for this."""

    @property
    def released(self) -> int:
        """The number of runs that were handed back."""
        return self._runs.released

    @property
    def running(self) -> int:
        """The number of runs that go on."""
        return self._runs.running

    @property
    def unstopped(self) -> tuple[Ref, ...]:
        """The first few exclusive runs that were stopped but go on. Safe from any thread."""
        return self._runs.unstopped

    @property
    def unsettled(self) -> list[str]:
        """The ids of the jobs whose outcomes the storage has not answered yet."""
        return self._outcomes.ids

    async def run(self) -> None:
        """Settle and claim until cancelled."""
        topics = [queue_topic(queue) for queue in self._queues]
        hints = Hints(self._storage, topics, rng=self._rng, logger=self._logger, on_hint=self._hinted)

        async def listen() -> None:
            while True:
                await hints.next()
                self._hinted()

        try:
            async with asyncio.TaskGroup() as group:
                failure = self._runs.begin()
                self._began.set()
                group.create_task(listen())
                for _ in range(self._parallel_calls):
                    group.create_task(self._call_task())
                try:
                    await failure
                finally:
                    # Runs that end with this loop are handed back. They must not look as if their handlers had failed.
                    self.stop_all()
        except GeneratorExit:
            # The event loop does not run any more, so nothing can be awaited.
            raise
        except BaseException:
            await self._runs.end()
            raise
        finally:
            hints.close()

    def set_quiet(self, quiet: bool) -> None:
        """Claim no more until this is called with False. The jobs of an open claim still run."""
        self.quiet = quiet
        if quiet:
            self._runs.hand_back()
        self._note_event()

    def set_concurrency(self, concurrency: int) -> None:
        """Run this many jobs at once from now on. A smaller number stops no run and hands back prefetched jobs."""
        self._runs.hand_back()
        self._runs.set_concurrency(concurrency)
        self._note_event()

    def stop_claiming(self) -> None:
        """Claim no more. The jobs of an open claim are handed back, not begun."""
        self._claiming = False
        self._runs.stopping = True
        self._runs.hand_back()
        # Make the next try at once, even during a backoff.
        self._due = True
        self._began.set()
        self._idle.set()
        self._note_event()

    def stop_run(self, run: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Stop a run. A coroutine is cancelled; a thread is only notified, because it cannot be cancelled."""
        self._runs.stop(run, reason, detail)

    def stop_all(self) -> None:
        """Stop all runs, because the worker ends."""
        self._runs.stop_all()

    def release_rest(self, delay: int) -> None:
        """Hand back the runs that do not end, due again after `delay` microseconds, when this process is gone."""
        self._leaving = True
        self._runs.release(delay)
        # Outcomes may wait for a storage that was unreachable for long. This is their last chance.
        self._note_event()

    async def settled(self) -> None:
        """Wait until no run goes on, no call is open that may claim more, and every outcome has been answered."""
        while self._runs or self._outcomes or self._calls:
            self._idle.clear()
            await self._idle.wait()

    async def flush(self) -> None:
        """Send the waiting outcomes when the exchange loop has ended."""
        self._claiming = False
        while self._outcomes:
            self._due = True
            call = self._next_call()
            if call is not None:
                await self._send(call)
            if not self._due:
                await asyncio.sleep(RETRY_DELAY.first)

    def recycle(self, why: str) -> None:
        """Claim no more, because this process is to be recycled. Its runs go on."""
        self._recycle_policy.require(why)
        self._runs.hand_back()
        self._note_event()

    async def wait_for_recycling(self) -> str:
        """Wait until this process must be recycled and claims no more. Return the reason."""
        await self._recycling.wait()
        return self._recycle_policy.reason() or ""

    async def runs_over(self) -> None:
        """Wait until no run goes on."""
        while self._runs:
            self._idle.clear()
            await self._idle.wait()

    async def idle(self) -> bool:
        """Wait until a claim from now on has found nothing, no run goes on, and every outcome has been answered.

        This call makes the storage calls itself, which saves turns of the event loop. Return False at once if the
        worker stops.
        """
        await self._began.wait()
        self.empty, self._due, self._driven = False, True, True
        try:
            while self._claiming and (not self.empty or self._runs or self._outcomes or self._calls):
                call = self._next_call()
                if call is not None:
                    await self._send(call)
                    continue
                if self._failing:
                    self._set_timer()
                self._idle.clear()
                await self._idle.wait()
        finally:
            self._driven = False
        if self._event_came:
            self._wake_soon()
        return self._claiming

    async def wait_until_empty(self) -> str | None:
        """Wait until a claim has found nothing, no run goes on, and every outcome has been answered.

        Return the reason if the process cannot claim, because it has been short of a resource for a while, and no run
        goes on.
        """
        short_since: float | None = None
        while not self.empty or self._runs or self._outcomes:
            now, why = self._clock.uptime(), self._short()
            if why is None or self._runs or self._outcomes or self._calls:
                short_since = None
            elif short_since is None:
                short_since = now
            elif now - short_since >= SHORTAGE_LIMIT:
                return why
            self._idle.clear()
            await self._idle.wait()
        return None

    # ------------------------------------------------------------------------------------------------- the call tasks

    async def _call_task(self) -> None:
        while True:
            call = self._next_call()
            if call is None:
                await self._wait_for_work()
            else:
                await self._send(call)

    async def _wait_for_work(self) -> None:
        resting = asyncio.get_running_loop().create_future()
        self._idle_tasks.append(resting)
        if not self._calls:
            self._set_timer()
        try:
            await resting
        finally:
            if resting in self._idle_tasks:
                self._idle_tasks.remove(resting)

    def _note_event(self) -> None:
        self._event_came = True
        self._wake_soon()

    def _hinted(self) -> None:
        self._event_came = True
        # At once: no other event of this turn of the loop could join the same call.
        self._wake()

    def _over(self) -> None:
        """Note that a run is over."""
        self._idle.set()
        self._event_came = True
        if self._wake_handle is None and self._idle_tasks and not self._driven:
            self._wake_soon()

    def _wake_soon(self) -> None:
        # At the end of this turn of the loop, so that all runs that end in it join the same call.
        if self._wake_handle is None and self._idle_tasks:
            self._wake_handle = asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        """Wake a call task if there is something to do."""
        if self._wake_handle is not None:
            self._wake_handle.cancel()
            self._wake_handle = None
        if self._driven:
            self._idle.set()
        elif self._idle_tasks and self._is_call_due():
            hand = self._idle_tasks.popleft()
            # It may have been cancelled in this turn of the loop.
            if not hand.done():
                hand.set_result(None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._due_at, self._fall_due)

    def _fall_due(self) -> None:
        self._due = True
        self._wake()

    # ------------------------------------------------------------------------------------------------------ the calls

    @property
    def _failing(self) -> bool:
        return self._failures > 0 or self._outcomes.refused

    def _room(self) -> int:
        if not self._claiming or self.quiet or len(self._outcomes) > UNSETTLED_LIMIT:
            return 0
        if self._short() is not None:
            return 0
        return max(0, self._runs.room - self._requested)

    def _is_call_due(self) -> bool:
        """Return True if it is time for a call."""
        if not self._calls:
            # During a backoff, hints and outcomes do not shorten the wait. Otherwise they would overload the storage.
            return self._due or (self._event_came and not self._failures)
        if len(self._calls) == self._parallel_calls or self._failing:
            return False
        worth = max(SECOND_CALL_MINIMUM, self._runs.capacity // 4)
        return self._outcomes.waiting >= worth or (self._more_ready and self._room() >= worth)

    def _next_call(self) -> _Call | None:
        """Return the next call if it is due and has content. It counts as open from now on."""
        if not self._is_call_due():
            return None
        now = self._clock.uptime()
        if self._recycle_policy.reason() is not None:
            self._recycling.set()
        if not self._calls:
            self._due = self._event_came = False
            self.turned_at = now
            if self._timer is not None:
                self._timer.cancel()
        # After an unexpected exception, send one outcome at a time and claim nothing. An outcome that causes the
        # failure must not delay the others, and an outcome that does not cause it must not be blamed.
        refused = self._outcomes.refused
        batch = self._outcomes.take(1 if refused else SETTLE_LIMIT)
        room = 0 if refused else min(self._room(), -(-self._runs.capacity // self._parallel_calls))
        if not batch and room == 0:
            self.answered_at = now
            self._idle.set()
            self._due_in(POLL)
            return None
        # After a failure, claim nothing before the storage has answered again. Each claim whose answer is lost costs
        # its jobs a start.
        order = None
        if room:
            room_now = 0 if self._failures else room
            order = ClaimRequest(self._queues, room_now, self.lanes.take(), tasks=self._known.versions)
        call = _Call(batch, order, asked_at=now, failures=self._failures)
        for other in self._calls:
            other.alone = call.alone = False
        self._calls.append(call)
        self._requested += call.room
        if self._parallel_calls > 1:
            # There may be enough work for the other call task, too.
            self._wake_soon()
        return call

    async def _send(self, call: _Call) -> None:
        try:
            if call.batch:
                await self._send_signs(call.batch)
            answer = await self._storage.exchange(self._owner, call.batch, call.claim)
        except StorageError as error:
            self._back_off(call, error)
        except Exception as error:
            self._logger.exception("an exchange failed with an unexpected exception")
            self._back_off(call, error)
            self._outcomes.put_back(call.batch)
            self._outcomes.note_failure(call.batch, error)
        else:
            self._answered(call, answer)
        finally:
            if call.lane is not None:
                self.lanes.lost(call.lane)
            self._outcomes.put_back(call.batch)
            self._calls.remove(call)
            self._requested -= call.room
            self._metrics.called("exchange", self._clock.uptime() - call.asked_at)
            if self._calls:
                self.turned_at = self._calls[0].asked_at
                self.answered_at = min(self.answered_at, self.turned_at)
            self._idle.set()

    def _answered(self, call: _Call, answer: ExchangeResult) -> None:
        if call.failures == self._failures:
            # It was sent after the latest failure.
            self._failures = 0
        self.answered_at = self._clock.uptime()
        missing = 0
        if call.batch:
            self._outcomes.apply(answer.verdicts)
            missing = self._outcomes.put_back(call.batch) if len(answer.verdicts) < len(call.batch) else 0
            call.batch = []
        # From here on, the runs themselves count against the room.
        self._requested -= call.room
        claimed, call.room = call.room > 0, 0
        taken = self._runs.hold(answer.leases, call.asked_at) if answer.leases else []
        # Before the first run begins: this worker now hands these jobs back itself, so the storage must not.
        if call.lane is not None and not answer.seen:
            self.lanes.answered(call.lane)
            call.lane = None
        if taken:
            self._runs.take(taken, begin=self._claiming)
        last = len(self._calls) == 1
        # Each queue is first in turn, so that a full one cannot delay the others.
        self._queues = self._queues[1:] + self._queues[:1]
        self._more_ready = answer.left
        self.empty = claimed and call.alone and not answer.leases and not answer.left and answer.next_due != 0
        if self._failures or not last:
            return
        if missing:
            # A part of the storage did not answer for them. They are sent again.
            self._due_in(RETRY_DELAY.first)
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
            self._due_in(POLL if answer.next_due is None else min(POLL, answer.next_due / SECOND))

    def _due_in(self, seconds: float) -> None:
        self._due_at = asyncio.get_running_loop().time() + seconds

    def _back_off(self, call: _Call, error: Exception) -> None:
        if call.failures < self._failures:
            # It was open when another call failed: that is the same failure.
            return
        self._failures += 1
        wait = min(RETRY_DELAY.rest(self._failures, self._rng), LAST_RETRY_DELAY if self._leaving else math.inf)
        self._due_in(wait)
        if self._failures == 1:
            self._logger.warning("the storage is unavailable, retrying: %s", error)
        self._publish(WorkerFailed(error=str(error), retry_in=wait))

    async def _send_signs(self, batch: list[Settlement]) -> None:
        """Send the last progress and log lines of handlers, so that a job that ends before its first beat has a log."""
        find = self._active_runs.get
        ending = [run for entry in batch if (run := find((entry.ref, entry.fence))) is not None]
        for run in ending:
            # A beat that is in flight may arrive after the settlement, and would be refused.
            run.signs.recall()
        talking = [run for run in ending if run.signs.pending]
        if not talking:
            return
        now = self._clock.uptime()
        messages = [run.renewal(now) for run in talking]
        try:
            pulse = await self._storage.renew(RenewRequest(self._owner, tuple(message.renewal for message in messages)))
        except BaseException:
            for message in messages:
                message.take_back()
            raise
        incomplete = set(pulse.incomplete)
        for message in messages:
            if message.run.key in incomplete:
                # Its settlement is not answered either, so both are sent again.
                message.take_back()
