"""What is noted outside the queue: by handlers, by producers, and by whoever commits the faults.

All instants here are microseconds of the machine's uptime (`CLOCK_BOOTTIME`), which no clock setting moves.
"""

from typing import Literal

from msgspec import Struct

from tenure.clock import SECOND, Clock
from tenure.core.duration import micros
from tenure.core.events import AnyEvent
from tenure.core.job import JobDetail
from tenure.options import Timing

Effect = Literal["death", "pause", "hold", "outage", "leave", "none"]
"""What a deed does: kill processes, stop them, keep them so busy that nothing else goes on there, keep the storage from
them, ask them to leave, or nothing of these. Who is busy loses no run for that: it is renewed from outside."""

Mark = Literal["start", "done", "failed", "stopped"]
Answer = Literal["asked", "acked", "refused"]


class HistoryLine(Struct, frozen=True):
    """What a handler noted: that it began, and how it ended. `parent`: the process that had started its own."""

    job: str
    run: int
    fence: int
    pid: int
    what: Mark
    at: int
    parent: int = 0


class EnqueuedCall(Struct, frozen=True, omit_defaults=True):
    """What a producer noted: that it is about to enqueue a job of this id, and what it was told."""

    job: str
    what: Answer
    at: int
    why: str = ""


class Deed(Struct, kw_only=True):
    """One fault. `pids`: whom it strikes; none for an outage that strikes everybody. `until`: None while it lasts.

    `where`: what was struck, by name. `alone`: the supervisor of those who died is not among the struck.
    """

    kind: str
    effect: Effect
    where: str
    pids: tuple[int, ...] = ()
    at: int
    until: int | None = None
    alone: bool = False

    def strikes(self, pid: int) -> bool:
        """Say whether a process is among the struck."""
        return pid in self.pids or (self.effect == "outage" and not self.pids)

    def during(self, other: "Deed") -> bool:
        """Say whether another deed lies across this one."""
        return other.overlaps(self.at, self.at if self.until is None else self.until)

    def overlaps(self, since: int, until: int) -> bool:
        """Say whether any of it lies between two instants. A death or a leave lasts until its process is replaced."""
        return self.at <= until and (self.until is None or self.until >= since)


class Exit(Struct, frozen=True):
    """A process that ended though nobody had told it to."""

    where: str
    status: int
    began: int
    at: int


class ChaosBounds(Struct, frozen=True, kw_only=True):
    """What the audit allows, in microseconds, as it follows from the timing.

    `death`: a death that its supervisor saw. `silence`: any other loss. `outage`: beyond the length of an outage, two
    beats, or as long as what is lost with the answer to a sweep. `reaper`: for each time that the one who reaps is
    struck meanwhile. `leave`: until a worker that cannot hand
    back what it held, as the storage is out of reach, is gone all the same.
    """

    death: int
    silence: int
    outage: int
    reaper: int
    leave: int
    tail: int
    """A pause that ended no longer than this before its run was taken is why it was taken."""

    @classmethod
    def of(cls, timing: Timing) -> "ChaosBounds":
        """Return what a timing promises."""
        patience = micros(timing.grace + 2 * timing.sweep)
        return cls(
            death=SECOND,
            silence=micros(timing.recovery_bound),
            outage=max(micros(2 * timing.beat), REAPERS_LEASE + patience),
            reaper=REAPERS_LEASE + patience,
            leave=LEAVING,
            tail=patience,
        )


DRAIN = 4.0
"""Seconds that a host lets its runs go on for when it is told to leave; longer ones are handed back."""

LEAVING = round((DRAIN + 5) * SECOND)
"""A worker is gone five seconds after its drain, whatever the storage does."""

REAPERS_LEASE = 5 * SECOND
"""For so long a reaper holds what it has taken."""


class ChaosEvidence(Struct, kw_only=True):
    """All that the audit goes by.

    `jobs`: every job that the storage lists. `offset`: what to take from the storage's clock to get the uptime.
    `drift`: by how much that changed meanwhile. `ended`: when the last fault was over. `hosts`: who works, by name.
    `pieces`: parts of lines that a killed process left. `complaints`: who did not leave as it should. `flaws`: what
    the storage's own check of itself found.
    """

    wishes: list[EnqueuedCall]
    jobs: dict[str, JobDetail]
    lines: list[HistoryLine]
    pieces: int = 0
    events: list[AnyEvent]
    deeds: list[Deed]
    bounds: ChaosBounds
    offset: int
    drift: int = 0
    ended: int
    hosts: tuple[str, ...]
    exits: list[Exit] = []
    complaints: list[str] = []
    flaws: list[str] = []


def uptime(clock: Clock) -> int:
    """Return the machine's uptime in microseconds."""
    return round(clock.uptime() * SECOND)
