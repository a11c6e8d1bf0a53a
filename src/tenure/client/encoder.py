"""Encodes the arguments of calls, and makes the ids of their jobs."""

import logging
from collections.abc import Callable
from typing import Any

from tenure.client.codec import Codec
from tenure.client.signature import Signature

PAYLOAD_WARNED = 32 * 1024
"""Size of encoded arguments, in bytes, from which on a warning is logged, once per task."""


class CallEncoder:
    """Encodes the calls of one app's tasks."""

    def __init__(self, codec: Codec, *, new_id: Callable[[], str], logger: logging.Logger) -> None:
        self.codec = codec
        self.new_id = new_id
        """Returns a fresh job id."""
        self._logger = logger
        self._warned: set[str] = set()

    def encode(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return a call's arguments as bytes, checked against the signature.

        Raises:
            UsageError, PayloadTooLargeError: see `Signature.encode`.
        """
        payload = signature.encode(self.codec, args, kwargs)
        if len(payload) >= PAYLOAD_WARNED and signature.task not in self._warned:
            self._warned.add(signature.task)
            self._logger.warning(
                "task %r: arguments of %d bytes; large arguments slow the queue down; store the data elsewhere and "
                "pass a reference",
                signature.task,
                len(payload),
            )
        return payload

    def digest(self, signature: Signature, payload: bytes) -> str:
        """Return a digest of a call's encoded arguments; equal arguments have equal digests."""
        return signature.digest(self.codec, payload)
