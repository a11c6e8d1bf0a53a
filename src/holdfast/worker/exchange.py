"""The loop of a worker: settles what is done, claims what there is room for, then waits well."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from holdfast.clock import SECOND, Clock
from holdfast.core.decision import Finish, PutBack
from holdfast.core.events import Event, LeaseLost, WorkerFailed
from holdfast.core.job import Owner
from holdfast.core.lease import Lease
from holdfast.core.lifecycle import State
from holdfast.core.outcome import Interrupted, Outcome, Raised, Unreadable
from holdfast.core.patience import Patience
from holdfast.core.postmortem import first_line
from holdfast.core.settlement import Settlement, settlement
from holdfast.errors import StorageError
from holdfast.storage.hints import Hints
from holdfast.storage.protocol import SETTLE_LIMIT, Beat, Exchanged, Order, Storage, queue_topic
from holdfast.task import Task
from holdfast.worker.abandoned import LINGER, Abandoned
from holdfast.worker.held import Held, Holdings, RunKey, StopReason
from holdfast.worker.on_cancel import LIMIT
from holdfast.worker.run import Runner, recorded, stopped
from holdfast.worker.slate import Way
from holdfast.worker.slots import Slots
from holdfast.worker.strays import strays
from holdfast.worker.tally import Tally
from holdfast.worker.wear import Wear

POLL = 5.0
"""Seconds between two claims when nothing was hinted at and nothing falls due: the net under the notices."""

PATIENCE = Patience(0.05, 2.0)
"""Between two tries at a storage that is out of reach; with the time that a try itself may take, 5 s at most."""

HASTE = 0.25
"""The longest of these rests once the worker is about to leave."""

REFUSALS = 3
"""How often a single outcome may fail to be recorded for a reason that is not the storage's."""

UNSETTLED_LIMIT = 1000
"""With more outcomes than this waiting for the storage, no more jobs are claimed."""


class ExchangeLoop:
    """Claims, runs and settles for one owner. Outcomes gather while a call is in flight; the next call takes them."""

    def __init__(
        self,
        storage: Storage,
        owner: Owner,
        runner: Runner,
        slots: Slots,
        holdings: Holdings,
        *,
        abandoned: Abandoned,
        queues: tuple[str, ...],
        concurrency: int,
        tasks: Mapping[str, Task[..., Any]],
        wear: Wear,
        clock: Clock,
        rng: Random,
        logger: logging.Logger,
        tell: Callable[[Event], None],
        tally: Tally,
    ) -> None:
        self._storage = storage
        self._owner = owner
        self._runner = runner
        self._slots = slots
        self._abandoned = abandoned
        self._holdings = holdings
        self._queues = queues
        self._concurrency = concurrency
        self._tasks = tasks
        self._wear = wear
        self._worn = asyncio.Event()
        self._clock = clock
        self._rng = rng
        self._logger = logger
        self._tell = tell
        self._tally = tally
        self._running: dict[RunKey, Held] = {}
        self._unsettled: dict[RunKey, Settlement] = {}
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._crew: asyncio.TaskGroup | None = None
        self._claiming = True
        self._leaving = False
        self._calling = False
        self._failures = 0
        self._in_doubt = False
        """Whether a claim was never answered: it may have been made, and there may be jobs of ours that nobody runs."""
        self._refused: dict[RunKey, int] = {}
        self.turned_at = clock.uptime()
        self.answered_at = self.turned_at
        """When the last turn was over that the storage answered, or that had nothing to ask of it."""
        self.released = 0
        self.quiet = False
        """Whether an operator has told it to claim no more; what runs goes on."""
        self.empty = False
        """Whether the last claim found nothing to start, and the next one would not either; what a burst waits for."""

    @property
    def running(self) -> int:
        """How many runs go on."""
        return len(self._running)

    @property
    def unsettled(self) -> list[str]:
        """The ids of the jobs whose outcomes the storage has not answered yet."""
        return [ref.id for ref, _ in self._unsettled]

    async def run(self) -> None:
        """Turn until cancelled."""
        topics = [queue_topic(queue) for queue in self._queues]
        hints = Hints(self._storage, topics, rng=self._rng, logger=self._logger)

        async def listen() -> None:
            while True:
                await hints.next()
                self._wake.set()

        try:
            async with asyncio.TaskGroup() as crew:
                self._crew = crew
                crew.create_task(listen())
                try:
                    while True:
                        wait = await self.turn()
                        if wait > 0:
                            await self._rest(wait)
                finally:
                    # What is cut off with this loop is handed back; it must not look as if its handlers had failed.
                    self.stop_all()
        finally:
            hints.close()

    async def turn(self) -> float:
        """Settle and claim once; return the seconds until the next turn, unless something wakes it before."""
        self.turned_at = self._clock.uptime()
        if self._wear.out() is not None:
            self._worn.set()
        self._wake.clear()
        self._hurry.clear()
        # After a failure that no storage has a name for: one at a time, and no claim. What is at fault must not hold up
        # the others, and an innocent outcome must not be blamed for it.
        batch = list(self._unsettled.values())[: 1 if self._refused else SETTLE_LIMIT]
        room = 0 if self._refused else self._room()
        if not batch and room == 0:
            self.answered_at = self._clock.uptime()
            self._idle.set()
            return POLL
        asked_at = self._clock.uptime()
        # A call that fails may be made all the same, and long after it was given up. So nothing is claimed before the
        # storage has answered again: of what such calls bring nobody would ever know.
        probing = self._failures > 0
        order = Order(self._queues, 0 if probing else room) if room else None
        claiming = order is not None and not probing
        self._calling = True
        try:
            await self._send_signs(batch)
            answer = await self._storage.exchange(self._owner, batch, order)
        except StorageError as error:
            self._in_doubt = self._in_doubt or claiming
            return self._back_off(error)
        except Exception as error:
            self._logger.exception("an exchange failed in a way that no storage should")
            self._in_doubt = self._in_doubt or claiming
            self._blame(batch, error)
            return self._back_off(error)
        finally:
            self._calling = False
            self._tally.called("exchange", self._clock.uptime() - asked_at)
        self._failures = 0
        self.answered_at = self._clock.uptime()
        self._heed(answer)
        for lease in answer.leases:
            self._take(lease, asked_at)
        self._in_doubt = self._in_doubt or answer.doubtful
        if self._in_doubt and not answer.unanswered:
            await self._look_for_strays()
        # Each queue is the first in its turn, so that a full one cannot keep the others waiting.
        self._queues = self._queues[1:] + self._queues[:1]
        self.empty = claiming and not answer.leases and not answer.left and answer.next_due != 0
        self._idle.set()
        if len(answer.verdicts) < len(batch):
            return self._await_the_rest(batch)
        if self._unsettled or (answer.left and self._room()) or (probing and room):
            return 0.0
        return POLL if answer.next_due is None else min(POLL, answer.next_due / SECOND)

    def be_quiet(self, quiet: bool) -> None:
        """Claim no more until told otherwise; what a claim in flight still brings is run."""
        self.quiet = quiet
        self._wake.set()

    def stop_claiming(self) -> None:
        """Claim no more; what a claim in flight still brings is handed back unbegun."""
        self._claiming = False
        self._wake.set()
        self._hurry.set()

    def stop_run(self, held: Held, reason: StopReason, detail: str | None) -> None:
        """Make a run end. A coroutine is cancelled; a thread can only be told, and is."""
        if held.stop is not None and not (reason == "lost" and held.stop != "lost"):
            return
        held.stop, held.stop_detail = reason, detail
        if self._running.get(held.key) is not held:
            # It is over, and its outcome on the way: beat and settlement have crossed.
            return
        if reason in ("lost", "unreachable"):
            job = held.lease.job
            self._tell(
                LeaseLost(
                    queue=job.queue,
                    id=job.id,
                    task=job.task,
                    run=job.starts,
                    fence=job.fence,
                    owner=self._owner.id,
                    reason="lost" if reason == "lost" else "unreachable",
                )
            )
        if held.make_end is not None:
            held.make_end()
        elif held.end():
            self._expect(held, reason)

    def stop_all(self) -> None:
        """Make all runs end, for the worker must."""
        for held in list(self._running.values()):
            self.stop_run(held, "shutdown", "the worker stops")

    def release_rest(self, delay: int) -> None:
        """Hand back the runs that would not end, due again after `delay` microseconds: by then we are gone."""
        self._leaving = True
        for held in list(self._running.values()):
            self._done(held, Interrupted("shutdown", delay), 0.0)
        # Outcomes may wait for a storage that was out of reach for long; this is their last chance.
        self._wake.set()

    async def settled(self) -> None:
        """Wait until no run goes on, no call is under way that may bring more, and every outcome has been answered."""
        while self._running or self._unsettled or self._calling:
            self._idle.clear()
            await self._idle.wait()

    async def flush(self) -> None:
        """Send the outcomes that wait, where no loop does."""
        self._claiming = False
        wait = 0.0
        while self._unsettled:
            await asyncio.sleep(wait)
            wait = min(await self.turn(), PATIENCE.first)

    async def worn_out(self) -> str:
        """Wait until this process is worn out and claims no more; return why."""
        await self._worn.wait()
        return self._wear.out() or ""

    async def runs_over(self) -> None:
        """Wait until no run goes on."""
        while self._running:
            self._idle.clear()
            await self._idle.wait()

    async def dry(self) -> None:
        """Wait until a claim has found nothing, no run goes on, and every outcome has been answered."""
        while not self.empty or self._running or self._unsettled:
            self._idle.clear()
            await self._idle.wait()

    def _await_the_rest(self, batch: list[Settlement]) -> float:
        """Let those outcomes wait for the others that a part of the storage gave no verdict on."""
        for asked in batch:
            key = (asked.ref, asked.fence)
            if key in self._unsettled:
                self._unsettled[key] = self._unsettled.pop(key)
        return PATIENCE.first

    async def _rest(self, wait: float) -> None:
        # While the storage is in trouble neither a hint nor an outcome shortens the rest: they would storm it.
        woken = self._hurry if self._failures else self._wake
        try:
            async with asyncio.timeout(wait):
                await woken.wait()
        except TimeoutError:
            return

    def _room(self) -> int:
        if not self._claiming or self.quiet or len(self._unsettled) > UNSETTLED_LIMIT:
            return 0
        return self._wear.room(max(0, self._concurrency - len(self._running)))

    async def _send_signs(self, batch: list[Settlement]) -> None:
        """Send what the handlers said at last; a job that ends before its first beat has a log all the same."""
        held = [one for asked in batch if (one := self._holdings.get((asked.ref, asked.fence))) is not None]
        talking = [one for one in held if one.signs.pending]
        if not talking:
            return
        now = self._clock.uptime()
        messages = [one.message(now) for one in talking]
        try:
            await self._storage.renew(Beat(self._owner, tuple(message.renewal for message in messages)))
        except BaseException:
            for message in messages:
                message.unsent()
            raise

    def _blame(self, batch: list[Settlement], error: Exception) -> None:
        """Note whom an unexpected failure may be due to; what fails again and again by itself is given up."""
        for asked in batch:
            key = (asked.ref, asked.fence)
            self._refused[key] = self._refused.get(key, 0) + 1
            held = self._holdings.get(key)
            if self._refused[key] == REFUSALS and held is not None:
                # Its outcome cannot be recorded as it is, so that is what it comes to.
                self._unsettled[key] = settlement(held.lease, Unreadable(recorded(error)), self._rng)
            elif self._refused[key] >= 2 * REFUSALS:
                self._logger.error("job %s: no outcome of its run can be recorded; it is left to stall", asked.ref.id)
                self._forget(key)

    def _forget(self, key: RunKey) -> None:
        self._unsettled.pop(key, None)
        self._refused.pop(key, None)
        self._holdings.drop(key)

    def _back_off(self, error: Exception) -> float:
        self._failures += 1
        wait = min(PATIENCE.rest(self._failures, self._rng), HASTE if self._leaving else math.inf)
        if self._failures == 1:
            self._logger.warning("the storage cannot be used, trying again: %s", error)
        self._tell(WorkerFailed(error=str(error), retry_in=wait))
        return wait

    async def _look_for_strays(self) -> None:
        """Hand back, unbegun and uncharged, what was claimed by a call whose answer never came."""
        try:
            found = await strays(self._storage, self._owner.id, self._queues, self._holdings.get)
        except Exception as error:
            # Looked for again after the next answer; what is not found stalls, and is recovered a lease later.
            self._logger.warning("cannot look for jobs of a claim that was never answered: %r", error)
            return
        self._in_doubt = False
        for lease in found:
            self._unsettled[lease.ref, lease.fence] = settlement(lease, Interrupted("prefetch"), self._rng)

    def _heed(self, answer: Exchanged) -> None:
        for verdict in answer.verdicts:
            key = (verdict.ref, verdict.fence)
            held, asked = self._holdings.get(key), self._unsettled.get(key)
            if held is not None and asked is not None:
                self._tally.answered(held.lease.job, asked, verdict.verdict)
            self._forget(key)
            if verdict.verdict == "lost":
                self._logger.warning(
                    "job %s: its run under fence %d had been taken over; what it came to was refused",
                    verdict.ref.id,
                    verdict.fence,
                )

    def _take(self, lease: Lease, asked_at: float) -> None:
        # It runs from the answer on: a claim that a frozen storage held back must not count as a part of the run.
        held = Held(lease, stops_unreachable=self._stops(lease), claimed_at=self._clock.uptime())
        held.way = self._way(held)
        # What a process takes to start is no part of the run.
        held.begun = held.way != "process"
        held.trust(asked_at, signed_at=asked_at)
        self._tally.claimed(lease.job)
        self._holdings.add(held)
        if not self._claiming or self._crew is None:
            # The claim came back after the worker was told to stop.
            self._done(held, Interrupted("prefetch"), 0.0)
        elif self._clock.uptime() >= held.trusted_until:
            # It came back so late that the job may have passed on already.
            self._done(held, Interrupted("unreachable"), 0.0)
        else:
            self._wear.began()
            self._running[held.key] = held
            held.task = self._crew.create_task(self._attend(held))
            held.task.add_done_callback(lambda _: self._never_began(held))

    async def _attend(self, held: Held) -> None:
        began = self._clock.uptime()
        try:
            apart = await self._slots.run(held) if self._slots.wanted(held) else None
            if apart is None:
                self._holdings.begin(held, self._clock.uptime())
                outcome = await self._runner.run(held, self._overdue)
            else:
                outcome = apart
        except Exception as error:
            # The runner itself failed, not the handler; the job must come to something all the same.
            self._logger.exception("job %s: its run could not be carried out", held.lease.ref.id)
            outcome = Raised(recorded(error))
        self._done(held, outcome, self._clock.uptime() - max(began, held.claimed_at))

    def _expect(self, held: Held, reason: StopReason) -> None:
        """Leave a run to itself that will not end. When the worker stops it sees to all of them at once."""
        if reason == "shutdown" or (reason == "cancelled" and held.lease.job.timeout is not None):
            return
        # Who is merely asked to stop has its lease and its keys, and may tidy up under them; until its timeout at most.
        within = LIMIT if reason == "cancelled" else LINGER
        asyncio.get_running_loop().call_later(within, lambda: self._overdue(held, stopped(held)))

    def _overdue(self, held: Held, outcome: Outcome) -> None:
        """Leave a run to itself whose handler goes on although it was cancelled; what it still comes to is refused."""
        if self._running.get(held.key) is not held or held.hooking or held.task is None or held.task.done():
            return
        job = held.lease.job
        self._logger.error(
            "job %s (%s): the handler goes on although it was cancelled; it is left to itself", job.id, job.task
        )
        held.abandoned = True
        self._abandoned.task(held.task)
        self._done(held, outcome, self._clock.uptime() - held.claimed_at)

    def _never_began(self, held: Held) -> None:
        """Hand back a run whose task was cancelled before its first step; one that ended is not running any more."""
        if self._running.get(held.key) is held:
            self._done(held, Interrupted("shutdown"), 0.0)

    def _done(self, held: Held, outcome: Outcome, took: float) -> None:
        self._running.pop(held.key, None)
        if held.key in self._unsettled or self._holdings.get(held.key) is not held:
            # It was handed back while it would not end; only the first word counts.
            return
        self._tally.ran(held.lease.job, took)
        if held.stop == "lost" and isinstance(outcome, Interrupted):
            # Stopped by its own fence, and it came to nothing: there is nothing to say.
            self._holdings.drop(held.key)
        else:
            self._unsettled[held.key] = asked = settlement(held.lease, outcome, self._rng, took=took)
            self._say(held, asked)
            self.released += isinstance(outcome, Interrupted)
        self._idle.set()
        self._wake.set()

    def _say(self, held: Held, asked: Settlement) -> None:
        """Log what went wrong with a run; never its arguments, its result, or a message that may quote them."""
        job = held.lease.job
        match asked.decision:
            case Finish(state=State.FAILED, reason=reason, error=error):
                self._logger.error(
                    "job %s (%s) failed in run %d, reason %s: %s; holdfast jobs show tells all",
                    job.id,
                    job.task,
                    job.starts,
                    reason,
                    error.type if error else "no error",
                )
            case PutBack(charge="failures", after=after, error=error):
                self._logger.warning(
                    "job %s (%s) failed in run %d: %s; tried again in %.1f s",
                    job.id,
                    job.task,
                    job.starts,
                    error.type if error else "no error",
                    after / SECOND,
                )
            case PutBack(charge="stalls"):
                why = first_line(asked.ended.detail or "")
                self._logger.error("job %s (%s) stalled in run %d: %s", job.id, job.task, job.starts, why)
            case PutBack(charge="releases", reason="unknown_task"):
                self._logger.warning("job %s is of task %r, which this worker does not know", job.id, job.task)
            case _:
                return

    def _way(self, held: Held) -> Way:
        if self._slots.wanted(held):
            return "process"
        task = self._tasks.get(held.lease.job.task)
        return "loop" if task is None or task.is_async else "thread"

    def _stops(self, lease: Lease) -> bool:
        task = self._tasks.get(lease.job.task)
        policy = task.settings.on_unreachable if task is not None else None
        match policy or "auto":
            case "stop":
                return True
            case "continue":
                return False
            case "auto":
                return lease.job.exclusive
