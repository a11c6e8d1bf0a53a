"""Sizes as users write them."""

from typing import Any

import pytest

from tenure import UsageError
from tenure.core.size import size


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        (7, 7),
        ("500MB", 500_000_000),
        ("1.5 GiB", 3 * 2**29),
        ("64kib", 65_536),
        ("12", 12),
        ("3B", 3),
        ("2TB", 2 * 10**12),
    ],
)
def test_a_size_is_parsed(text: int | str, bytes_: int) -> None:
    assert size(text, field="max_memory") == bytes_


@pytest.mark.parametrize("text", ["", "MB", "-5MB", "5 miles", "1e9", "0", "0.1B", True, None, "5M", "inf", "9" * 40])
def test_an_invalid_size_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="max_memory"):
        size(text, field="max_memory")
