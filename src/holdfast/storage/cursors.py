"""Reads the cursors that storages number from 0, and refuses what none of them has given out."""

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
