"""What is wrong in a simulated world, where and when: what excuses a stall, and what leaves none."""

from dataclasses import dataclass
from math import inf

EVERYWHERE = "*"
"""The place of a trouble that meets everybody."""


@dataclass(eq=False)
class Trouble:
    """One thing that is wrong, from one virtual second until another; `where` is an owner's id, or everywhere."""

    kind: str
    where: str
    since: float
    until: float = inf


class NetworkFaults:
    """The record of all troubles."""

    def __init__(self) -> None:
        self.all: list[Trouble] = []

    def begin(self, kind: str, where: str, at: float, until: float = inf) -> Trouble:
        """Note that something goes wrong, until it is ended if no end is known."""
        trouble = Trouble(kind, where, at, until)
        self.all.append(trouble)
        return trouble

    def between(self, since: float, until: float) -> list[Trouble]:
        """Return the troubles of any part of that time."""
        return [trouble for trouble in self.all if trouble.since <= until and trouble.until >= since]

    @property
    def steps(self) -> list[Trouble]:
        """The times that the storage's clock was set forward or back."""
        return [trouble for trouble in self.all if trouble.kind.startswith("step")]

    def counts(self) -> dict[str, int]:
        """Return how often each kind of trouble came."""
        counts: dict[str, int] = {}
        for trouble in self.all:
            counts[trouble.kind] = counts.get(trouble.kind, 0) + 1
        return counts
