"""A worker's end of a slot: what is said to its process and heard of it, what it is killed for, how it ends.

cancelled, lost, timed out: told ──1 s──► SIGTERM to it and all that it started ──0.75 s──► SIGKILL
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
"""Seconds after a run was told to end, or should have, until its process is sent SIGTERM, and until it is killed."""

GONE = 0.5
"""Seconds in which what was killed is surely dead, unless the kernel keeps it."""

_PART = 262_144


class PoolProcess:
    """One process, and what is said to it and heard of it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.why: str | None = None
        """What we kill it for, once we do; or what we had told it to end for, if it ended by that."""
        self._asked: str | None = None
        self._ear = ear_of_worker()
        self._heard: list[Answer] = []
        self._timers: list[asyncio.TimerHandle] = []
        self.turned_at = 0.0
        """The uptime at which its loop last turned, as far as it has said."""
        self.idle = False
        """Whether it waits for a run."""
        self._in_use = False
        """Whether somebody speaks or listens on the line; then it must not be closed."""
        self._death = asyncio.ensure_future(process.ended())
        self._death.add_done_callback(self._died)

    @classmethod
    def started(cls, gone: "Callable[[PoolProcess], None]") -> "PoolProcess":
        """Start one; `gone` is called when it is dead.

        Raises:
            OSError: it cannot be started.
        """
        slot = cls(Process.started(COMMAND, variable=VARIABLE, env=os.environ))
        slot._death.add_done_callback(lambda _: gone(slot))
        return slot

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP), so that nothing in it goes on."""
        return self.process.stopped

    @property
    def lives(self) -> bool:
        """Whether it can be told something."""
        return self.process.death is None and self.why is None

    async def say(self, word: Order) -> None:
        """Say something; if it is dead, that is heard next."""
        with self._using(), contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self.process.line, framed(word))

    def say_at_once(self, word: Order) -> None:
        """Say something short, if there is room for it on the line."""
        self.process.say(framed(word))

    async def hear(self) -> Answer | None:
        """Wait for a word and return it; None once it is dead, or has said what is none and is killed for that."""
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
                # Its end is closed at its death, and then that is known in a moment; or it has closed it and lives on.
                await first(self.death(), within=GONE)
                self.kill("it has closed its line")
                await self.death()
                return None
        return self._heard.pop(0)

    def rest(self) -> None:
        """Let it be idle. What it logs meanwhile is heard all the same, or it would wait for somebody to hear it."""
        self.idle = True
        asyncio.get_running_loop().add_reader(self.process.line, self._overhear)

    def rise(self) -> None:
        """Let it be idle no more."""
        if self.idle:
            self.idle = False
            asyncio.get_running_loop().remove_reader(self.process.line)

    def expect(self, within: float, why: str, *, haste: float = 1.0) -> None:
        """Have it killed unless it is calmed before: asked after so many seconds, and a little more to leave.

        `haste`: the part of that little more which there is time for.
        """
        self.after(within + ASKED * haste, functools.partial(self._ask, why))
        self.after(within + KILLED * haste, functools.partial(self.kill, why))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something after so many seconds, unless it is calmed before, or dead."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, act))

    def calm(self) -> None:
        """Let it live, whatever was expected of it."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._asked = None

    def kill(self, why: str) -> None:
        """Kill it, and all that it has started. Idempotent."""
        if self.process.death is None:
            self.why = self.why or why
            self.process.send_all(signal.SIGKILL)

    async def death(self) -> ProcessExit:
        """Wait until it is dead."""
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
            # It is dead, or as good as dead.
            self.rise()
            self.kill("it has closed its line")

    def _ask(self, why: str) -> None:
        self._asked = self._asked or why
        self.process.send_all(signal.SIGTERM)

    def _died(self, _: object) -> None:
        # The app may have a handler of its own for the signal, and end by it.
        self.why = self.why or self._asked
        self.calm()
        self.rise()
        # What it had started must not go on, and may hold the other end of the line, which would then never end.
        self.process.send_all(signal.SIGKILL)
        if not self._in_use:
            self.process.line.close()
            return
        with contextlib.suppress(OSError):
            self.process.line.shutdown(socket.SHUT_RDWR)


def log(record: ForwardedLog) -> None:
    """Log what a process has to say, as if it had been said here."""
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
