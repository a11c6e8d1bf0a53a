"""How long the runs of a task usually take, and which of them go on far beyond that."""

from collections.abc import Sequence

SAMPLE = 50
"""So many of the runs that completed of late tell what is usual."""

FEW = 10
"""With fewer than these nobody can say what is usual."""

FAR = 10
"""So many times as long as usual is far beyond it."""

SHORT = 60_000_000
"""What has not yet run for so many microseconds is remarkable to nobody."""


def usual(lengths: Sequence[int]) -> int | None:
    """Return what nineteen in twenty of these runs did not pass; None if they are too few to tell."""
    if len(lengths) < FEW:
        return None
    return sorted(lengths)[round((len(lengths) - 1) * 0.95)]


def is_far_beyond(ran: int, usually: int | None) -> bool:
    """Say whether a run that has gone on for so long should be looked at; durations in microseconds."""
    return usually is not None and ran >= SHORT and ran > FAR * usually
