"""The messages between a worker and its isolated processes: MessagePack, each with a length prefix.

    worker ──► load, once; then run … stop … exit ───────────► process
           ◄── ready, or failed; then began … signs … ended ◄──

A handler runs in the isolated process and may write anything to the socket. So the worker does not trust the messages:
an invalid message ends that process, and nothing else.
"""

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct, field

from tenure.client.app_location import AppLocation
from tenure.core.job import JobRecord
from tenure.core.outcome import Outcome
from tenure.handlers.context import Line, SentProgress

VARIABLE = "TENURE_ISOLATED_PROCESS"
"""The environment variable with the descriptor of the isolated process's socket."""

LONGEST = 64 * 1024 * 1024
"""The maximum size of a message in bytes: several times the 8 MiB that a job can collect (`COLLECTED_LIMIT`)."""

REPORT_INTERVAL = 1.0
"""Seconds between two messages about the last turn of the process's loop."""

_LENGTH = 4


class LoadApp(Struct, frozen=True, tag="load"):
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


class ExitProcess(Struct, frozen=True, tag="exit"):
    """Leave the lifespan, and exit."""


class AppReady(Struct, frozen=True, tag="ready"):
    """The process is ready to run jobs."""


class AppFailed(Struct, frozen=True, tag="failed"):
    """The process cannot run jobs: the app cannot be loaded, or its lifespan cannot be entered."""

    why: str


class RunBegan(Struct, frozen=True, tag="began"):
    """The run with this fence begins at this uptime; none of the job's code has run before."""

    fence: int
    at: float


class RunSigns(Struct, frozen=True, tag="signs"):
    """The handler's signs since the last message, and its stack. `in_hook`: its on_cancel hook is at work."""

    fence: int
    at: float | None = None
    progress: SentProgress | None = None
    log: tuple[Line, ...] = ()
    in_hook: bool = False
    trace: str | None = None
    data: bytes | None = None


class RunSettled(Struct, frozen=True, tag="settled"):
    """The handler's own transaction has settled the run with this fence. The handler may go on."""

    fence: int


class LoopTurned(Struct, frozen=True, tag="turned"):
    """The uptime of the last turn of the process's event loop. Sent each second while a run goes on.

    `looked_at`: the uptime of the process's last check of the handler's stack. The stack itself is sent if it is new.
    """

    at: float
    looked_at: float = 0.0


class ForwardedLog(Struct, frozen=True, tag="logged"):
    """A record for the worker's log. `fields`: those given as `extra`, and those of the job."""

    logger: str
    level: int
    message: str
    trace: str | None = None
    fields: dict[str, str | int | float | bool | None] = field(
        default_factory=dict[str, str | int | float | bool | None]
    )


class RunEnded(Struct, frozen=True, tag="ended"):
    """The outcome of the run with this fence. `spoiled`: its code goes on, so the process can run no other job."""

    fence: int
    outcome: Outcome
    spoiled: bool = False


Order = LoadApp | RunJob | StopRun | ExitProcess
"""The messages of a worker."""

Answer = AppReady | AppFailed | RunBegan | RunSigns | RunSettled | LoopTurned | ForwardedLog | RunEnded
"""The messages of an isolated process."""

W = TypeVar("W")


class InvalidMessageError(Exception):
    """The received bytes are not a valid message."""


def encode_frame(message: Order | Answer) -> bytes:
    """Encode a message with its length."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


class FrameReader(Generic[W]):
    """Assembles messages from received bytes."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[W]") -> None:
        self._decoder = decoder
        self._rest = bytearray()

    def feed(self, part: bytes) -> list[W]:
        """Return the messages that this part completes.

        Raises:
            InvalidMessageError: a message is invalid or too long.
        """
        self._rest += part
        messages: list[W] = []
        at = 0
        while len(self._rest) - at >= _LENGTH:
            length = int.from_bytes(self._rest[at : at + _LENGTH], "big")
            if length > LONGEST:
                raise InvalidMessageError(f"a message of {length} bytes")
            if len(self._rest) - at < _LENGTH + length:
                break
            messages.append(self._decode(bytes(self._rest[at + _LENGTH : at + _LENGTH + length])))
            at += _LENGTH + length
        del self._rest[:at]
        return messages

    def _decode(self, body: bytes) -> W:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise InvalidMessageError(f"not a message: {error}") from error


def order_reader() -> FrameReader[Order]:
    """Return the reader of an isolated process, for the worker's messages."""
    return FrameReader(msgspec.msgpack.Decoder(Order))


def answer_reader() -> FrameReader[Answer]:
    """Return the reader of a worker, for an isolated process's messages."""
    return FrameReader(msgspec.msgpack.Decoder(Answer))
