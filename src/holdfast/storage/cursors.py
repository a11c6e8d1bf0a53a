"""Reads the cursors that storages number from 0, and those that name an age; refuses what no storage has given out."""

LARGEST = 2**63 - 1
"""The largest number that every storage can compare with."""


def place_of(cursor: str) -> int:
    """Return the place that a cursor names.

    Raises:
        ValueError: it names none.
    """
    # The length first: Python reads no number of thousands of digits.
    if len(cursor) <= len(str(LARGEST)) and cursor.isascii() and cursor.isdecimal() and int(cursor) <= LARGEST:
        return int(cursor)
    raise ValueError(f"{cursor[:60]!r} is no cursor of this storage; take one that it has given out")


def recorded_within(age: int) -> str:
    """Return the cursor that stands before everything that was recorded in the last `age` microseconds."""
    return f"{_AGE}{age}"


def age_of(cursor: str | None) -> int | None:
    """Return the age that a cursor of `recorded_within` names; None for any other cursor."""
    return place_of(cursor[1:]) if cursor and cursor[0] == _AGE and len(cursor) > 1 else None


_AGE = "~"
