"""What a worker and the processes of its slots say to each other: MessagePack, each word behind its length.

    worker ──► enter, once; then run … stop … leave ──────────► slot
           ◄── ready, or unfit; then began … said … ended ◄────

A handler runs in the process of its slot, and may write there what it likes. So what comes from a slot is taken for no
more than it claims to be: what is no word ends that slot, and nothing else.
"""

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from tenure.client.app_location import Whereabouts
from tenure.core.job import JobRecord
from tenure.core.outcome import Outcome
from tenure.handlers.context import Line, Progress

VARIABLE = "TENURE_SLOT"
"""Carries the descriptor of the slot's end of the line."""

LONGEST = 64 * 1024 * 1024
"""Bytes that one word may have: a job that has gathered its 8 MiB, several times over."""

TELLING = 1.0
"""Seconds between two words on when the loop of a slot last turned."""

_LENGTH = 4


class LoadApp(Struct, frozen=True, tag="enter"):
    """Load the app that is found there, and enter its lifespan. `level`: log from this one up."""

    app: Whereabouts
    worker: str
    level: int


class RunJob(Struct, frozen=True, tag="run"):
    """Run this job."""

    job: JobRecord


class StopRun(Struct, frozen=True, tag="stop"):
    """Make the run under that fence end."""

    fence: int
    reason: str
    detail: str | None = None


class ExitProcess(Struct, frozen=True, tag="leave"):
    """Leave the lifespan, and end."""


class AppReady(Struct, frozen=True, tag="ready"):
    """Jobs can be run."""


class AppFailed(Struct, frozen=True, tag="unfit"):
    """Jobs cannot be run here: the app cannot be loaded, or its lifespan not be entered."""

    why: str


class RunBegan(Struct, frozen=True, tag="began"):
    """The run under that fence begins now, which is an uptime; before this nothing of it has happened."""

    fence: int
    at: float


class RunSigns(Struct, frozen=True, tag="said"):
    """What the handler has said since the last time, and where it is; `hooking`: its on_cancel hook is at work."""

    fence: int
    at: float | None = None
    progress: Progress | None = None
    log: tuple[Line, ...] = ()
    hooking: bool = False
    trace: str | None = None


class LoopTurned(Struct, frozen=True, tag="turned"):
    """When the event loop of the slot last turned, as an uptime; said each second while something runs.

    `looked_at`: when somebody there last looked where the handler is, which is said only where it is news.
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
    """What the run under that fence came to. `spoiled`: something of it goes on, so nothing else can be run here."""

    fence: int
    outcome: Outcome
    spoiled: bool = False


Order = LoadApp | RunJob | StopRun | ExitProcess
"""What a worker says."""

Answer = AppReady | AppFailed | RunBegan | RunSigns | LoopTurned | ForwardedLog | RunEnded
"""What a slot says."""

W = TypeVar("W")


class InvalidMessageError(Exception):
    """What came over the line is no word."""


def framed(word: Order | Answer) -> bytes:
    """Return a word as it goes over the line."""
    told = msgspec.msgpack.encode(word)
    return len(told).to_bytes(_LENGTH, "big") + told


class FrameReader(Generic[W]):
    """Puts together what comes over the line."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[W]") -> None:
        self._decoder = decoder
        self._rest = bytearray()

    def hear(self, part: bytes) -> list[W]:
        """Return the words that end with this part.

        Raises:
            GarbledError: there is one that is none, or too long.
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
    """Return what hears a worker."""
    return FrameReader(msgspec.msgpack.Decoder(Order))


def ear_of_worker() -> FrameReader[Answer]:
    """Return what hears a slot."""
    return FrameReader(msgspec.msgpack.Decoder(Answer))
