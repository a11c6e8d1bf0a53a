"""The typical duration of a task's runs, and which runs exceed it by far."""

from collections.abc import Sequence

SAMPLE = 50
"""How many of the latest completed runs the typical duration is computed from."""

FEW = 10
"""With fewer runs than this a task has no typical duration."""

FAR = 10
"""A run this many times as long as the typical duration is reported."""

SHORT = 60_000_000
"""Runs shorter than this are never reported as slow, in microseconds."""


def typical_duration(lengths: Sequence[int]) -> int | None:
    """Return the 95th percentile of these durations; None if there are too few."""
    if len(lengths) < FEW:
        return None
    return sorted(lengths)[round((len(lengths) - 1) * 0.95)]


def is_unusually_long(ran: int, usually: int | None) -> bool:
    """Return True if a run that has lasted this long should be reported; durations in microseconds."""
    return usually is not None and ran >= SHORT and ran > FAR * usually
