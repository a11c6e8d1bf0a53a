"""Checks the arguments of callers. Each error names the field, shows the value and gives the remedy."""

from collections.abc import Iterable
from typing import TypeVar, cast

from tenure.core.text import storable
from tenure.errors import UsageError

LARGEST = 2**31 - 1
"""The largest whole number that may be set: every storage can count up to it."""

T = TypeVar("T")


def named(name: object, *, field: str) -> str:
    """Return the name of a queue, task or job.

    Raises:
        UsageError: it is not a text, is empty or over 1 KB, or has characters that no storage can hold.
    """
    if not isinstance(name, str) or not name or len(name.encode(errors="replace")) > 1024 or storable(name) != name:
        raise UsageError(f"{field} = {shown(name)} must be a text of 1 to 1,024 bytes, without NUL or lone surrogates")
    return name


def remark(text: object, *, field: str) -> str | None:
    """Return a person's remark in a form that every storage can hold.

    Raises:
        UsageError: it is neither a text nor None.
    """
    if text is not None and not isinstance(text, str):
        raise UsageError(f"{field} = {shown(text)} must be a text; write it as one, or leave it out")
    return None if text is None else storable(text)


def whole(value: object, *, field: str, least: int, most: int = LARGEST, meaning: str | None = None) -> int:
    """Return a whole number; `meaning` explains the least one.

    Raises:
        UsageError: it is not a whole number, or out of bounds.
    """
    # In Python True is an int, but as a count it is a mistake.
    if isinstance(value, bool) or not isinstance(value, int):
        wanted = f"a whole number, {least:,} or more"
    elif value < least:
        wanted = f"{least:,} or more"
    elif value > most:
        wanted = f"{most:,} or less"
    else:
        return value
    raise UsageError(f"{field} = {shown(value)} must be {wanted}{f'; {meaning}' if meaning else ''}")


def flag(value: object, *, field: str) -> bool | None:
    """Return True, False, or None if the flag is not set.

    Raises:
        UsageError: it is another value; a text such as "no" would count as true.
    """
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{field} = {shown(value)} must be True or False")
    return value


def one_of(value: T, words: Iterable[T], *, field: str) -> T:
    """Return a value that is one of the known words, or None if it is not set.

    Raises:
        UsageError: the word is unknown.
    """
    known = tuple(words)
    if value is not None and value not in known:
        raise UsageError(f"{field} = {shown(value)} is unknown; use one of {', '.join(map(repr, known))}")
    return value


def of_kind(value: object, kind: type[T], *, field: str, remedy: str) -> T:
    """Return an object of this class.

    Raises:
        UsageError: it is an instance of another class.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{field} = {shown(value)} must be a {kind.__name__}; {remedy}")
    return value


def several(values: object, *, field: str) -> tuple[object, ...]:
    """Return the items of a list, tuple or other iterable.

    Raises:
        UsageError: it is a single text, whose letters would become items, or is not iterable.
    """
    value_text = shown(values)
    if isinstance(values, str | bytes):
        raise UsageError(f"{field} = {value_text} is a single text, not several; write {field}=[{value_text}]")
    try:
        items = iter(cast(Iterable[object], values))
    except TypeError:
        raise UsageError(f'{field} = {value_text} must be several, in a list; write {field}=["one", "two"]') from None
    return tuple(items)


def no_others(options: Iterable[str], known: Iterable[str]) -> None:
    """Check that every option exists.

    Raises:
        UsageError: an option does not exist.
    """
    known = tuple(known)
    for name in options:
        if name not in known:
            raise UsageError(f"option {name!r} is unknown; known are {', '.join(known)}")


def shown(value: object) -> str:
    """Return a value as a message shows it: short, and safe even if its `repr` fails."""
    try:
        # A subclass of str may override `len` and slicing.
        text = str.__getitem__(repr(value), slice(61))
    except BaseException:
        return f"<{type.__dict__['__name__'].__get__(type(value))}>"
    return text if len(text) <= 60 else f"{text[:57]}..."
