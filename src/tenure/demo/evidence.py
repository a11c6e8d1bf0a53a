"""What the demo knows at its end: what the queue tells, and what the handlers and the conductor saw."""

from datetime import timedelta
from typing import Literal

from msgspec import Struct

from tenure.core.duration import micros
from tenure.core.events import AnyEvent
from tenure.core.job import JobDetail, Owner, Ref
from tenure.demo.diary import HandlerLogLine
from tenure.demo.work import Facts
from tenure.options import Timing
from tenure.storage.protocol import SettleVerdict


class HeldRun(Struct, frozen=True):
    """A run that a worker held when it was killed or stopped."""

    job: str
    run: int
    fence: int


class Fault(Struct):
    """Something done to a worker while it held jobs; instants in microseconds of the storage's clock."""

    kind: Literal["kill", "pause"]
    owner: Owner
    led: bool
    at: int
    held: tuple[HeldRun, ...]
    woken_at: int | None = None


class Replay(Struct, frozen=True):
    """A settlement sent once more under a fence that was no longer current, and what the storage said."""

    run: HeldRun
    verdict: SettleVerdict


class DemoBounds(Struct, frozen=True, kw_only=True):
    """Within what a lost worker's jobs must be back, in microseconds.

    `grip`: within what a run that holds the interpreter would have been lost, were it not renewed from outside.
    """

    death: int
    pause: int
    grip: int

    @classmethod
    def of(cls, timing: Timing, *, grip_lease: timedelta) -> "DemoBounds":
        """Return what the timing promises: a second for a death, and a lease, a grace and two sweeps for silence.

        Whoever is silent may have been the leader, too, and then its term is over first.
        """
        return cls(
            death=micros(timedelta(seconds=1)),
            pause=micros(timing.recovery_bound),
            grip=micros(timing.leader_ttl + grip_lease + 2 * timing.sweep),
        )


class DemoEvidence(Struct, kw_only=True):
    """All that the audit goes by.

    `wished`: the file of each job that was enqueued. `expected`: what each file comes to, computed here, one by one.
    `details`: what the storage answers for each job. `found`: every job it lists in our queue. `pieces`: parts of
    lines that a killed handler left in the diary. `kills`: how many were asked for. `hung`, `gripped`: the jobs whose
    handlers were to hang until their worker was killed, and to hold the interpreter; None if it did not come to that.
    """

    wished: dict[str, str]
    expected: dict[str, Facts]
    details: dict[str, JobDetail | None]
    found: list[Ref]
    lines: list[HandlerLogLine]
    pieces: int = 0
    events: list[AnyEvent]
    faults: list[Fault]
    kills: int
    hung: str | None = None
    gripped: str | None = None
    replay: Replay | None = None
    bounds: DemoBounds
