"""Sizes as people write them: "500MB", "1.5GiB", or a bare number of bytes."""

import re

from tenure.errors import UsageError

Size = int | str

_UNITS = {
    **{"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40},
}


def size(value: Size, *, field: str) -> int:
    """Return a size in bytes.

    Raises:
        UsageError: it is not a size, or not above 0.
    """
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", str(value))
    unit = None if found is None or isinstance(value, bool) else _UNITS.get(found[2].upper())
    if found is None or unit is None:
        raise UsageError(f"{field} = {value!r} is not a size; write a number of bytes, or 500MB, 2GiB")
    if (bytes_ := round(float(found[1]) * unit)) < 1:
        raise UsageError(f"{field} = {value!r} must be 1 byte or more")
    return bytes_
