"""Small JSON documents of a handler: an object as its progress, and the data of its job."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tenure.core.check import shown

PROGRESS_LIMIT = 4_096
DATA_LIMIT = 65_536
"""The maximum size of a progress object and of a job's data, in bytes of JSON."""

Progress = float | dict[str, Any]
"""A handler's progress: a number, or a small object."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class NotADocumentError(ValueError):
    """A value is not a document: not an object with string keys, or JSON would change a value in it."""


def encode_document(values: Mapping[str, Any]) -> bytes:
    """Return a document as JSON.

    Raises:
        NotADocumentError: its keys are not strings, or JSON cannot hold a value unchanged.
    """
    if not all(type(name) is str for name in values):
        raise NotADocumentError("its keys must be strings")
    try:
        body = _encode(values)
        if decode_document(body) == values:
            return body
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise NotADocumentError(str(error)) from None
    raise NotADocumentError(f"{_changed(values, decode_document(body))} is not the same after it was stored as JSON")


def decode_document(body: bytes | str) -> dict[str, Any]:
    """Return the values of a document.

    Raises:
        MsgspecError: the text is not a JSON object.
    """
    try:
        return _decode(body)
    except (UnicodeDecodeError, RecursionError) as error:
        # msgspec does not convert these two. Only a program other than Tenure can have stored such a text.
        raise msgspec.DecodeError(str(error)) from None


def read_progress(stored: float | str | None) -> Progress | None:
    """Return progress as it was reported. In storages and messages, an object is JSON text.

    Raises:
        MsgspecError: the text is not a JSON object.
    """
    return stored if stored is None or isinstance(stored, int | float) else decode_document(stored)


def stored_progress(value: Progress | None) -> float | str | None:
    """Return progress as storages and messages hold it."""
    return _encode(value).decode() if isinstance(value, dict) else value


def progress_text(value: Progress) -> str:
    """Return progress as text for a person."""
    return _encode(value).decode() if isinstance(value, dict) else f"{value:g}"


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    name = next((name for name in before if before[name] != after.get(name)), "")
    return f"{name!r} = {shown(before.get(name))}"
