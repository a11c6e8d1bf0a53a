"""Parses the cursors of storages: event numbers, ages, and due jobs. Rejects a cursor that no storage has returned."""

from base64 import b64decode, b64encode

LARGEST = 2**63 - 1
"""The largest number that every storage can compare."""


def numbers_of(cursor: str) -> tuple[int, ...]:
    """Return a cursor's last event number for each partition, 0 for an unreadable one."""
    return tuple(int(word) if word.isascii() and word.isdecimal() else 0 for word in cursor.split("."))


def set_back(cursor: str, place: int, last: int) -> str:
    """Return a copy of the cursor that is not after event `last` in one partition's log."""
    words = cursor.split(".")
    if place < len(words) and words[place].isdecimal():
        words[place] = str(min(int(words[place]), last))
    return ".".join(words)


def place_of(cursor: str) -> int:
    """Return the number in a cursor.

    Raises:
        ValueError: the cursor is invalid.
    """
    # Check the length first: Python refuses to parse a number with thousands of digits.
    if len(cursor) <= len(str(LARGEST)) and cursor.isascii() and cursor.isdecimal() and int(cursor) <= LARGEST:
        return int(cursor)
    raise ValueError(f"{cursor[:60]!r} is not a cursor of this storage; use one that it has returned")


DuePlace = tuple[int, str, str]
"""The place of a job in the order in which jobs fall due: the instant, then queue and id."""


def due_cursor(place: DuePlace) -> str:
    """Return the cursor after a place."""
    at, queue, id_ = place
    return f"{at}.{b64encode(f'{queue}{_NUL}{id_}'.encode(), b'-_').decode()}"


def due_place(cursor: str | None) -> DuePlace:
    """Return the place in a cursor; without one, the place before all others.

    Raises:
        ValueError: the cursor is invalid.
    """
    if cursor is None:
        return -1, "", ""
    at, _, rest = cursor.partition(".")
    try:
        queue, id_ = b64decode(rest, b"-_", validate=True).decode().split(_NUL)
        return place_of(at), queue, id_
    except ValueError:
        raise ValueError(f"{cursor[:60]!r} is not a cursor of this order; use one that it has returned") from None


def recorded_within(age: int) -> str:
    """Return the cursor before all events of the last `age` microseconds."""
    return f"{_AGE}{age}"


def age_of(cursor: str | None) -> int | None:
    """Return the age in a cursor made by `recorded_within`; None for any other cursor."""
    return place_of(cursor[1:]) if cursor and cursor[0] == _AGE and len(cursor) > 1 else None


_AGE = "~"
_NUL = "\0"
