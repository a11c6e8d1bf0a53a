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
    ear_of_worker,
    framed,
)

COMMAND = (sys.executable, "-m", "tenure.worker.isolation.main")

ASKED, KILLED = 1.0, 1.75
"""Seconds from a run's stop or timeout until its process gets SIGTERM, and until it is killed."""

GONE = 0.5
"""Seconds in which a killed process ends, unless the kernel delays it."""

_PART = 262_144


class PoolProcess:
    """One process and its messages."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.why: str | None = None
        """The reason why it was killed, or why it was asked to end if it ended by that. None if neither."""
        self._asked: str | None = None
        self._ear = ear_of_worker()
        self._heard: list[Answer] = []
        self._timers: list[asyncio.TimerHandle] = []
        self.turned_at = 0.0
        """The uptime of the last turn of its loop, as last reported."""
        self.idle = False
        """True if it waits for a run."""
        self._in_use = False
        """True while a call sends or receives on the socket. Then it must not be closed."""
        self._death = asyncio.ensure_future(process.ended())
        self._death.add_done_callback(self._died)

    @classmethod
    def started(cls, gone: "Callable[[PoolProcess], None]") -> "PoolProcess":
        """Start a process. `gone` is called when it has ended.

        Raises:
            OSError: the process cannot be started.
        """
        slot = cls(Process.started(COMMAND, variable=VARIABLE, env=os.environ))
        slot._death.add_done_callback(lambda _: gone(slot))
        return slot

    @property
    def stopped(self) -> bool:
        """True if the process was suspended (SIGSTOP)."""
        return self.process.stopped

    @property
    def lives(self) -> bool:
        """True if the process can get messages: it has not ended, and was not killed."""
        return self.process.death is None and self.why is None

    async def say(self, word: Order) -> None:
        """Send a message. If the process is dead, the next `hear` reports it."""
        with self._using(), contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self.process.line, framed(word))

    def say_at_once(self, word: Order) -> None:
        """Send a short message, if the socket's buffer has room for it."""
        self.process.say(framed(word))

    async def hear(self) -> Answer | None:
        """Wait for a message and return it. None if the process is dead, or was killed for an invalid message."""
        while not self._heard:
            part = b""
            try:
                with self._using():
                    part = await asyncio.get_running_loop().sock_recv(self.process.line, _PART)
                self._heard += self._ear.hear(part)
            except InvalidMessageError as error:
                self.kill(f"what it says is {error}")
                part = b""
            except OSError:
                pass
            if not part:
                # The process died, which is noted in a moment; or it closed the socket and lives on.
                await first(self.death(), within=GONE)
                self.kill("it has closed its line")
                await self.death()
                return None
        return self._heard.pop(0)

    def rest(self) -> None:
        """Make the process idle. Its log records are still read; otherwise it would block on a full socket."""
        self.idle = True
        asyncio.get_running_loop().add_reader(self.process.line, self._overhear)

    def rise(self) -> None:
        """End the idle state."""
        if self.idle:
            self.idle = False
            asyncio.get_running_loop().remove_reader(self.process.line)

    def expect(self, within: float, why: str, *, haste: float = 1.0) -> None:
        """Send SIGTERM `ASKED` s after `within`, and SIGKILL `KILLED` s after it, unless `calm` is called before.

        `haste`: a factor that shortens the two times.
        """
        self.after(within + ASKED * haste, functools.partial(self._ask, why))
        self.after(within + KILLED * haste, functools.partial(self.kill, why))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after this time, unless `calm` is called before or the process ends."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, act))

    def calm(self) -> None:
        """Cancel all timers, also those that would kill the process."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._asked = None

    def kill(self, why: str) -> None:
        """Kill the process and all that it has started. Idempotent."""
        if self.process.death is None:
            self.why = self.why or why
            self.process.send_all(signal.SIGKILL)

    async def death(self) -> ProcessExit:
        """Wait until the process has ended."""
        return await asyncio.shield(self._death)

    @contextlib.contextmanager
    def _using(self) -> Generator[None]:
        self._in_use = True
        try:
            yield
        finally:
            self._in_use = False
            if self.process.death is not None:
                self.process.line.close()

    def _overhear(self) -> None:
        try:
            part = self.process.line.recv(_PART)
            words = self._ear.hear(part)
        except BlockingIOError:
            return
        except (OSError, InvalidMessageError) as error:
            part, words = b"", list[Answer]()
            self.kill(f"what it says is {error}")
        for word in words:
            if isinstance(word, ForwardedLog):
                log(word)
        if not part:
            # The process is dead, or will be killed.
            self.rise()
            self.kill("it has closed its line")

    def _ask(self, why: str) -> None:
        self._asked = self._asked or why
        self.process.send_all(signal.SIGTERM)

    def _died(self, _: object) -> None:
        # The app may handle the signal itself, and end by it.
        self.why = self.why or self._asked
        self.calm()
        self.rise()
        # Its children must not go on. They may also hold the other end of the socket, which would then never close.
        self.process.send_all(signal.SIGKILL)
        if not self._in_use:
            self.process.line.close()
            return
        with contextlib.suppress(OSError):
            self.process.line.shutdown(socket.SHUT_RDWR)


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
