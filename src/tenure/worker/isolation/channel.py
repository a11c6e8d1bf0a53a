"""The isolated process's end of its socket: carries the worker's orders, and the handler's signs and log records."""

import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable

from tenure.core.text import storable
from tenure.failures import trace_of
from tenure.handlers.context import Progress, ProgressReports
from tenure.processes.parent_death import kill_own_group
from tenure.worker.isolation.messages import (
    Answer,
    ForwardedLog,
    InvalidMessageError,
    Order,
    encode_frame,
    order_reader,
)

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

    def set_receiver(self, hear: Callable[[Order], None]) -> None:
        """Set the function that gets the orders, including those received so far. Called in the reading thread."""
        with self._lock:
            self._receive = hear
            for message in self._early:
                hear(message)
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

    def sign(self, at: float, progress: Progress | None = None) -> None:
        """Note a sign, and have it sent."""
        super().sign(at, progress)
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
            self._line.send(ForwardedLog(record.name, record.levelno, message, trace))
        except Exception:
            self.handleError(record)
