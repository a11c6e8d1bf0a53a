"""Reads the cursors that storages number from 0, and those that name an age; refuses what no storage has given out."""

LARGEST = 2**63 - 1
"""The largest number that every storage can compare with."""


def numbers_of(cursor: str) -> tuple[int, ...]:
    """Return the number of the last event that lies before a cursor in each partition, 0 for one that is not known."""
    return tuple(int(word) if word.isascii() and word.isdecimal() else 0 for word in cursor.split("."))


def restarted(cursor: str, place: int) -> str:
    """Return a cursor that begins again at the start of one partition's log."""
    words = cursor.split(".")
    if place < len(words):
        words[place] = "0"
    return ".".join(words)


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
