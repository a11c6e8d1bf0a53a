"""Parameters for many values at once: lists as JSON texts, and the bytes that belong to their rows."""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from tenure.core.figures import NO_COUNTS, Counts, sound
from tenure.core.job import Ref

_encode = msgspec.json.Encoder().encode
_decode_counts = msgspec.json.Decoder(Counts).decode


class OfJob(Protocol):
    """A part of a request that concerns one job."""

    @property
    def ref(self) -> Ref:
        """The job."""
        ...


P = TypeVar("P", bound=OfJob)


def without_repeats(parts: Sequence[P]) -> Iterator[Sequence[P]]:
    """Yield the parts of a request in batches that name no job twice: a later part must see an earlier one's effect."""
    if len({part.ref for part in parts}) == len(parts):
        yield parts
        return
    batch: list[P] = []
    named: set[Ref] = set()
    for part in parts:
        if part.ref in named:
            yield batch
            batch, named = [], set()
        batch.append(part)
        named.add(part.ref)
    if batch:
        yield batch


class ByteSlices:
    """The bytes that belong to the rows of a JSON list, which cannot hold them: each row states where its bytes are."""

    def __init__(self) -> None:
        # In some dialects a part of an empty value is NULL.
        self._parts = [b"."]
        self._length = 1

    def add(self, part: bytes | None) -> tuple[int | None, int | None]:
        """Return the position of these bytes, counted from 1 as SQL does, and their length."""
        if part is None:
            return None, None
        begins = self._length + 1
        self._parts.append(part)
        self._length += len(part)
        return begins, len(part)

    def joined(self) -> bytes:
        """Return all bytes, concatenated."""
        return b"".join(self._parts)


def decode_counts(body: str) -> Counts:
    """Return the counts of a cell of figures; none if another program has damaged them."""
    try:
        return sound(_decode_counts(body))
    except (msgspec.MsgspecError, UnicodeError):
        return NO_COUNTS


def json_list(values: Sequence[object]) -> str | None:
    """Return values as a JSON list, which one statement processes in a single call of the library.

    Returns None for an empty list, and if a value contains a NUL, at which some databases end a text in JSON.
    """
    body = _encode(values) if values else b""
    return body.decode() if body and b"\\u0000" not in body else None


def json_rows(values: Sequence[object]) -> str:
    """Return values as a JSON list, for values that contain no NUL: numbers, names, and JSON texts."""
    return _encode(values).decode()


def json_names(names: Sequence[str]) -> str:
    """Return names as one text list; names contain no NUL, so every database can read all of them."""
    return _encode(names).decode()
