"""The evidence at the end of the demo: the queue's records, and those of the handlers and the conductor."""

from datetime import timedelta
from typing import Literal

from msgspec import Struct

from tenure.core.duration import micros
from tenure.core.events import AnyEvent
from tenure.core.job import JobDetail, Owner, Ref
from tenure.options import Timing
from tenure.storage.protocol import SettleVerdict
from tenure_testing.demo.handler_log import HandlerLogLine
from tenure_testing.demo.work import Facts


class HeldRun(Struct, frozen=True):
    """A run that a worker held when it was killed or stopped."""

    job: str
    run: int
    fence: int


class Fault(Struct):
    """A fault that hit a worker while it held jobs. Instants are microseconds of the storage's clock."""

    kind: Literal["kill", "pause"]
    owner: Owner
    led: bool
    at: int
    held: tuple[HeldRun, ...]
    woken_at: int | None = None


class Replay(Struct, frozen=True):
    """A settlement that was sent again under an outdated fence, and the storage's verdict."""

    run: HeldRun
    verdict: SettleVerdict


class DemoBounds(Struct, frozen=True, kw_only=True):
    """The bounds within which the jobs of a lost worker must be recovered, in microseconds.

    `gil_holding`: the time within which a run that holds the interpreter is lost without an external renewal.
    """

    death: int
    pause: int
    gil_holding: int

    @classmethod
    def of(cls, timing: Timing, *, gil_lease: timedelta) -> "DemoBounds":
        """Return the bounds of a timing: a second for a death; a lease, a grace and two sweeps for silence.

        A silent worker may have been the leader. Then its term must end first.
        """
        return cls(
            death=micros(timedelta(seconds=1)),
            pause=micros(timing.recovery_bound),
            gil_holding=micros(timing.leader_ttl + gil_lease + 2 * timing.sweep),
        )


class DemoEvidence(Struct, kw_only=True):
    """The complete input of the audit.

    `enqueued`: the file of each enqueued job. `expected`: the facts of each file, computed again in this process.
    `details`: the storage's answer for each job. `found`: every job that the storage lists in the demo's queue.
    `pieces`: incomplete lines that killed handlers left in their log file. `kills`: how many kills were requested.
    `hung`, `gil_holder`: the job whose handler hangs until its worker is killed, and the job whose handler holds the
    interpreter; None if it was not enqueued.
    """

    enqueued: dict[str, str]
    expected: dict[str, Facts]
    details: dict[str, JobDetail | None]
    found: list[Ref]
    lines: list[HandlerLogLine]
    pieces: int = 0
    events: list[AnyEvent]
    faults: list[Fault]
    kills: int
    hung: str | None = None
    gil_holder: str | None = None
    replay: Replay | None = None
    bounds: DemoBounds
