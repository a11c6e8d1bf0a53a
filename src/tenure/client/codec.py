"""Codecs: encode arguments and results to bytes and decode them."""

from typing import Any, Protocol

import msgspec


class Codec(Protocol):
    """Encodes plain data to bytes and decodes it.

    `decode(encode(value))` returns plain data (None, bool, int, float, str, list, dict), which is then converted to the
    types of the task's signature. A codec that compresses or encrypts wraps another codec. A process without the codec
    (a reaper, the command line) sees only the bytes, and they are sufficient for its work.
    """

    def encode(self, value: Any, /) -> bytes:
        """Return the value as bytes. Any exception means that it cannot be encoded."""
        ...

    def decode(self, data: bytes, /) -> Any:
        """Return the plain data. Any exception means that this codec did not encode the bytes."""
        ...


class JsonCodec:
    """JSON by msgspec, with datetimes, UUIDs, enums, dataclasses, TypedDicts and Structs; it never uses pickle."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder()

    def encode(self, value: Any, /) -> bytes:
        """Return the value as JSON."""
        return self._encoder.encode(value)

    def decode(self, data: bytes, /) -> Any:
        """Return the plain data of the JSON text."""
        return self._decoder.decode(data)
