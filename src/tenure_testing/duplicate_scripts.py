"""A connection to Redis on which scripts arrive twice, as behind a proxy or a client that repeats its requests."""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from random import Random

SCRIPTS = frozenset({b"EVALSHA", b"EVAL"})
LISTENING = frozenset({b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"MONITOR"})
"""Commands after which replies arrive without requests."""


class _IncompleteError(Exception):
    """The data does not contain a whole frame yet."""


class DuplicatedScripts:
    """Sends scripts twice on one connection, and forwards one of the two replies."""

    def __init__(self, dice: Random, share: float, *, second: Collection[bytes], count: Callable[[], None]) -> None:
        """Create the filter of a connection. `share`: the share of scripts to double. `count`: called for each of them.

        `second`: the digests of the scripts of which a random one of the two replies is forwarded. Of all other scripts
        the first reply is forwarded.
        """
        self._dice = dice
        self._share = share
        self._second = second
        self._count = count
        self._asked = b""
        self._replied = b""
        self._kept = deque[bool]()
        """For each expected reply, True if it is forwarded."""
        self._listens = False

    def requests(self, data: bytes) -> bytes:
        """Return the bytes to send to the server for these bytes from the client."""
        self._asked += data
        if self._listens:
            sent, self._asked = self._asked, b""
            return sent
        frames, self._asked = _frames(self._asked)
        return b"".join(map(self._request, frames))

    def replies(self, data: bytes) -> bytes:
        """Return the bytes to send to the client for these bytes from the server."""
        self._replied += data
        if self._listens and not self._kept:
            sent, self._replied = self._replied, b""
            return sent
        frames, self._replied = _frames(self._replied)
        return b"".join(frame for frame in frames if frame[:1] == b">" or not self._kept or self._kept.popleft())

    def _request(self, frame: bytes) -> bytes:
        words = list(_words(frame))
        name = words[0].upper() if words else b""
        self._listens = self._listens or name in LISTENING
        if self._listens or name not in SCRIPTS or self._dice.random() >= self._share:
            self._kept.append(True)
            return frame
        self._count()
        first = words[1] not in self._second or self._dice.random() < 0.5
        self._kept += (first, not first)
        return frame * 2


def _frames(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole frames at the beginning of the data, and the remaining bytes."""
    frames: list[bytes] = []
    start = 0
    while start < len(data):
        try:
            end = _end(data, start)
        except _IncompleteError:
            break
        frames.append(data[start:end])
        start = end
    return frames, data[start:]


def _end(data: bytes, start: int) -> int:
    """Return the end of the frame that begins at `start`."""
    kind, line, end = data[start : start + 1], *_line(data, start)
    if kind in b"$=!" and int(line) >= 0:
        end += int(line) + 2
        if end > len(data):
            raise _IncompleteError
    elif kind in b"*~>%|":
        for _ in range(int(line) * (2 if kind in b"%|" else 1)):
            end = _end(data, end)
        if kind == b"|":
            end = _end(data, end)
    return end


def _line(data: bytes, start: int) -> tuple[bytes, int]:
    """Return the rest of a frame's first line, and the start of the next line."""
    end = data.find(b"\r\n", start)
    if end < 0:
        raise _IncompleteError
    return data[start + 1 : end], end + 2


def _words(frame: bytes) -> Iterator[bytes]:
    """Yield the first two words of a command."""
    count, at = _line(frame, 0)
    for _ in range(min(2, int(count))):
        size, at = _line(frame, at)
        yield frame[at : at + int(size)]
        at += int(size) + 2
