"""RESP, the servers' protocol: encodes commands and decodes replies, in C if hiredis is installed."""

import importlib.util
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from redis.exceptions import InvalidResponse, RedisError

Word = bytes | str | int
"""A word of a command."""

Command = Sequence[Word]
"""The words of a command; or bytes, if the command is encoded already."""

Reply = object
"""A server's reply: bytes, int, None, a list of these, or an error of `redis.exceptions`."""

ReadError = Callable[[str], RedisError]
"""Turns the text of an error reply into an exception."""

INCOMPLETE = object()
"""The value that a reader returns while no complete reply has arrived."""

_TRIMMED = 1 << 16
"""A buffer drops its consumed bytes when there are more than this."""


IN_C = importlib.import_module("hiredis") if importlib.util.find_spec("hiredis") else None


class ReplyParser(Protocol):
    """Decodes replies from bytes as they arrive."""

    def feed(self, data: bytes, /) -> object:
        """Add received bytes."""
        ...

    def gets(self) -> Reply:
        """Return the next reply, or INCOMPLETE.

        Raises:
            InvalidResponse: the bytes are not RESP.
        """
        ...


def reader(error: ReadError) -> ReplyParser:
    """Return the fastest available reader."""
    return PythonReplyParser(error) if IN_C is None else IN_C.Reader(InvalidResponse, error, notEnoughData=INCOMPLETE)


class PythonReplyParser:
    """The reader that is used if hiredis is not installed."""

    def __init__(self, error: ReadError) -> None:
        self._error = error
        self._buffer = bytearray()
        self._at = 0
        self._replies = self._read()

    def feed(self, data: bytes, /) -> None:
        """See `ReplyParser.feed`."""
        self._buffer += data

    def gets(self) -> Reply:
        """See `ReplyParser.gets`."""
        return next(self._replies)

    def _read(self) -> Generator[Reply]:
        while True:
            yield (yield from self._reply())

    def _reply(self) -> Generator[Reply, None, Reply]:
        # The generator pauses inside a reply, at any depth, until more bytes arrive. So nothing is parsed twice.
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
    """Return the encoding of commands."""
    if len(commands) == 1:
        return _packed(commands[0])
    return b"".join(map(_packed, commands))


def _packed(command: Command) -> bytes:
    return command if isinstance(command, bytes) else _pack(tuple(command))


def plainly_packed(command: Command) -> bytes:
    """Return the encoding of a command; used if hiredis is not installed."""
    return packed_after((), command)


_pack: Callable[[tuple[Word, ...]], bytes] = getattr(IN_C, "pack_command", plainly_packed)


def packed_after(beginning: tuple[Word, ...], words: Sequence[Word]) -> bytes:
    """Return the encoding of a command. `beginning`: first words that many commands share; their encoding is cached."""
    parts = [b"*%d" % (len(beginning) + len(words))]
    if beginning:
        parts.append(_beginning(beginning))
    _add(parts, words)
    parts.append(b"")
    return _END.join(parts)


@lru_cache(256)
def _beginning(words: tuple[Word, ...]) -> bytes:
    """Return the encoding of a command's first words, without the line end after the last."""
    parts: list[bytes] = []
    _add(parts, words)
    return _END.join(parts)


def _add(parts: list[bytes], words: Iterable[Word]) -> None:
    """Append words, each after its length."""
    for word in words:
        # Any other type raises TypeError; we do not guess by attributes.
        raw = word if isinstance(word, bytes) else word.encode() if isinstance(word, str) else b"%d" % word
        length = len(raw)
        parts.append(_LENGTHS[length] if length < _SHORT else b"$%d" % length)
        parts.append(raw)


_END = b"\r\n"
_SHORT = 512
_LENGTHS = tuple(b"$%d" % length for length in range(_SHORT))
"""The encoded lengths of short words. Formatting one would take as long as the rest of the work for a word."""
