"""Parses the cursors of storages: event numbers, and ages. Rejects a cursor that no storage has returned."""

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


def recorded_within(age: int) -> str:
    """Return the cursor before all events of the last `age` microseconds."""
    return f"{_AGE}{age}"


def age_of(cursor: str | None) -> int | None:
    """Return the age in a cursor made by `recorded_within`; None for any other cursor."""
    return place_of(cursor[1:]) if cursor and cursor[0] == _AGE and len(cursor) > 1 else None


_AGE = "~"
