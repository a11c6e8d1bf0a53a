"""Records that do not come from the queue: those of handlers, of producers, and of the faults.

All instants here are microseconds of the machine's uptime (`CLOCK_BOOTTIME`), which does not change when a clock is
set.
"""

from typing import Literal

from msgspec import Struct

from tenure.clock import SECOND, Clock
from tenure.core.duration import micros
from tenure.core.events import AnyEvent
from tenure.core.job import JobDetail
from tenure.options import Timing

Effect = Literal["death", "pause", "hold", "outage", "leave", "none"]
"""The effect of a fault:

it kills processes, stops them, keeps them so busy that nothing else runs there, cuts them off from the storage, asks
them to stop, or has no such effect. A process that is kept busy (`hold`) loses no run, because its leases are renewed
from outside.
"""

Mark = Literal["start", "done", "failed", "stopped"]
Answer = Literal["asked", "acked", "refused"]


class HistoryLine(Struct, frozen=True):
    """A record of a handler: that it began, or how it ended. `parent`: the parent of its process."""

    job: str
    run: int
    fence: int
    pid: int
    what: Mark
    at: int
    parent: int = 0


class EnqueuedCall(Struct, frozen=True, omit_defaults=True):
    """A record of a producer: that it is about to enqueue a job with this id, and the answer."""

    job: str
    what: Answer
    at: int
    why: str = ""


class Deed(Struct, kw_only=True):
    """One fault. `pids`: the processes it hits; empty for an outage that hits all. `until`: None while it lasts.

    `where`: the name of what it hits. `alone`: the supervisor of the dead processes is not hit.
    """

    kind: str
    effect: Effect
    where: str
    pids: tuple[int, ...] = ()
    at: int
    until: int | None = None
    alone: bool = False

    def strikes(self, pid: int) -> bool:
        """Return True if the fault hits a process."""
        return pid in self.pids or (self.effect == "outage" and not self.pids)

    def during(self, other: "Deed") -> bool:
        """Return True if another fault overlaps this one."""
        return other.overlaps(self.at, self.at if self.until is None else self.until)

    def overlaps(self, since: int, until: int) -> bool:
        """Return True if the fault overlaps this period. A death or a stop lasts until the process is replaced."""
        return self.at <= until and (self.until is None or self.until >= since)


class Exit(Struct, frozen=True):
    """An exit of a process that the test had not asked for."""

    where: str
    status: int
    began: int
    at: int


class ChaosBounds(Struct, frozen=True, kw_only=True):
    """The bounds of the audit in microseconds, derived from the timing.

    `death`: for a death that its supervisor saw. `silence`: for any other loss. `outage`: in addition to the length of
    an outage, for two renewals or for jobs that a sweep with a lost answer has reclaimed. `reaper`: for each time that
    the leading reaper is hit meanwhile. `leave`: until a worker ends that cannot put back its jobs because the storage
    is unreachable.
    """

    death: int
    silence: int
    outage: int
    reaper: int
    leave: int
    tail: int
    """A pause counts as the cause of a loss if it ended at most this long before the run was taken."""

    @classmethod
    def of(cls, timing: Timing) -> "ChaosBounds":
        """Return the bounds that follow from a timing."""
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
"""Seconds for which a host lets its runs continue after it was asked to stop. Longer runs are put back."""

LEAVING = round((DRAIN + 5) * SECOND)
"""A worker ends within five seconds after its drain, even if the storage is unreachable."""

REAPERS_LEASE = 5 * SECOND
"""How long a reaper holds the jobs that it has reclaimed."""


class ChaosEvidence(Struct, kw_only=True):
    """The complete input of the audit.

    `jobs`: every job that the storage lists. `offset`: the storage's clock minus the uptime. `drift`: the change of
    that offset during the test. `ended`: when the last fault was over. `hosts`: the names of the hosts. `pieces`: parts
    of lines that a killed process left. `complaints`: members that did not stop as they should. `flaws`: the flaws that
    the storage's own check found.
    """

    enqueued_calls: list[EnqueuedCall]
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
