"""The messages between a supervisor and its children: one JSON object per line.

child ──► hello, with the storage's address … working … counted … goodbye ──► supervisor
      ◄── now: end at once                                                ◄──
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta

import msgspec
from msgspec import Struct

from tenure.errors import UsageError
from tenure.metrics import Key, Totals
from tenure.options import Timing

VARIABLE = "TENURE_CHILD"
"""The environment variable with the descriptor of the child's socket and a `ChildConfig`."""

LONGEST = 65_536
"""The maximum size of a message in bytes. Longer input is not a message."""


class ChildConfig(Struct, frozen=True):
    """The config of a child at its start: its owner id, and the descriptors of its scoreboard and its stack file."""

    owner_id: str
    scoreboard: int
    stacks: int
    siblings: bool = False
    """True if the supervisor has several children."""


class ChildStarted(Struct, frozen=True, tag="hello", tag_field="say"):
    """The child has started. Carries the storage's address and the timing, in seconds.

    `queues`: the queues that the app's tasks go to. `serves`: the queues that this worker claims from. `outbox`: the
    address of the app's outbox.
    """

    url: str
    beat: float = 5.0
    max_block: float = 600.0
    lease: float = 20.0
    sweep: float = 2.0
    grace: float = 3.0
    leader_ttl: float = 4.0
    queues: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    outbox: str | None = None

    @property
    def timing(self) -> Timing:
        """The child's timing, or the default if the values are invalid."""
        seconds = (self.lease, self.beat, self.sweep, self.grace, self.leader_ttl, self.max_block)
        try:
            # Timing warns of large numbers, which a user may have meant as milliseconds.
            return Timing(*(timedelta(seconds=length) for length in seconds))
        except (UsageError, ValueError, OverflowError):
            return Timing()


class MetricsUpdate(Struct, frozen=True, tag="counted", tag_field="say"):
    """The child's metrics. The latest value of a series counts; a series that is missing has not changed."""

    series: tuple[tuple[Key, tuple[float, ...]], ...]


class ChildReady(Struct, frozen=True, tag="working", tag_field="say"):
    """The child has started completely and begins to claim."""


class ChildRetiring(Struct, frozen=True, tag="retiring", tag_field="say"):
    """The child claims no more, and ends when its runs do. Another may take its place. `why`: the reason."""

    why: str


class ChildLeaving(Struct, frozen=True, tag="goodbye", tag_field="say"):
    """The child has handed back its jobs and ends.

    `dismissed`: an operator ordered it to stop, so no other replaces it. `recycled`: the reason to replace it at once.
    """

    dismissed: bool = False
    recycled: str | None = None


ChildMessage = ChildStarted | ChildReady | MetricsUpdate | ChildRetiring | ChildLeaving
"""The messages of a child."""

_DECODER: msgspec.json.Decoder[ChildMessage] = msgspec.json.Decoder(ChildMessage)

STOP_NOW = b"now\n"
"""The only message of a supervisor: the child must end at once."""


def encode_message(message: ChildMessage) -> bytes:
    """Encode a message."""
    return msgspec.json.encode(message) + b"\n"


def metrics_messages(totals: Totals) -> Iterator[MetricsUpdate]:
    """Return the messages that carry these metrics, each within the size limit."""
    part: list[tuple[Key, tuple[float, ...]]] = []
    room = LONGEST // 2
    for key, numbers in totals.items():
        size = len(msgspec.json.encode((key, numbers)))
        if part and size > room:
            yield MetricsUpdate(tuple(part))
            part, room = [], LONGEST // 2
        part.append((key, numbers))
        room -= size
    if part:
        yield MetricsUpdate(tuple(part))


def names_that_fit(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first names that fit into a message together with its other fields."""
    found: list[str] = []
    room = LONGEST // 4
    for name in names:
        # The longest form in JSON.
        room -= 6 * len(name) + 3
        if room < 0:
            break
        found.append(name)
    return tuple(found)


class MessageReader:
    """Assembles messages from received bytes. Ignores invalid input, because a child may run any code."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, part: bytes) -> list[ChildMessage]:
        """Return the messages that this part completes."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        self._rest = self._rest[:LONGEST]
        return [message for line in lines if (message := _decode(line)) is not None]


def _decode(line: bytes) -> ChildMessage | None:
    try:
        return _DECODER.decode(line)
    except msgspec.MsgspecError:
        return None
