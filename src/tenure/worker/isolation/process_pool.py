"""The pool of a worker's isolated processes: waiting runs, idle processes, processes that start or exit.

    run ──► an idle process, or a new one: enter ──► ready ──► run ──► put away: kept for another run for a while
                                                                └─────► dead or unusable: replaced when needed

There are never more processes than the worker runs jobs at once.

The pool sends and receives the messages of each process, kills it, and notes its end:

    cancelled, lost, timed out: notified ──1 s──► SIGTERM to it and all that it started ──0.75 s──► SIGKILL
"""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from tenure.client.app_location import AppLocation
from tenure.handlers.log_fields import STANDARD
from tenure.processes.exit_status import OomKills
from tenure.processes.process import Process, ProcessExit
from tenure.waiting import first
from tenure.worker.isolation.messages import (
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
    RunSettled,
    RunSigns,
    answer_reader,
    encode_frame,
)
from tenure.worker.scoreboard import Scoreboard

COMMAND = (sys.executable, "-m", "tenure.worker.isolation.main")

TERMINATE_AFTER, KILL_AFTER = 1.0, 1.75
"""Seconds from a run's stop or timeout until its process gets SIGTERM, and until it is killed."""

EXIT_WAIT = 0.5
"""Seconds in which a killed process ends, unless the kernel delays it."""

_PART = 262_144


class PoolProcess:
    """One process and its messages."""

    def __init__(self, child: Process) -> None:
        self.child = child
        self.kill_reason: str | None = None
        """The reason why it was killed, or why it was asked to end if it ended by that. None if neither."""
        self._terminate_reason: str | None = None
        self._reader = answer_reader()
        self._received: list[Answer] = []
        self._timers: list[asyncio.TimerHandle] = []
        self.turned_at = 0.0
        """The uptime of the last turn of its loop, as last reported."""
        self.idle = False
        """True if it waits for a run."""
        self._in_use = False
        """True while a call sends or receives on the socket. Then it must not be closed."""
        self._exit = asyncio.ensure_future(child.wait())
        self._exit.add_done_callback(self._note_exit)

    @classmethod
    def start(cls, gone: "Callable[[PoolProcess], None]") -> "PoolProcess":
        """Start a process. `gone` is called when it has ended.

        Raises:
            OSError: the process cannot be started.
        """
        process = cls(Process.start(COMMAND, variable=VARIABLE, env=os.environ))
        process._exit.add_done_callback(lambda _: gone(process))
        return process

    @property
    def stopped(self) -> bool:
        """True if the process was suspended (SIGSTOP)."""
        return self.child.stopped

    @property
    def usable(self) -> bool:
        """True if the process can get messages: it has not ended, and was not killed."""
        return self.child.exit is None and self.kill_reason is None

    async def send(self, message: Order) -> None:
        """Send a message. If the process is dead, the next `receive` reports it."""
        with self._using(), contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self.child.socket, encode_frame(message))

    def send_at_once(self, message: Order) -> None:
        """Send a short message, if the socket's buffer has room for it."""
        self.child.write(encode_frame(message))

    async def receive(self) -> Answer | None:
        """Wait for a message and return it. None if the process is dead, or was killed for an invalid message."""
        while not self._received:
            part = b""
            try:
                with self._using():
                    part = await asyncio.get_running_loop().sock_recv(self.child.socket, _PART)
                self._received += self._reader.feed(part)
            except InvalidMessageError as error:
                self.kill(f"its message is invalid: {error}")
                part = b""
            except OSError:
                pass
            if not part:
                # The process died, which is noted in a moment; or it closed the socket and lives on.
                await first(self.wait(), within=EXIT_WAIT)
                self.kill("it has closed its socket")
                await self.wait()
                return None
        return self._received.pop(0)

    def begin_idle(self) -> None:
        """Make the process idle. Its log records are still read; otherwise it would block on a full socket."""
        self.idle = True
        asyncio.get_running_loop().add_reader(self.child.socket, self._read_while_idle)

    def end_idle(self) -> None:
        """End the idle state."""
        if self.idle:
            self.idle = False
            asyncio.get_running_loop().remove_reader(self.child.socket)

    def end_within(self, within: float, why: str, *, factor: float = 1.0) -> None:
        """Send SIGTERM `TERMINATE_AFTER` s after `within`, and SIGKILL `KILL_AFTER` s after it.

        `cancel_timers` cancels both.

        `factor`: a factor that shortens the two times.
        """
        self.call_after(within + TERMINATE_AFTER * factor, functools.partial(self._terminate, why))
        self.call_after(within + KILL_AFTER * factor, functools.partial(self.kill, why))

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after this time, unless `cancel_timers` is called before or the process ends."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, act))

    def cancel_timers(self) -> None:
        """Cancel all timers, also those that would kill the process."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._terminate_reason = None

    def kill(self, why: str) -> None:
        """Kill the process and all that it has started. Idempotent."""
        if self.child.exit is None:
            self.kill_reason = self.kill_reason or why
            self.child.signal_group(signal.SIGKILL)

    async def wait(self) -> ProcessExit:
        """Wait until the process has ended."""
        return await asyncio.shield(self._exit)

    @contextlib.contextmanager
    def _using(self) -> Generator[None]:
        self._in_use = True
        try:
            yield
        finally:
            self._in_use = False
            if self.child.exit is not None:
                self.child.socket.close()

    def _read_while_idle(self) -> None:
        try:
            part = self.child.socket.recv(_PART)
            messages = self._reader.feed(part)
        except BlockingIOError:
            return
        except (OSError, InvalidMessageError) as error:
            part, messages = b"", list[Answer]()
            self.kill(f"its message is invalid: {error}")
        for message in messages:
            if isinstance(message, ForwardedLog):
                log(message)
        if not part:
            # The process is dead, or will be killed.
            self.end_idle()
            self.kill("it has closed its socket")

    def _terminate(self, why: str) -> None:
        self._terminate_reason = self._terminate_reason or why
        self.child.signal_group(signal.SIGTERM)

    def _note_exit(self, _: object) -> None:
        # The app may handle the signal itself, and end by it.
        self.kill_reason = self.kill_reason or self._terminate_reason
        self.cancel_timers()
        self.end_idle()
        # Its children must not go on. They may also hold the other end of the socket, which would then never close.
        self.child.signal_group(signal.SIGKILL)
        if not self._in_use:
            self.child.socket.close()
            return
        with contextlib.suppress(OSError):
            self.child.socket.shutdown(socket.SHUT_RDWR)


def log(record: ForwardedLog) -> None:
    """Log a record of an isolated process as if it came from this process."""
    logger = logging.getLogger(record.logger)
    if logger.isEnabledFor(record.level):
        # A handler can forge the message, so its fields must not replace attributes of the record.
        extra = {name: value for name, value in record.fields.items() if name not in STANDARD}
        fields = {
            **extra,
            "name": record.logger,
            "levelno": record.level,
            "levelname": logging.getLevelName(record.level),
            "msg": record.message,
            "exc_text": record.trace,
        }
        logger.handle(logging.makeLogRecord(fields))


START_TIMEOUT = 60.0
"""Seconds that a process gets to load the app and to enter its lifespan."""

STARTS = 4
"""The number of processes started at a time. After a crash all runs want one at once, and loading takes a whole
core."""

QUARANTINED = 4
"""The number of quarantined jobs run at a time. After a crash there are as many as the worker runs at once."""

IDLE_LIMIT, EXIT_TIMEOUT = 60.0, 10.0
"""Seconds until an idle process must exit, and seconds that it gets for that."""


class NoProcessError(Exception):
    """No process is available that can run jobs of this app. `system`: the system refuses it, not the app."""

    def __init__(self, why: str, *, system: bool = False) -> None:
        super().__init__(why)
        self.system = system


class PoolWaiter:
    """A run that waits for a process. `isolated`: only because its job is in quarantine."""

    def __init__(self, *, isolated: bool) -> None:
        self.isolated = isolated
        self.process: asyncio.Future[PoolProcess | None] = asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        """Stop waiting."""
        if not self.process.done():
            self.process.set_result(None)

    @property
    def received(self) -> PoolProcess | None:
        """The process that the waiter got, or None."""
        has_process = self.process.done() and not self.process.cancelled() and self.process.exception() is None
        return self.process.result() if has_process else None


class ProcessPool:
    """The isolated processes of one worker. All of it runs on one event loop."""

    def __init__(self, *, worker: str, scoreboard: Scoreboard | None, on_ready: Callable[[], None]) -> None:
        """Create a pool. `worker`: the name of the worker. `on_ready` is called when a process becomes ready."""
        self._worker = worker
        self._scoreboard = scoreboard
        self._on_ready = on_ready
        self.app: AppLocation | None = None
        """The app's location, once it is known."""
        self.kills: OomKills | None = None
        """The out-of-memory kills, counted from the first process on."""
        self._idle: list[PoolProcess] = []
        self._waiting: list[PoolWaiter] = []
        """The waiting runs, in order."""
        self._starting: set[asyncio.Task[PoolProcess]] = set()
        self._isolating: set[PoolProcess] = set()
        """Processes with a quarantined job whose task does not otherwise want a process."""
        self._exiting: set[PoolProcess] = set()
        """Processes that were ordered to exit."""
        self._all: set[PoolProcess] = set()
        self._closed = False

    async def acquire(self, waiting: PoolWaiter) -> PoolProcess | None:
        """Return a ready process, or None if the waiter stopped waiting before.

        Raises:
            NoProcessError: no process is available, and none can be started.
        """
        self._waiting.append(waiting)
        self._serve()
        try:
            return await waiting.process
        except asyncio.CancelledError:
            if (process := waiting.received) is not None:
                self.release(process)
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def release(self, process: PoolProcess) -> None:
        """Keep a process for the next run. Kill it if it is unusable or will not be needed."""
        process.cancel_timers()
        isolated = process in self._isolating
        self._isolating.discard(process)
        if process.usable and not self._closed:
            self._idle.append(process)
            process.begin_idle()
            process.call_after(IDLE_LIMIT, functools.partial(self._order_exit, process))
        else:
            process.kill("its worker ends")
        self._serve()
        if isolated:
            # Most workers never need a process for quarantine again.
            self._order_exit(process)

    async def end_idle(self) -> None:
        """End the idle processes, and wait for that. From now on no process is kept."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        for process in list(self._idle):
            self._order_exit(process)
            # From now on the caller has one limit for all of them.
            process.cancel_timers()
        await _all([process.wait() for process in self._exiting])

    async def close(self) -> None:
        """Kill the processes that are left."""
        self._closed = True
        self._idle.clear()
        for starting in self._starting:
            starting.cancel()
        for process in self._all:
            process.kill("its worker ends")
        await first(_all([process.wait() for process in self._all]), within=EXIT_WAIT)

    def _serve(self) -> None:
        """Give idle processes to waiting runs, and start the missing ones."""
        self._waiting = [waiter for waiter in self._waiting if not waiter.process.done()]
        if self._closed:
            for waiter in self._waiting:
                waiter.cancel()
            return
        isolated = [waiter for waiter in self._waiting if waiter.isolated]
        too_many = isolated[max(0, QUARANTINED - len(self._isolating)) :]
        wanting = deque(waiter for waiter in self._waiting if waiter not in too_many)
        while wanting and (process := self._take_idle()) is not None:
            waiter = wanting.popleft()
            if waiter.isolated:
                self._isolating.add(process)
            waiter.process.set_result(process)
        for _ in range(min(len(wanting), STARTS) - len(self._starting)):
            starting = asyncio.create_task(self._started())
            self._starting.add(starting)
            starting.add_done_callback(self._start_ended)

    def _take_idle(self) -> PoolProcess | None:
        while self._idle:
            process = self._idle.pop()
            process.end_idle()
            process.cancel_timers()
            if process.stopped:
                process.kill("it is stopped (SIGSTOP)")
            if process.usable:
                return process
        return None

    def _start_ended(self, starting: "asyncio.Task[PoolProcess]") -> None:
        """Note that a process is ready or has failed. A failure goes to the run that has waited longest."""
        self._starting.discard(starting)
        if starting.cancelled():
            return
        error = starting.exception()
        if error is None:
            self._on_ready()
            self.release(starting.result())
            return
        for waiter in self._waiting:
            if not waiter.process.done():
                waiter.process.set_exception(error)
                break
        self._serve()

    async def _started(self) -> PoolProcess:
        """Start a process and return it once it is ready.

        Raises:
            NoProcessError: no process is available.
        """
        if self.app is None:
            raise NoProcessError("the location of the app is unknown to other processes")
        self.kills = self.kills or OomKills()
        try:
            process = PoolProcess.start(self._process_ended)
        except OSError as error:
            raise NoProcessError(f"no process can be started: {error}", system=True) from error
        self._all.add(process)
        if self._scoreboard is not None:
            self._scoreboard.isolated_started(process.child.pid)
        try:
            await self._ready(process, self.app)
        except BaseException:
            process.kill("it cannot be used")
            raise
        return process

    async def _ready(self, process: PoolProcess, app: AppLocation) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await process.send(LoadApp(app, self._worker, logging.getLogger().level))
                while True:
                    match await process.receive():
                        case AppReady():
                            return
                        case AppFailed(why):
                            raise NoProcessError(why)
                        case ForwardedLog() as record:
                            log(record)
                        case None:
                            raise NoProcessError(f"the process ended ({await process.wait()}) before it was ready")
                        case RunBegan() | RunSigns() | RunSettled() | LoopTurned() | RunEnded():
                            continue
        except TimeoutError:
            raise NoProcessError(f"the process was not ready within {START_TIMEOUT:g} s") from None

    def _order_exit(self, process: PoolProcess) -> None:
        """Order an idle process to exit."""
        if process in self._idle:
            self._idle.remove(process)
            self._exiting.add(process)
            process.send_at_once(ExitProcess())
            process.call_after(EXIT_TIMEOUT, functools.partial(process.kill, "it did not exit in time"))

    def _process_ended(self, process: PoolProcess) -> None:
        self._all.discard(process)
        self._exiting.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        if self._scoreboard is not None:
            self._scoreboard.isolated_ended(process.child.pid)


async def _all(deaths: Sequence[Coroutine[Any, Any, ProcessExit]]) -> None:
    if deaths:
        await asyncio.gather(*deaths)
