"""The worker's end of an isolated process: sends and receives messages, kills it, and notes its end.

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
from collections.abc import Callable, Generator

from tenure.processes.process import Process, ProcessExit
from tenure.waiting import first
from tenure.worker.isolation.messages import (
    VARIABLE,
    Answer,
    ForwardedLog,
    InvalidMessageError,
    Order,
    answer_reader,
    encode_frame,
)

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
        """Send a message. If the process is dead, the next `hear` reports it."""
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

    def end_within(self, within: float, why: str, *, haste: float = 1.0) -> None:
        """Send SIGTERM `ASKED` s after `within`, and SIGKILL `KILLED` s after it, unless `calm` is called before.

        `haste`: a factor that shortens the two times.
        """
        self.call_after(within + TERMINATE_AFTER * haste, functools.partial(self._terminate, why))
        self.call_after(within + KILL_AFTER * haste, functools.partial(self.kill, why))

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after this time, unless `calm` is called before or the process ends."""
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
        fields = {
            "name": record.logger,
            "levelno": record.level,
            "levelname": logging.getLevelName(record.level),
            "msg": record.message,
            "exc_text": record.trace,
        }
        logger.handle(logging.makeLogRecord(fields))
