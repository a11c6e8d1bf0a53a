"""The columns of a row of `job`, and the ranges of the numbers in them."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from tenure.core.job import StallTerms

Row = tuple[Any, ...]


class UndecodableRow(tuple[Any, ...]):
    """A row with text that is not UTF-8."""

    __slots__ = ()


class UndecodableText(str):
    """A text of a row that is not UTF-8, with U+FFFD in place of the undecodable bytes."""

    __slots__ = ()


COLUMNS = (
    *("seq", "queue", "id", "task", "state", "headers", "tags", "score", "priority", "boost", "lifo", "fair_key"),
    *("weight", "run_at", "ttl", "expires_at", "timeout", "deadline", "heartbeat_timeout", "keys", "rates"),
    *("merge_key", "merge", "collected", "collected_bytes", "parked_under", "lease", "max_stalls", "start_grace"),
    *("renewed", "pinned", "policy", "fence", "settled_fence", "owner", "heard_at", "lease_until", "suspect_until"),
    *("run_until", "progress_until", "starts", "failures", "stalls", "releases", "cancel_at", "cancel_reason"),
    *(
        "cancel_by",
        "created",
        "started",
        "finished",
        "kept_until",
        "redrive_at",
        "redrives",
        "error",
        "reason",
        "fault",
    ),
    *("progress", "progress_note", "schedule", "tick", "parent", "payload", "result", "quarantined"),
)
"""The columns of `job` that a record is read from, in order."""

LARGE = ("score", "priority", "boost")
COUNTS = (
    *("weight", "collected", "collected_bytes", "lease", "max_stalls", "start_grace", "fence", "settled_fence"),
    *("starts", "failures", "stalls", "releases", "redrives"),
)
NUMBERS = (
    *("run_at", "ttl", "expires_at", "timeout", "deadline", "heartbeat_timeout", "heard_at", "lease_until"),
    *("suspect_until", "run_until", "progress_until", "cancel_at", "created", "started", "finished", "kept_until"),
    *("redrive_at", "tick"),
)
NEUTRAL: dict[str, Any] = {
    "weight": 1,
    "lease": StallTerms().lease,
    "max_stalls": 1,
    "state": "failed",
} | dict.fromkeys(
    ("score", "priority", "boost", "run_at", "created", *(name for name in COUNTS if name not in ("weight", "lease"))),
    0,
)
"""The neutral values that replace unreadable ones in columns that cannot be empty."""

TOO_LARGE = 1 << 58
"""The upper bound of instants, durations, counts and scores. The year 9999 is below it, and two such values can be
added."""
_counts = itemgetter(*map(COLUMNS.index, COUNTS))
_all_numbers = itemgetter(*map(COLUMNS.index, (*LARGE, *COUNTS, *NUMBERS)))


def is_sane(numbers: Iterable[int | None]) -> bool:
    """Return True if a row's numbers are small enough to be used in calculations."""
    least = -TOO_LARGE
    for number in numbers:  # noqa: SIM110 (`all` with a generator takes twice as long, for each lease of each beat)
        if number and not least < number < TOO_LARGE:
            return False
    return True


def is_sane_row(row: Row) -> bool:
    """Return True if all texts of a row of `job` are decodable and all its numbers are in range."""
    if type(row) is UndecodableRow:
        return False
    counts: tuple[int, ...] = _counts(row)
    numbers: list[int] = list(filter(None, _all_numbers(row)))
    return min(counts) >= 0 and counts[0] > 0 and max(numbers) < TOO_LARGE and min(numbers) > -TOO_LARGE
