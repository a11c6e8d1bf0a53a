"""Turns any raised object into text and into a recorded error. No function here raises, even if its methods do.

A class decides what `str`, `repr`, `isinstance` and attribute access do with its instances, and each of these may raise
a BaseException. So the class is found by `type`, attributes of exceptions are read by the descriptors of BaseException,
and calls into user code are guarded against every exception.
"""

import logging
import re
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, cast

from tenure.core.job import RecordedError
from tenure.core.text import storable

TRACEBACK_KEPT = 16_384
MESSAGE_KEPT = 4_096
"""Characters that are kept of a traceback (its end), and of a message (its beginning)."""

CHAIN = 16
"""Exceptions of a chain that are shown where the standard library cannot show it."""

REDACTED = "[redacted]"

_NAME = r"(?: passw | passphrase | secret | token | api_?key | credential | authori[sz]ation | cookie )"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE | re.VERBOSE)
# It begins with the word: a search for any characters before it takes time that grows with the square of the text.
_SECRET = re.compile(
    rf"""( {_NAME} \w* ["']? \s* [:=] \s* )
    (?: b? ' (?: [^'\\] | \\. )* '? | b? " (?: [^"\\] | \\. )* "? | \( [^)]* | \[ [^\]]* | \{{ [^}}]* | [^,)}}\]]+ )""",
    re.IGNORECASE | re.VERBOSE,
)
"""A name of something secret in a `repr`, and the value after it."""


def recorded(error: BaseException) -> RecordedError:
    """Return an exception as it is recorded with its job."""
    return RecordedError(class_name(error), text_of(error), trace_of(error))


def is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return True if the exception is of one of these classes; `isinstance` would ask the exception itself."""
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
    """Return the `repr` of a value, cut to so many characters, without what stands under a name such as `password`."""
    try:
        # What is cut away need not be searched; a value that the cut falls into is redacted as well.
        return _SECRET.sub(rf"\1{REDACTED}", _kept(repr(_redacted(value, {})), 2 * most))[:most]
    except BaseException as failure:
        return f"<the repr of this {class_name(value)} cannot be made: {class_name(failure)}>"


def _redacted(value: Any, made: dict[int, Any], depth: int = 8) -> Any:
    """Return a value whose dicts show no secrets; what else has some is found in its text.

    `made`: the copies so far, by the ids of what they are copies of. So a value that holds itself is copied once.
    """
    kind = cast(Any, type(value))
    if not depth or kind not in (dict, list, tuple):
        return value
    if id(value) in made:
        return made[id(value)]
    copied: Any
    if kind is dict:
        copied = made[id(value)] = {}
        for key, inner in value.items():
            secret = type(key) is str and _SECRET_NAME.search(key)
            copied[key] = REDACTED if secret else _redacted(inner, made, depth - 1)
    elif kind is list:
        copied = made[id(value)] = []
        copied.extend([_redacted(inner, made, depth - 1) for inner in value])
    else:
        # One that holds itself holds a list or dict on the way.
        copied = made[id(value)] = tuple([_redacted(inner, made, depth - 1) for inner in value])
    return copied


def trace_of(error: BaseException) -> str:
    """Return the traceback of an exception, with those that it was raised from."""
    try:
        text = "".join(traceback.format_exception(type(error), error, traceback_of(error)))
    except BaseException:
        text = "\n".join(reversed([*map(_plain_trace, _chain(error))]))
    return _kept(text, TRACEBACK_KEPT, end=True)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback that the interpreter has kept with an exception."""
    return cast("TracebackType | None", _own(error, "__traceback__"))


def log_failure(logger: logging.Logger, level: int, message: str, *args: object, error: BaseException) -> None:
    """Log an exception with its traceback. One that cannot be formatted, or encoded, is logged as text."""
    if _is_loggable(error):
        logger.log(level, message, *args, exc_info=(type(error), error, traceback_of(error)))
    else:
        logger.log(level, f"{message}\n%s", *args, trace_of(error))


def _is_loggable(error: BaseException) -> bool:
    try:
        "".join(traceback.format_exception(type(error), error, traceback_of(error))).encode()
    except BaseException:
        return False
    return True


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from, the last one first."""
    one: BaseException | None = error
    for _ in range(CHAIN):
        if one is None:
            return
        yield one
        cause = _own(one, "__cause__")
        one = cause if cause is not None or _own(one, "__suppress_context__") else _own(one, "__context__")


def _plain_trace(error: BaseException) -> str:
    try:
        frames = "".join(traceback.format_tb(traceback_of(error)))
    except BaseException:
        frames = ""
    return f"Traceback (most recent call last):\n{frames}{class_name(error)}: {text_of(error)}\n"


def _own(error: BaseException, name: str) -> Any:
    """Return what the interpreter has stored under that name, past any attribute of the exception's class."""
    return BaseException.__dict__[name].__get__(error)


def _class_attribute(kind: type, name: str) -> object:
    return type.__dict__[name].__get__(kind)


def _kept(text: str, most: int, *, end: bool = False) -> str:
    """Return a part of a text, as a plain `str` that every storage can hold; a subclass may have methods of its own."""
    part = slice(-most, None) if end else slice(most)
    return storable(str.__getitem__(text, part))
