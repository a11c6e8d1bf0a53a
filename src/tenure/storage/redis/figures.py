"""Encodes the reads of figures for their script, and decodes the answers."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import msgspec
from msgspec import Struct

from tenure.core.figures import (
    HOUR,
    HOURS,
    MINUTES,
    NO_COUNTS,
    Counts,
    FiguresCell,
    FiguresQuery,
    Level,
    sound,
)
from tenure.storage.redis.records import RequestEncoder

KINDS = {"minutes": MINUTES, "hours": HOURS}
"""The kinds of keys, and the cells in them."""

SPANS = {"minutes": HOUR, "hours": 24 * HOUR}
"""The time that one key covers, in microseconds."""

RANGES_AT_ONCE = 24
"""How many keys one call reads."""

_decode = msgspec.msgpack.Decoder(Counts).decode

Range = tuple[str, int, int, int]
"""A queue, the start of a key, and the first and the last cell of it."""


class _Figures(Struct):
    kind: str
    task: str
    ranges: Sequence[Range]


class _Survey(Struct):
    figures: _Figures


def kind_of(level: Level) -> str:
    """Return the kind of the keys with cells of this level."""
    return next(kind for kind, known in KINDS.items() if known == level)


def ranges_of(queues: Sequence[str], query: FiguresQuery, now: int) -> list[Range]:
    """Return the ranges of cells to read."""
    length, span = query.level.length, SPANS[kind_of(query.level)]
    # Cells begin at multiples of their length. None lies ahead of the clock, unless it was set back.
    first, last = -(-query.begin(now) // length), (min(query.until, now + span) - 1) // length
    each = span // length
    return [
        (queue, chunk * span, max(first - chunk * each, 0), min(last - chunk * each, each - 1))
        for queue, chunk in product(dict.fromkeys(queues), range(first // each, last // each + 1))
        if first <= last
    ]


def encode_figures(query: FiguresQuery, ranges: Sequence[Range]) -> list[bytes]:
    """Return the request for these ranges of cells."""
    return RequestEncoder().finish(_Survey(_Figures(kind_of(query.level), query.task, ranges)))


def decode_figures(reply: Any, query: FiguresQuery, ranges: Sequence[Range]) -> Iterator[FiguresCell]:
    """Return the cells that were found."""
    for (queue, begins, first, _), bodies in zip(ranges, reply, strict=True):
        for place, body in enumerate(bodies, first):
            if body is not None:
                yield FiguresCell(queue, begins + place * query.level.length, _counts(body))


def _counts(body: bytes) -> Counts:
    try:
        return sound(_decode(body))
    except (msgspec.MsgspecError, UnicodeError):
        return NO_COUNTS
