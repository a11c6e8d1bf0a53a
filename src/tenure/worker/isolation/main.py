"""An isolated process: it loads the app, enters its lifespan, and runs one job after another for its worker.

    enter ──► the modules are loaded ──► the lifespan is entered ──► ready
    run ────► the same Runner as in a worker ──► ended         stop: a coroutine is cancelled, a thread is notified
    leave ──► the lifespan is left ──► the end                 the socket closes: killed, with all that it started

It never calls the storage; only the app's own code may. Its worker holds the lease and gets the handler's signs over
the socket. A thread sends them, because a handler may block the loop here.
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
"""Seconds that a stopped plain handler gets to end by itself. Then its process is killed."""

BREATH = 0.05
"""Seconds between two reports of the handler's signs: it may give ten thousand per second."""


@runtime_checkable
class IsolatedApp(Protocol):
    """The part of an app that an isolated process needs."""

    def runtime(self) -> Runtime:
        """Return the runtime that the app gives to its workers."""
        ...


class JobProcess:
    """Runs jobs until the worker orders it to exit."""

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
            replaced=equipment.overrides,
            state=lambda: self._lifespan.state,
            abandoned=self._abandoned,
        )
        self._held: ActiveRun | None = None
        self._guard = LoopGuard()
        self._turned_at = 0.0
        self._news = threading.Event()
        self._telling = threading.Lock()
        """Ensures that signs given before the end of a run are sent before its end."""
        self._orders: asyncio.Queue[Order] = asyncio.Queue()

    async def work(self) -> None:
        """Enter the lifespan, run the jobs that the worker sends, leave the lifespan."""
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
        # The worker that ordered the exit limits the time of this.
        await self._lifespan.ended()
        await self._lifespan.cut_off()
        self._threads.close()

    def _turn(self) -> None:
        """Note repeatedly that the loop turns, in an empty context."""
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
                # The handler cancelled this task; no code of ours does. The worker still waits for the end of the run.
                continue
        failure = asyncio.CancelledError() if held.task.cancelled() else held.task.exception()
        if failure is not None:
            # It has not reported its end. Without an end, the worker would renew the lease for ever.
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
        # The run may have been stopped; give its threads and providers time to clean up.
        await first(self._tidied(), within=TIDYING)
        self._held = None
        self._say_signs(held)
        ended = self._equipment.lifespan is not None and not self._lifespan.lives
        short = isinstance(outcome, Raised) and outcome.shortage
        self._report(held, outcome, spoiled=ended or short or self._abandoned.count > 0 or held.goes_on)

    async def _tidied(self) -> None:
        """Wait until all threads and tasks of a run have ended."""
        await self._abandoned.over()
        await self._runner.tidied()

    def _report(self, held: ActiveRun, outcome: Outcome, *, spoiled: bool) -> None:
        outcome = misuse(held) or outcome
        if self._guard.cancelled and isinstance(outcome, Raised):
            # The code that did it belongs to this run: no other run was active in this process.
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
        """Send the handler's signs and its stack to the worker. Runs in its own thread."""
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
            # An unexpected kind of frame must not prevent the sending of signs.
            with contextlib.suppress(Exception):
                trace = where(held)
        with self._telling:
            at, progress, log = held.signs.take()
            news = trace if trace != held.traced else None
            held.traced = news or held.traced
            if at is not None or news is not None:
                self._line.say(RunSigns(held.lease.fence, at, progress, tuple(log), held.hooking, news))


def main() -> None:
    """Be an isolated process, until the worker orders the exit."""
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
    # End at once, even if threads still hang.
    os._exit(0)


def _go_on() -> None:
    """Install handlers that do nothing for the signals that stop processes.

    A stop of a whole service may signal this process, too, but its worker drains. SIG_IGN is not used, because
    processes that handlers start would inherit it.
    """
    for number in (*SIGNALS, *draining()):
        signal.signal(number, _minded)
    outlive()


def _minded(number: int, _: object) -> None:
    """Do nothing."""


def _serve(line: Channel) -> None:
    order = line.told()
    if not isinstance(order, LoadApp):
        return
    try:
        app = load(order.app)
        if not isinstance(app, IsolatedApp):
            raise TypeError(f"{order.app.module}:{order.app.attribute} is no app")
        _log_over(line, order.level)
        equipment = app.runtime()
        # A module of the app may have changed the signal handlers.
        _go_on()
    except BaseException as error:
        line.say(AppFailed(f"the app cannot be loaded: {_shown(error)}"))
        return
    # The runner is never closed: closing waits for threads, and one of them may never end.
    loops.runner(loops.told()).run(JobProcess(equipment, line, worker=order.worker).work())


def _log_over(line: Channel, level: int) -> None:
    root = logging.getLogger()
    if not root.handlers:
        # If the app configured logging when it was loaded, that configuration stays.
        root.addHandler(ForwardingLogHandler(line))
        root.setLevel(level)


def _shown(error: BaseException) -> str:
    return trace_of(error).strip()[-4_096:]


if __name__ == "__main__":
    main()
