"""Arguments and results to bytes and back."""

from typing import Any, Protocol

import msgspec


class Codec(Protocol):
    """What turns plain data into bytes and back.

    `decode(encode(value))` gives plain data (None, bool, int, float, str, list, dict), which is then converted to the
    types of the task's signature. A codec that compresses or encrypts wraps another. Whoever reads the storage without
    the codec (a reaper, the command line) sees the bytes and needs no more.
    """

    def encode(self, value: Any, /) -> bytes:
        """Return the value as bytes. Any exception means that it cannot be encoded."""
        ...

    def decode(self, data: bytes, /) -> Any:
        """Return the plain data. Any exception means that the bytes are not this codec's."""
        ...


class JsonCodec:
    """JSON by msgspec: datetimes, UUIDs, enums, dataclasses, TypedDicts and Structs pass; pickle never does."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder()

    def encode(self, value: Any, /) -> bytes:
        """Return the value as JSON."""
        return self._encoder.encode(value)

    def decode(self, data: bytes, /) -> Any:
        """Return what the JSON says."""
        return self._decoder.decode(data)
