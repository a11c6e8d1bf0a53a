"""The faults of a simulated world: what is wrong, where and when. Faults can excuse a stall."""

from dataclasses import dataclass
from math import inf

EVERYWHERE = "*"
"""The place of a fault that affects all nodes."""


@dataclass(eq=False)
class SimulatedFault:
    """One fault, from one virtual second until another. `where` is an owner's id, or everywhere."""

    kind: str
    where: str
    since: float
    until: float = inf


class FaultLog:
    """The record of all faults."""

    def __init__(self) -> None:
        self.all: list[SimulatedFault] = []

    def begin(self, kind: str, where: str, at: float, until: float = inf) -> SimulatedFault:
        """Record a fault. Without `until` it lasts until its end is set."""
        trouble = SimulatedFault(kind, where, at, until)
        self.all.append(trouble)
        return trouble

    def between(self, since: float, until: float) -> list[SimulatedFault]:
        """Return the faults that overlap this period."""
        return [trouble for trouble in self.all if trouble.since <= until and trouble.until >= since]

    @property
    def steps(self) -> list[SimulatedFault]:
        """The steps of the storage's clock, forward or back."""
        return [trouble for trouble in self.all if trouble.kind.startswith("step")]

    def counts(self) -> dict[str, int]:
        """Return how often each kind of fault occurred."""
        counts: dict[str, int] = {}
        for trouble in self.all:
            counts[trouble.kind] = counts.get(trouble.kind, 0) + 1
        return counts
