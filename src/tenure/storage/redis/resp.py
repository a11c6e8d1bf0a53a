"""RESP, the servers' language: commands to bytes, and bytes to replies, in C where hiredis is installed."""

import importlib.util
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from redis.exceptions import InvalidResponse, RedisError

Word = bytes | str | int
"""A word of a command."""

Command = Sequence[Word]
"""The words of a command; or bytes, what a server reads of it: then it is packed already."""

Reply = object
"""What a server answered: bytes, int, None, a list of such, or an error of `redis.exceptions`."""

ReadError = Callable[[str], RedisError]
"""Makes of a server's words the error that they tell of."""

INCOMPLETE = object()
"""What a reader gives that has no whole reply."""

_TRIMMED = 1 << 16
"""After how many bytes that were read a buffer is cut."""


IN_C = importlib.import_module("hiredis") if importlib.util.find_spec("hiredis") else None


class ReplyParser(Protocol):
    """Makes replies of bytes as they come."""

    def feed(self, data: bytes, /) -> object:
        """Take in what has come."""
        ...

    def gets(self) -> Reply:
        """Return the next reply, or INCOMPLETE.

        Raises:
            InvalidResponse: what has come is not this language.
        """
        ...


def reader(error: ReadError) -> ReplyParser:
    """Return the fastest reader that there is."""
    return PythonReplyParser(error) if IN_C is None else IN_C.Reader(InvalidResponse, error, notEnoughData=INCOMPLETE)


class PythonReplyParser:
    """The reader for where hiredis is not installed."""

    def __init__(self, error: ReadError) -> None:
        self._error = error
        self._buffer = bytearray()
        self._at = 0
        self._replies = self._read()

    def feed(self, data: bytes, /) -> None:
        """See `Reader.feed`."""
        self._buffer += data

    def gets(self) -> Reply:
        """See `Reader.gets`."""
        return next(self._replies)

    def _read(self) -> Generator[Reply]:
        while True:
            yield (yield from self._reply())

    def _reply(self) -> Generator[Reply, None, Reply]:
        # It stands still in the midst of a reply, however deep, until more has come: nothing is read twice.
        while (end := self._buffer.find(b"\r\n", self._at)) < 0:
            yield INCOMPLETE
        kind, rest = self._buffer[self._at : self._at + 1], bytes(self._buffer[self._at + 1 : end])
        self._past(end + 2)
        match bytes(kind):
            case b"+":
                return rest
            case b"-":
                return self._error(rest.decode("utf-8", "replace"))
            case b":":
                return _number(rest)
            case b"$" if (length := _number(rest)) >= 0:
                while len(self._buffer) < self._at + length + 2:
                    yield INCOMPLETE
                blob = bytes(self._buffer[self._at : self._at + length])
                self._past(self._at + length + 2)
                return blob
            case b"*" if (length := _number(rest)) >= 0:
                items: list[Reply] = []
                for _ in range(length):
                    items.append((yield from self._reply()))
                return items
            case b"$" | b"*":
                return None
            case _:
                raise InvalidResponse(f"a reply begins with {bytes(kind)!r}")

    def _past(self, place: int) -> None:
        self._at = place
        if place > _TRIMMED:
            del self._buffer[:place]
            self._at = 0


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidResponse(f"a reply has {text[:60]!r} for a number") from None


def packed(commands: Sequence[Command]) -> bytes:
    """Return commands as a server reads them."""
    if len(commands) == 1:
        return _packed(commands[0])
    return b"".join(map(_packed, commands))


def _packed(command: Command) -> bytes:
    return command if isinstance(command, bytes) else _pack(tuple(command))


def plainly_packed(command: Command) -> bytes:
    """Return a command as a server reads it, for where hiredis is not installed."""
    return packed_after((), command)


_pack: Callable[[tuple[Word, ...]], bytes] = getattr(IN_C, "pack_command", plainly_packed)


def packed_after(beginning: tuple[Word, ...], words: Sequence[Word]) -> bytes:
    """Return a command as a server reads it, whose first words are those of many others: they are packed only once."""
    parts = [b"*%d" % (len(beginning) + len(words))]
    if beginning:
        parts.append(_beginning(beginning))
    _add(parts, words)
    parts.append(b"")
    return _END.join(parts)


@lru_cache(256)
def _beginning(words: tuple[Word, ...]) -> bytes:
    """Return the first words of a command, but for the end of the last."""
    parts: list[bytes] = []
    _add(parts, words)
    return _END.join(parts)


def _add(parts: list[bytes], words: Iterable[Word]) -> None:
    """Add words, each behind its length."""
    for word in words:
        # What is none of the three is refused, and not told by what it looks like.
        raw = word if isinstance(word, bytes) else word.encode() if isinstance(word, str) else b"%d" % word
        length = len(raw)
        parts.append(_LENGTHS[length] if length < _SHORT else b"$%d" % length)
        parts.append(raw)


_END = b"\r\n"
_SHORT = 512
_LENGTHS = tuple(b"$%d" % length for length in range(_SHORT))
"""The lengths of short words: to make one takes as long as all else that is done for a word."""
