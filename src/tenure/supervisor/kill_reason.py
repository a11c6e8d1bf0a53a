"""The reason for which a supervisor kills a running child, and the runs that caused it; recovery needs both."""

from typing import Literal

from msgspec import Struct

from tenure.core.events import WorkerHung
from tenure.core.job import Ref

KillCode = Literal["loop_blocked", "timeout", "not_claiming", "leaving"]


class KillReason(Struct, frozen=True):
    """Why a child had to be killed from outside: its event loop or its claim loop hung, or it did not exit in time.

    `loop_blocked`: the event loop was blocked for longer than `max_block`, by the runs named here if they are known.
    `timeout`: the blocked loop could not end the runs named here at their timeout; they have timed out. In both cases
    the other runs of the child are not charged.
    `not_claiming`: the claim loop had no answer although the storage answers. `leaving`: the child was asked to leave
    and still ran after its time limit. In these two cases no run is charged.
    """

    reason: KillCode
    blocked_for: float
    """Seconds that the loop was blocked; for `leaving`, seconds since the child was asked to leave."""
    limit: float
    """The limit that it exceeded, in seconds: `max_block`, the time allowed past a timeout, or the longest wait of a
    claim loop; 0 for `leaving`."""
    causes: tuple[tuple[Ref, int], ...] = ()
    """The runs that blocked the loop, by job and fence; empty if they are unknown: then any run may be the cause."""
    stack: str = ""
    """The stacks of its threads, the latest call first; empty if it did not answer."""

    recorded: bool = False
    """True if the event that the worker hangs is already recorded."""

    def hung(self, owner: str) -> tuple[WorkerHung, ...]:
        """Return the event to record for that worker in addition to its death."""
        if self.recorded or self.reason == "leaving":
            return ()
        return (WorkerHung(owner=owner, blocked_for=self.blocked_for, stack=self.stack),)

    @property
    def charges_no_run(self) -> bool:
        """Return True if no run is to blame for the kill."""
        return self.reason in ("not_claiming", "leaving")

    def __str__(self) -> str:
        if self.reason == "timeout":
            return (
                f"killed by its supervisor: a run was past its timeout, and the loop blocked {self.blocked_for:.1f} s"
            )
        if self.reason == "not_claiming":
            return f"killed by its supervisor: its claim loop had had no answer for {self.blocked_for:.1f} s"
        if self.reason == "leaving":
            return f"killed by its supervisor: it had not stopped {self.blocked_for:.1f} s after the request"
        return f"killed by its supervisor: its event loop was blocked for {self.blocked_for:.1f} s"
