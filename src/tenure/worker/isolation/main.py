"""The process of a slot: it loads the app, enters its lifespan, and runs one job after another for its worker.

    enter ──► the modules are loaded ──► the lifespan is entered ──► ready
    run ────► the same Runner as in a worker ──► ended             stop: a coroutine is cancelled, a thread is told
    leave ──► the lifespan is left ──► the end                     the line is closed: killed, and all that it started

It never talks to the storage, of which it knows nothing but what the app's own code does with it. Its worker holds the
lease, and hears the signs that the handler gives over the line; from a thread, for a handler may block the loop here.
"""

import asyncio
import contextlib
import contextvars
import logging
import os
import signal
import sys
import threading
from typing import Protocol, cast, get_args, runtime_checkable

from msgspec import structs

from tenure.client.app_location import known_as, load
from tenure.core.lease import Lease
from tenure.core.outcome import Outcome, Raised
from tenure.failures import log_failure, recorded, trace_of
from tenure.processes.parent_death import end_with_parent, inherited
from tenure.runtime import Runtime
from tenure.threads import ThreadPool
from tenure.waiting import first
from tenure.worker import loops
from tenure.worker.abandoned import Abandoned
from tenure.worker.active_runs import ActiveRun, StopReason
from tenure.worker.isolation.channel import Channel, ForwardedSigns, ForwardingLogHandler
from tenure.worker.isolation.messages import (
    TELLING,
    VARIABLE,
    AppFailed,
    AppReady,
    ExitProcess,
    LoadApp,
    LoopTurned,
    Order,
    RunBegan,
    RunEnded,
    RunJob,
    RunSigns,
    StopRun,
)
from tenure.worker.lifespan import Lifespan
from tenure.worker.loop_guard import LoopGuard
from tenure.worker.loop_lag import TICK
from tenure.worker.run import Runner, misuse
from tenure.worker.stacks.traces import where
from tenure.worker.stop_signals import SIGNALS, draining, outlive

TIDYING = 1.5
"""Seconds that a plain handler which was told to stop gets to end by itself; then its process is killed."""

BREATH = 0.05
"""Seconds between two reports of what the handler says: it may say something ten thousand times a second."""


@runtime_checkable
class IsolatedApp(Protocol):
    """An app, as far as a slot needs it."""

    def equipment(self) -> Runtime:
        """Return what it hands to its workers."""
        ...


class JobProcess:
    """Runs jobs until it is told to leave."""

    def __init__(self, equipment: Runtime, line: Channel, *, worker: str) -> None:
        self._equipment = equipment
        self._line = line
        self._threads = ThreadPool("tenure-handler")
        self._lifespan = Lifespan(equipment.lifespan, worker=worker, logger=equipment.logger)
        self._abandoned = Abandoned()
        self._runner = Runner(
            {known_as(name): task for name, task in equipment.tasks.items()},
            equipment.codec,
            self._threads,
            equipment.clock,
            equipment.logger,
            middleware=equipment.middleware,
            replaced=equipment.replaced,
            state=lambda: self._lifespan.state,
            abandoned=self._abandoned,
        )
        self._held: ActiveRun | None = None
        self._guard = LoopGuard()
        self._turned_at = 0.0
        self._news = threading.Event()
        self._telling = threading.Lock()
        """So that what was said before the end of a run is told before it."""
        self._orders: asyncio.Queue[Order] = asyncio.Queue()

    async def work(self) -> None:
        """Enter the lifespan, run what it is told to, leave the lifespan."""
        loop = asyncio.get_running_loop()
        self._guard.start(lambda: None)

        def hear(word: Order) -> None:
            loop.call_soon_threadsafe(self._heard, word)

        self._line.heard_by(hear)
        self._turn()
        try:
            await self._lifespan.enter(asyncio.Event().wait)
        except BaseException as error:
            self._line.say(AppFailed(f"the lifespan cannot be entered: {_shown(error)}"))
            return
        threading.Thread(target=self._pass_on, name="tenure-signs", daemon=True).start()
        self._line.say(AppReady())
        while not isinstance(order := await self._orders.get(), ExitProcess):
            if isinstance(order, RunJob):
                await self._run(order)
        self._lifespan.end()
        # Whoever told us to leave sees to it that this does not take too long.
        await self._lifespan.ended()
        await self._lifespan.cut_off()
        self._threads.close()

    def _turn(self) -> None:
        """Note that the loop turns, again and again; in no run's context."""
        self._turned_at = self._equipment.clock.uptime()
        asyncio.get_running_loop().call_later(TICK, self._turn, context=contextvars.Context())

    async def _run(self, order: RunJob) -> None:
        held = ActiveRun(Lease(order.job), ForwardedSigns(self._news))
        held.claimed_at = held.signed_at = self._equipment.clock.uptime()
        self._held = held
        self._news.set()
        self._line.say(RunBegan(held.lease.fence, held.claimed_at))
        held.root = attending = self._attend(held)
        held.task = asyncio.create_task(attending)
        while not held.task.done():
            try:
                await asyncio.wait({held.task})
            except asyncio.CancelledError:
                # By the handler: nothing of ours cancels this. The worker still waits for the end of the run.
                continue
        failure = asyncio.CancelledError() if held.task.cancelled() else held.task.exception()
        if failure is not None:
            # It has not reported. Without an end the worker would renew its lease for ever.
            self._held = None
            self._report(held, Raised(recorded(failure)), spoiled=True)

    async def _attend(self, held: ActiveRun) -> None:
        try:
            outcome = await self._runner.run(held)
        except GeneratorExit:
            raise
        except BaseException as error:
            # The runner itself failed, not the handler; the job still needs an outcome.
            log_failure(
                self._equipment.logger,
                logging.ERROR,
                "job %s: its run could not be carried out",
                held.lease.ref.id,
                error=error,
            )
            outcome = Raised(recorded(error))
        # It was told to end, and what it has left half done it had better tidy up itself.
        await first(self._tidied(), within=TIDYING)
        self._held = None
        self._say_signs(held)
        ended = self._equipment.lifespan is not None and not self._lifespan.lives
        short = isinstance(outcome, Raised) and outcome.shortage
        self._report(held, outcome, spoiled=ended or short or self._abandoned.count > 0 or held.goes_on)

    async def _tidied(self) -> None:
        """Wait until nothing of a run goes on."""
        await self._abandoned.over()
        await self._runner.tidied()

    def _report(self, held: ActiveRun, outcome: Outcome, *, spoiled: bool) -> None:
        outcome = misuse(held) or outcome
        if self._guard.cancelled and isinstance(outcome, Raised):
            # Whichever code did it belongs to this run: no other has ever been beside it.
            outcome = structs.replace(outcome, alone=True)
        self._line.say(RunEnded(held.lease.fence, outcome, spoiled=spoiled or self._guard.cancelled))

    def _heard(self, word: Order) -> None:
        match word:
            case StopRun(fence, reason, detail):
                held = self._held
                if held is not None and held.lease.fence == fence and reason in get_args(StopReason):
                    held.stop, held.stop_detail = cast(StopReason, reason), detail
                    held.end()
            case _:
                self._orders.put_nowait(word)

    def _pass_on(self) -> None:
        """Tell the worker what the handler says, and where it is, in a thread of its own."""
        rest, looked_at, told_at, held = threading.Event(), 0.0, 0.0, self._held
        while True:
            self._news.wait(None if held is None else min(TELLING, held.beat))
            self._news.clear()
            held = self._held
            if held is not None:
                now = self._equipment.clock.uptime()
                looks = now - max(looked_at, held.claimed_at) >= held.beat
                looked_at = now if looks else looked_at
                self._say_signs(held, looks=looks)
                if looks or now - told_at >= TELLING / 2:
                    told_at = now
                    self._line.say(LoopTurned(self._turned_at, looked_at))
            rest.wait(BREATH)

    def _say_signs(self, held: ActiveRun, *, looks: bool = False) -> None:
        trace = None
        if looks:
            # Frames are of all sorts; none of them may keep what the handler says from being passed on.
            with contextlib.suppress(Exception):
                trace = where(held)
        with self._telling:
            at, progress, log = held.signs.take()
            news = trace if trace != held.traced else None
            held.traced = news or held.traced
            if at is not None or news is not None:
                self._line.say(RunSigns(held.lease.fence, at, progress, tuple(log), held.hooking, news))


def main() -> None:
    """Be the process of a slot, until the worker says that it is over."""
    told = os.environ.pop(VARIABLE, "")
    try:
        line = inherited(int(told.partition(":")[0]))
    except (ValueError, OSError):
        sys.exit(f"{VARIABLE} = {told!r}: a worker starts this, and nobody else")
    end_with_parent()
    _go_on()
    _serve(Channel(line))
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # Whatever threads still hang in it.
    os._exit(0)


def _go_on() -> None:
    """Do not end by the signals that tell processes to stop.

    Whoever tells all processes of a service tells this one, too; but it is its worker who drains. Not ignored by the
    system: that would pass on to all that handlers start.
    """
    for number in (*SIGNALS, *draining()):
        signal.signal(number, _minded)
    outlive()


def _minded(number: int, _: object) -> None:
    """Go on."""


def _serve(line: Channel) -> None:
    order = line.told()
    if not isinstance(order, LoadApp):
        return
    try:
        app = load(order.app)
        if not isinstance(app, IsolatedApp):
            raise TypeError(f"{order.app.module}:{order.app.attribute} is no app")
        _log_over(line, order.level)
        equipment = app.equipment()
        # A module of the app may have had other ideas.
        _go_on()
    except BaseException as error:
        line.say(AppFailed(f"the app cannot be loaded: {_shown(error)}"))
        return
    # Never closed: closing waits for threads, and one of them may never end.
    loops.runner(loops.told()).run(JobProcess(equipment, line, worker=order.worker).work())


def _log_over(line: Channel, level: int) -> None:
    root = logging.getLogger()
    if not root.handlers:
        # An app that sets up logging itself, when it is loaded, has the last word.
        root.addHandler(ForwardingLogHandler(line))
        root.setLevel(level)


def _shown(error: BaseException) -> str:
    return trace_of(error).strip()[-4_096:]


if __name__ == "__main__":
    main()
