"""What a supervisor and its children say to each other, one JSON object a line.

child ──► hello, where the jobs are remembered … working … counted … goodbye ──► supervisor
      ◄── now: leave at once                             ◄──
"""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from tenure.errors import UsageError
from tenure.metrics import Key, Totals
from tenure.options import Timing

VARIABLE = "TENURE_CHILD"
"""Carries the descriptor of the child's end of the line, and what `Told` says."""

LONGEST = 65_536
"""Bytes that one word may have; what is longer is no word of ours."""


class ChildConfig(Struct, frozen=True):
    """What a child is told when it is started: its owner id, and the descriptors of its slate and its stack file."""

    incarnation: str
    slate: int
    stacks: int
    siblings: bool = False
    """Whether it is one of several."""


class ChildStarted(Struct, frozen=True, tag="hello", tag_field="say"):
    """The child is ready, and the jobs are remembered there. Lengths of its timing, in seconds.

    `queues`: those that the app's tasks go to. `serves`: those that this worker claims from.
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

    @property
    def timing(self) -> Timing:
        """Its timing, or the default one if it is none."""
        try:
            return Timing(self.lease, self.beat, self.sweep, self.grace, self.leader_ttl, self.max_block)
        except UsageError:
            return Timing()


class MetricsUpdate(Struct, frozen=True, tag="counted", tag_field="say"):
    """What the child's counts have come to; the last word on a series counts, one that is not named has not changed."""

    series: tuple[tuple[Key, tuple[float, ...]], ...]


class ChildReady(Struct, frozen=True, tag="working", tag_field="say"):
    """The child has come through all that may keep a worker from starting, and begins to claim."""


class ChildRetiring(Struct, frozen=True, tag="retiring", tag_field="say"):
    """The child claims no more, and ends when its runs do: another may take its place. `why`: for what it does."""

    why: str


class ChildLeaving(Struct, frozen=True, tag="goodbye", tag_field="say"):
    """The child has handed back what it held, and ends for that.

    `dismissed`: by an operator's order, so that no other shall follow it. `recycled`: why another shall, at once.
    """

    dismissed: bool = False
    recycled: str | None = None


ChildMessage = ChildStarted | ChildReady | MetricsUpdate | ChildRetiring | ChildLeaving
"""What a child says."""

_WORDS: msgspec.json.Decoder[ChildMessage] = msgspec.json.Decoder(ChildMessage)

NOW = b"now\n"
"""What a supervisor says to a child that shall leave at once; it has nothing else to say."""


def spoken(word: ChildMessage) -> bytes:
    """Return a word as it goes over the line."""
    return msgspec.json.encode(word) + b"\n"


def counted(totals: Totals) -> Iterator[MetricsUpdate]:
    """Return the words that say what counts have come to, none of them longer than one may be."""
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


def fitting(names: Iterable[str]) -> tuple[str, ...]:
    """Return as many of these names as there is room for in a word beside others."""
    found: list[str] = []
    room = LONGEST // 4
    for name in names:
        # As JSON writes it at worst.
        room -= 6 * len(name) + 3
        if room < 0:
            break
        found.append(name)
    return tuple(found)


class MessageReader:
    """Puts together what comes over the line. What is no word is not heard: a child may run any code."""

    def __init__(self) -> None:
        self._rest = b""

    def hear(self, part: bytes) -> list[ChildMessage]:
        """Return the words that end with this part."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        self._rest = self._rest[:LONGEST]
        return [word for line in lines if (word := _understood(line)) is not None]


def _understood(line: bytes) -> ChildMessage | None:
    try:
        return _WORDS.decode(line)
    except msgspec.MsgspecError:
        return None
