"""The messages between a worker and its isolated processes: MessagePack, each with a length prefix.

    worker ──► enter, once; then run … stop … leave ──────────► process
           ◄── ready, or unfit; then began … said … ended ◄────

A handler runs in the isolated process and may write anything to the socket. So the worker does not trust the messages:
an invalid message ends that process, and nothing else.
"""

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from tenure.client.app_location import AppLocation
from tenure.core.job import JobRecord
from tenure.core.outcome import Outcome
from tenure.handlers.context import Line, Progress

VARIABLE = "TENURE_SLOT"
"""The environment variable with the descriptor of the isolated process's socket."""

LONGEST = 64 * 1024 * 1024
"""The maximum size of a message in bytes: several times the 8 MiB that a job can gather (`GATHERED_LIMIT`)."""

TELLING = 1.0
"""Seconds between two messages about the last turn of the process's loop."""

_LENGTH = 4


class LoadApp(Struct, frozen=True, tag="enter"):
    """Load the app from this location, and enter its lifespan. `level`: the lowest log level to forward."""

    app: AppLocation
    worker: str
    level: int


class RunJob(Struct, frozen=True, tag="run"):
    """Run this job."""

    job: JobRecord


class StopRun(Struct, frozen=True, tag="stop"):
    """Stop the run with this fence."""

    fence: int
    reason: str
    detail: str | None = None


class ExitProcess(Struct, frozen=True, tag="leave"):
    """Leave the lifespan, and exit."""


class AppReady(Struct, frozen=True, tag="ready"):
    """The process is ready to run jobs."""


class AppFailed(Struct, frozen=True, tag="unfit"):
    """The process cannot run jobs: the app cannot be loaded, or its lifespan cannot be entered."""

    why: str


class RunBegan(Struct, frozen=True, tag="began"):
    """The run with this fence begins at this uptime; none of the job's code has run before."""

    fence: int
    at: float


class RunSigns(Struct, frozen=True, tag="said"):
    """The handler's signs since the last message, and its stack. `hooking`: its on_cancel hook is at work."""

    fence: int
    at: float | None = None
    progress: Progress | None = None
    log: tuple[Line, ...] = ()
    hooking: bool = False
    trace: str | None = None


class LoopTurned(Struct, frozen=True, tag="turned"):
    """The uptime of the last turn of the process's event loop. Sent each second while a run goes on.

    `looked_at`: the uptime of the process's last check of the handler's stack. The stack itself is sent if it is new.
    """

    at: float
    looked_at: float = 0.0


class ForwardedLog(Struct, frozen=True, tag="logged"):
    """A record for the worker's log."""

    logger: str
    level: int
    message: str
    trace: str | None = None


class RunEnded(Struct, frozen=True, tag="ended"):
    """The outcome of the run with this fence. `spoiled`: its code goes on, so the process can run no other job."""

    fence: int
    outcome: Outcome
    spoiled: bool = False


Order = LoadApp | RunJob | StopRun | ExitProcess
"""The messages of a worker."""

Answer = AppReady | AppFailed | RunBegan | RunSigns | LoopTurned | ForwardedLog | RunEnded
"""The messages of an isolated process."""

W = TypeVar("W")


class InvalidMessageError(Exception):
    """The received bytes are not a valid message."""


def framed(word: Order | Answer) -> bytes:
    """Encode a message with its length."""
    told = msgspec.msgpack.encode(word)
    return len(told).to_bytes(_LENGTH, "big") + told


class FrameReader(Generic[W]):
    """Assembles messages from received bytes."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[W]") -> None:
        self._decoder = decoder
        self._rest = bytearray()

    def hear(self, part: bytes) -> list[W]:
        """Return the messages that this part completes.

        Raises:
            InvalidMessageError: a message is invalid or too long.
        """
        self._rest += part
        words: list[W] = []
        at = 0
        while len(self._rest) - at >= _LENGTH:
            length = int.from_bytes(self._rest[at : at + _LENGTH], "big")
            if length > LONGEST:
                raise InvalidMessageError(f"a word of {length} bytes")
            if len(self._rest) - at < _LENGTH + length:
                break
            words.append(self._understood(bytes(self._rest[at + _LENGTH : at + _LENGTH + length])))
            at += _LENGTH + length
        del self._rest[:at]
        return words

    def _understood(self, told: bytes) -> W:
        try:
            return self._decoder.decode(told)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise InvalidMessageError(f"no word at all: {error}") from error


def ear_of_slot() -> FrameReader[Order]:
    """Return the reader of an isolated process, for the worker's messages."""
    return FrameReader(msgspec.msgpack.Decoder(Order))


def ear_of_worker() -> FrameReader[Answer]:
    """Return the reader of a worker, for an isolated process's messages."""
    return FrameReader(msgspec.msgpack.Decoder(Answer))
