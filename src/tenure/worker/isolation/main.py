"""An isolated process: it loads the app, enters its lifespan, and runs one job after another for its worker.

    enter ──► the modules are loaded ──► the lifespan is entered ──► ready
    run ────► the same Runner as in a worker ──► ended         stop: a coroutine is cancelled, a thread is notified
    leave ──► the lifespan is left ──► the end                 the socket closes: killed, with all that it started

It calls the storage only for a handler's transaction. Its worker holds the lease and gets the handler's signs over
the socket. A thread sends them, because a handler may block the loop here.
"""

import asyncio
import contextlib
import contextvars
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Protocol, cast, get_args, runtime_checkable

from msgspec import structs

from tenure.client.app_location import known_as, load
from tenure.core.check import shown
from tenure.core.lease import Lease
from tenure.core.outcome import Outcome, Raised
from tenure.core.text import storable
from tenure.failures import log_failure, recorded, trace_of
from tenure.handlers.context import ProgressReports, SentProgress
from tenure.handlers.log_fields import STANDARD, add_log_fields
from tenure.processes.process import end_with_parent, inherited_socket, kill_own_group
from tenure.runtime import Runtime
from tenure.threads import ThreadPool
from tenure.waiting import first
from tenure.worker.active_runs import Abandoned, ActiveRun, RunKey, StopReason
from tenure.worker.event_loop import LoopGuard, loop_from_environment, loop_runner
from tenure.worker.isolation.messages import (
    REPORT_INTERVAL,
    VARIABLE,
    Answer,
    AppFailed,
    AppReady,
    ExitProcess,
    ForwardedLog,
    InvalidMessageError,
    LoadApp,
    LoopTurned,
    Order,
    RunBegan,
    RunEnded,
    RunJob,
    RunSettled,
    RunSigns,
    StopRun,
    encode_frame,
    order_reader,
)
from tenure.worker.lifespan import Lifespan
from tenure.worker.loop_lag import TICK
from tenure.worker.run import Runner, misuse
from tenure.worker.stacks.traces import stack_of
from tenure.worker.stop_signals import SIGNALS, draining, ignore_unused
from tenure.worker.transactions import Transactions

_PART = 262_144


class Channel:
    """The isolated process's end of the socket. Threads read and write, so that it works while the loop is blocked."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = order_reader()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._early: list[Order] = []
        self._receive: Callable[[Order], None] = self._early.append

    def first_order(self) -> Order:
        """Return the first order and start reading in a thread. Exit if the worker closes the socket first."""
        while not self._early:
            part = self._socket.recv(_PART)
            if not part:
                sys.exit(1)
            self._early += self._reader.feed(part)
        message = self._early.pop(0)
        threading.Thread(target=self._read, name="tenure-orders", daemon=True).start()
        return message

    def set_receiver(self, receive: Callable[[Order], None]) -> None:
        """Set the function that gets the orders, including those received so far. Called in the reading thread."""
        with self._lock:
            self._receive = receive
            for message in self._early:
                receive(message)
            self._early.clear()

    def send(self, message: Answer) -> None:
        """Send a message, if the worker still reads. Safe from any thread."""
        data = encode_frame(message)
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def _read(self) -> None:
        with contextlib.suppress(OSError, InvalidMessageError):
            while part := self._socket.recv(_PART):
                for message in self._reader.feed(part):
                    with self._lock:
                        self._receive(message)
        # The worker, which holds the lease, is gone.
        kill_own_group()


class ForwardedSigns(ProgressReports):
    """Signs that wake the thread that sends them to the worker."""

    def __init__(self, news: threading.Event) -> None:
        super().__init__()
        self._news = news

    def sign(self, at: float, progress: SentProgress | None = None, data: bytes | None = None) -> None:
        """Note a sign, and have it sent."""
        super().sign(at, progress, data)
        self._news.set()

    def log(self, at: float, level: str, message: str, fields: dict[str, str]) -> None:
        """Note a log line, and have it sent."""
        super().log(at, level, message, fields)
        self._news.set()


class ForwardingLogHandler(logging.Handler):
    """Sends log records to the worker, which has the formats and the files."""

    def __init__(self, line: Channel) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        trace = None
        if record.exc_info and record.exc_info[1] is not None:
            trace = trace_of(record.exc_info[1])
        try:
            message = storable(record.getMessage())
            fields = {storable(name): _plain(value) for name, value in vars(record).items() if name not in STANDARD}
            self._line.send(ForwardedLog(record.name, record.levelno, message, trace, fields))
        except Exception:
            self.handleError(record)


def _plain(value: object) -> str | int | float | bool | None:
    """Return a value of a field as it can be sent: a simple one as it is, any other as text."""
    if value is None or type(value) in (bool, float) or (type(value) is int and -(2**63) <= value < 2**63):
        return cast("int | float | bool | None", value)
    return storable(value if type(value) is str else shown(value))


CLEAN_UP_TIME = 1.5
"""Seconds that a stopped plain handler gets to end by itself. Then its process is killed."""

SIGNS_INTERVAL = 0.05
"""Seconds between two reports of the handler's signs: it may give ten thousand per second."""


@runtime_checkable
class IsolatedApp(Protocol):
    """The part of an app that an isolated process needs."""

    def runtime(self) -> Runtime:
        """Return the runtime that the app gives to its workers."""
        ...


class JobProcess:
    """Runs jobs until the worker orders it to exit."""

    def __init__(self, runtime: Runtime, line: Channel, *, worker: str) -> None:
        self._runtime = runtime
        self._line = line
        self._threads = ThreadPool("tenure-handler")
        self._lifespan = Lifespan(runtime.lifespan, worker=worker, logger=runtime.logger)
        self._abandoned = Abandoned()
        tasks = {known_as(name): task for name, task in runtime.tasks.items()}
        transactions = Transactions(
            runtime.storage,
            tasks,
            runtime.codec,
            self._threads,
            runtime.clock,
            runtime.rng,
            find=self._find,
            settled=lambda run: self._line.send(RunSettled(run.lease.fence)),
        )
        self._runner = Runner(
            tasks,
            runtime.codec,
            self._threads,
            runtime.clock,
            runtime.logger,
            middleware=runtime.middleware,
            replaced=runtime.overrides,
            state=lambda: self._lifespan.state,
            abandoned=self._abandoned,
            open_transaction=transactions.open,
        )
        self._active: ActiveRun | None = None
        self._guard = LoopGuard()
        self._turned_at = 0.0
        self._signs_given = threading.Event()
        self._sending = threading.Lock()
        """Ensures that signs given before the end of a run are sent before its end."""
        self._orders: asyncio.Queue[Order] = asyncio.Queue()

    def _find(self, key: RunKey) -> ActiveRun | None:
        run = self._active
        return run if run is not None and run.key == key else None

    async def work(self) -> None:
        """Enter the lifespan, run the jobs that the worker sends, leave the lifespan."""
        loop = asyncio.get_running_loop()
        self._guard.start(lambda: None)

        def receive(message: Order) -> None:
            loop.call_soon_threadsafe(self._handle, message)

        self._line.set_receiver(receive)
        self._turn()
        try:
            await self._lifespan.enter(asyncio.Event().wait)
        except BaseException as error:
            self._line.send(AppFailed(f"the lifespan cannot be entered: {_shown(error)}"))
            return
        threading.Thread(target=self._send_signs_loop, name="tenure-signs", daemon=True).start()
        self._line.send(AppReady())
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
        self._turned_at = self._runtime.clock.uptime()
        asyncio.get_running_loop().call_later(TICK, self._turn, context=contextvars.Context())

    async def _run(self, order: RunJob) -> None:
        run = ActiveRun(Lease(order.job), ForwardedSigns(self._signs_given))
        run.claimed_at = run.signed_at = self._runtime.clock.uptime()
        self._active = run
        self._signs_given.set()
        self._line.send(RunBegan(run.lease.fence, run.claimed_at))
        run.root = attending = self._attend(run)
        run.task = asyncio.create_task(attending)
        while not run.task.done():
            try:
                await asyncio.wait({run.task})
            except asyncio.CancelledError:
                # The handler cancelled this task; no code of ours does. The worker still waits for the end of the run.
                continue
        failure = asyncio.CancelledError() if run.task.cancelled() else run.task.exception()
        if failure is not None:
            # It has not reported its end. Without an end, the worker would renew the lease for ever.
            self._active = None
            self._report(run, Raised(recorded(failure)), spoiled=True)

    async def _attend(self, run: ActiveRun) -> None:
        try:
            outcome = await self._runner.run(run)
        except GeneratorExit:
            raise
        except BaseException as error:
            # The runner itself failed, not the handler; the job still needs an outcome.
            log_failure(
                self._runtime.logger,
                logging.ERROR,
                "job %s: its run failed outside the handler",
                run.lease.ref.id,
                error=error,
            )
            outcome = Raised(recorded(error))
        # The run may have been stopped; give its threads and providers time to clean up.
        await first(self._wait_for_rest(), within=CLEAN_UP_TIME)
        self._active = None
        # Its traceback refers to the run.
        run.failure = None
        self._send_signs(run)
        ended = self._runtime.lifespan is not None and not self._lifespan.lives
        short = isinstance(outcome, Raised) and outcome.shortage
        self._report(run, outcome, spoiled=ended or short or self._abandoned.count > 0 or run.goes_on)

    async def _wait_for_rest(self) -> None:
        """Wait until all threads and tasks of a run have ended."""
        await self._abandoned.wait()
        await self._runner.tidied()

    def _report(self, run: ActiveRun, outcome: Outcome, *, spoiled: bool) -> None:
        outcome = misuse(run) or outcome
        if self._guard.cancelled and isinstance(outcome, Raised):
            # The code that did it belongs to this run: no other run was active in this process.
            outcome = structs.replace(outcome, alone=True)
        self._line.send(RunEnded(run.lease.fence, outcome, spoiled=spoiled or self._guard.cancelled))

    def _handle(self, message: Order) -> None:
        match message:
            case StopRun(fence, reason, detail):
                run = self._active
                if run is not None and run.lease.fence == fence and reason in get_args(StopReason):
                    run.stop, run.stop_detail = cast(StopReason, reason), detail
                    run.cancel()
            case _:
                self._orders.put_nowait(message)

    def _send_signs_loop(self) -> None:
        """Send the handler's signs and its stack to the worker. Runs in its own thread."""
        pause, checked_at, reported_at, run = threading.Event(), 0.0, 0.0, self._active
        while True:
            self._signs_given.wait(None if run is None else min(REPORT_INTERVAL, run.beat))
            self._signs_given.clear()
            run = self._active
            if run is not None:
                now = self._runtime.clock.uptime()
                checks = now - max(checked_at, run.claimed_at) >= run.beat
                checked_at = now if checks else checked_at
                self._send_signs(run, checks=checks)
                if checks or now - reported_at >= REPORT_INTERVAL / 2:
                    reported_at = now
                    self._line.send(LoopTurned(self._turned_at, checked_at))
            pause.wait(SIGNS_INTERVAL)

    def _send_signs(self, run: ActiveRun, *, checks: bool = False) -> None:
        trace = None
        if checks:
            # An unexpected kind of frame must not prevent the sending of signs.
            with contextlib.suppress(Exception):
                trace = stack_of(run)
        with self._sending:
            at, progress, log, data = run.signs.take()
            news = trace if trace != run.traced else None
            run.traced = news or run.traced
            if at is not None or news is not None:
                self._line.send(
                    RunSigns(run.lease.fence, at, progress, tuple(log), run.in_hook, news, data[1] if data else None)
                )


def main() -> None:
    """Be an isolated process, until the worker orders the exit."""
    value = os.environ.pop(VARIABLE, "")
    try:
        line = inherited_socket(int(value.partition(":")[0]))
    except (ValueError, OSError):
        sys.exit(f"{VARIABLE} = {value!r}: this module is started by a worker; do not run it yourself")
    end_with_parent()
    _ignore_signals()
    _run_app(Channel(line))
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # End at once, even if threads still hang.
    os._exit(0)


def _ignore_signals() -> None:
    """Install handlers that do nothing for the signals that stop processes.

    A stop of a whole service may signal this process, too, but its worker drains. SIG_IGN is not used, because
    processes that handlers start would inherit it.
    """
    for number in (*SIGNALS, *draining()):
        signal.signal(number, _do_nothing)
    ignore_unused()


def _do_nothing(number: int, _: object) -> None:
    """Do nothing."""


def _run_app(line: Channel) -> None:
    order = line.first_order()
    if not isinstance(order, LoadApp):
        return
    try:
        app = load(order.app)
        if not isinstance(app, IsolatedApp):
            raise TypeError(f"{order.app.module}:{order.app.attribute} is not an app")
        _log_over(line, order.level)
        runtime = app.runtime()
        # A module of the app may have changed the signal handlers.
        _ignore_signals()
    except BaseException as error:
        line.send(AppFailed(f"the app cannot be loaded: {_shown(error)}"))
        return
    # The runner is never closed: closing waits for threads, and one of them may never end.
    loop_runner(loop_from_environment()).run(JobProcess(runtime, line, worker=order.worker).work())


def _log_over(line: Channel, level: int) -> None:
    add_log_fields()
    root = logging.getLogger()
    if not root.handlers:
        # If the app configured logging when it was loaded, that configuration stays.
        root.addHandler(ForwardingLogHandler(line))
        root.setLevel(level)


def _shown(error: BaseException) -> str:
    return trace_of(error).strip()[-4_096:]


if __name__ == "__main__":
    main()
