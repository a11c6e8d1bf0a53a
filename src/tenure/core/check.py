"""What a caller gave, checked: each refusal names the field, shows the value and tells the remedy."""

from collections.abc import Iterable
from typing import TypeVar, cast

from tenure.core.text import storable
from tenure.errors import UsageError

LARGEST = 2**31 - 1
"""The largest whole number that may be set: every storage can count up to it."""

T = TypeVar("T")


def named(name: object, *, field: str) -> str:
    """Return the name of a queue or task, or of a job.

    Raises:
        UsageError: it is no text, empty, over 1 KB, or has what no storage can hold.
    """
    if not isinstance(name, str) or not name or len(name.encode(errors="replace")) > 1024 or storable(name) != name:
        raise UsageError(f"{field} = {shown(name)} must be a text of 1 to 1,024 bytes, without NUL or lone surrogates")
    return name


def remark(text: object, *, field: str) -> str | None:
    """Return what a person said, as every storage can hold it.

    Raises:
        UsageError: it is neither a text nor None.
    """
    if text is not None and not isinstance(text, str):
        raise UsageError(f"{field} = {shown(text)} must be a text; write it as one, or leave it out")
    return None if text is None else storable(text)


def whole(value: object, *, field: str, least: int, most: int = LARGEST, meaning: str | None = None) -> int:
    """Return a whole number; `meaning` tells what the least one stands for.

    Raises:
        UsageError: it is none, or out of bounds.
    """
    # True is an int to Python, and a slip to whoever counts.
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
    """Return True, False, or None for what is not set.

    Raises:
        UsageError: it is none of them; a text such as "no" would count as true.
    """
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{field} = {shown(value)} must be True or False")
    return value


def one_of(value: T, words: Iterable[T], *, field: str) -> T:
    """Return one of the words that a field knows, or None for what is not set.

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
        UsageError: it is of another.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{field} = {shown(value)} must be a {kind.__name__}; {remedy}")
    return value


def several(values: object, *, field: str) -> tuple[object, ...]:
    """Return the items of a list, tuple or the like.

    Raises:
        UsageError: it is a single text, whose letters would be taken one by one, or cannot be gone through.
    """
    told = shown(values)
    if isinstance(values, str | bytes):
        raise UsageError(f"{field} = {told} is a single text, not several; write {field}=[{told}]")
    try:
        items = iter(cast(Iterable[object], values))
    except TypeError:
        raise UsageError(f'{field} = {told} must be several, in a list; write {field}=["one", "two"]') from None
    return tuple(items)


def no_others(options: Iterable[str], known: Iterable[str]) -> None:
    """Make sure that every option is one that exists.

    Raises:
        UsageError: one does not.
    """
    known = tuple(known)
    for name in options:
        if name not in known:
            raise UsageError(f"option {name!r} is unknown; known are {', '.join(known)}")


def shown(value: object) -> str:
    """Return a value as a message shows it: short, and whatever its `repr` does."""
    try:
        # A subclass of str may have a `len` and a slice of its own.
        text = str.__getitem__(repr(value), slice(61))
    except BaseException:
        return f"<{type.__dict__['__name__'].__get__(type(value))}>"
    return text if len(text) <= 60 else f"{text[:57]}..."
