"""Turns any raised object into text and into a recorded error; no function here raises, even if its methods do.

A class defines `str`, `repr`, `isinstance` and attribute access of its instances, and each of these may raise a
BaseException. So we find the class by `type`, read attributes of exceptions by the descriptors of BaseException, and
guard calls into user code against every exception.
"""

import asyncio
import contextlib
import functools
import logging
import os
import re
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, cast

from tenure.core.job import RecordedError
from tenure.core.text import storable

TRACEBACK_KEPT = 16_384
MESSAGE_KEPT = 4_096
"""How many characters are kept of a traceback (its end) and of a message (its beginning)."""

CHAIN = 16
"""How many exceptions of a chain are shown if the standard library cannot format it."""

REDACTED = "[redacted]"

_CALLERS = (
    os.path.join(os.path.dirname(os.path.abspath(__file__)), ""),
    contextlib.__file__,
    functools.__file__,
    os.path.join(os.path.dirname(asyncio.__file__), ""),
)
"""The files of Tenure, and those of the standard library through which Tenure calls the user's code."""

_NAME = r"(?: passw | passphrase | secret | token | api_?key | credential | authori[sz]ation | cookie )"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE | re.VERBOSE)
# The pattern begins with the name: with any characters before it, a search would take quadratic time.
_SECRET = re.compile(
    rf"""( {_NAME} \w* ["']? \s* [:=] \s* )
    (?: b? ' (?: [^'\\] | \\. )* '? | b? " (?: [^"\\] | \\. )* "? | \( [^)]* | \[ [^\]]* | \{{ [^}}]* | [^,)}}\]]+ )""",
    re.IGNORECASE | re.VERBOSE,
)
"""The name of a secret in a `repr`, and the value after it."""


def recorded(error: BaseException) -> RecordedError:
    """Return an exception in the form that is recorded with its job. Its traceback begins in the user's code."""
    return RecordedError(class_name(error), text_of(error), trace_of(error, users_part(traceback_of(error))))


class RecordedException(Exception):
    """An exception of which only its record is known, such as one of another process; for `exc_info`."""

    def __init__(self, error: RecordedError) -> None:
        super().__init__(f"{error.type}: {error.message}")
        if error.traceback:
            self.add_note(error.traceback)


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of Tenure that called the user's code; all of it if no other code ran."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_CALLERS):
        rest = rest.tb_next
    return rest or trace


def is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return True if the exception has one of these classes. `isinstance` would run code of the exception."""
    return issubclass(type(error), kinds)


def class_name(value: object) -> str:
    """Return the qualified name of the value's class, which a metaclass cannot change."""
    return _kept(cast(str, _class_attribute(type(value), "__qualname__")), 256)


def text_of(error: BaseException) -> str:
    """Return the message of an exception."""
    try:
        return _kept(str(error), MESSAGE_KEPT)
    except BaseException as failure:
        return f"<the text of this {class_name(error)} cannot be made: {class_name(failure)}>"


def redacted_repr(value: object, most: int) -> str:
    """Return the `repr` of a value, cut to `most` characters, without the values of names such as `password`."""
    try:
        # Search only the part that is kept, with a margin; a value that the cut divides is redacted as well.
        return _SECRET.sub(rf"\1{REDACTED}", _kept(repr(_redacted(value, {})), 2 * most))[:most]
    except BaseException as failure:
        return f"<the repr of this {class_name(value)} cannot be made: {class_name(failure)}>"


def _redacted(value: Any, copies: dict[int, Any], depth: int = 8) -> Any:
    """Return a copy of a value without the secrets in its dicts; secrets of other objects are found in its text.

    `copies`: the copies so far, by the ids of the originals, so that a value that contains itself is copied once.
    """
    kind = cast(Any, type(value))
    if not depth or kind not in (dict, list, tuple):
        return value
    if id(value) in copies:
        return copies[id(value)]
    copied: Any
    if kind is dict:
        copied = copies[id(value)] = {}
        for key, inner in value.items():
            secret = type(key) is str and _SECRET_NAME.search(key)
            copied[key] = REDACTED if secret else _redacted(inner, copies, depth - 1)
    elif kind is list:
        copied = copies[id(value)] = []
        copied.extend([_redacted(inner, copies, depth - 1) for inner in value])
    else:
        # A tuple can contain itself only through a list or a dict.
        copied = copies[id(value)] = tuple([_redacted(inner, copies, depth - 1) for inner in value])
    return copied


def trace_of(error: BaseException, trace: TracebackType | None = None) -> str:
    """Return the traceback of an exception, with those of its causes, as text. `trace`: its part to be shown."""
    try:
        text = "".join(traceback.format_exception(type(error), error, trace or traceback_of(error)))
    except BaseException:
        text = "\n".join(reversed([*map(_plain_trace, _chain(error))]))
    return _kept(text, TRACEBACK_KEPT, end=True)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback object of an exception."""
    return cast("TracebackType | None", _own(error, "__traceback__"))


def log_failure(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    error: BaseException,
    trace: TracebackType | None = None,
) -> None:
    """Log an exception with its traceback; as text, if the logging module could not format or encode it.

    `trace`: the part of its traceback to be logged.
    """
    if not logger.isEnabledFor(level):
        return
    if _is_loggable(error):
        logger.log(level, message, *args, exc_info=(type(error), error, trace or traceback_of(error)))
    else:
        logger.log(level, f"{message}\n%s", *args, trace_of(error))


def _is_loggable(error: BaseException) -> bool:
    try:
        "".join(traceback.format_exception(type(error), error, traceback_of(error))).encode()
    except BaseException:
        return False
    return True


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, the latest exception first."""
    current: BaseException | None = error
    for _ in range(CHAIN):
        if current is None:
            return
        yield current
        cause = _own(current, "__cause__")
        current = cause if cause is not None or _own(current, "__suppress_context__") else _own(current, "__context__")


def _plain_trace(error: BaseException) -> str:
    try:
        frames = "".join(traceback.format_tb(traceback_of(error)))
    except BaseException:
        frames = ""
    return f"Traceback (most recent call last):\n{frames}{class_name(error)}: {text_of(error)}\n"


def _own(error: BaseException, name: str) -> Any:
    """Return the interpreter's own attribute of that name, even if the exception's class overrides it."""
    return BaseException.__dict__[name].__get__(error)


def _class_attribute(kind: type, name: str) -> object:
    return type.__dict__[name].__get__(kind)


def _kept(text: str, most: int, *, end: bool = False) -> str:
    """Return a part of a text, as a plain `str` that every storage can hold; a `str` subclass may override methods."""
    part = slice(-most, None) if end else slice(most)
    return storable(str.__getitem__(text, part))
