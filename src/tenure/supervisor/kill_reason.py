"""Why a supervisor kills a child that lives, and for whose fault: what its burial must know beside its death."""

from typing import Literal

from msgspec import Struct

from tenure.core.events import WorkerHung
from tenure.core.job import Ref

Verdict = Literal["loop_blocked", "timeout", "not_claiming", "leaving"]


class KillReason(Struct, frozen=True):
    """A child's event loop did not turn, or its claim loop did not, and nothing within it could help; or it stayed.

    `loop_blocked`: for longer than `max_block`, by the runs named here, if anybody knows by which. `timeout`: so that
    these could not be ended when their time was over; they have timed out. Either way their neighbours are innocent.
    `not_claiming`: its claim loop had no answer although the storage gives some. `leaving`: it was told to leave, and
    had not left in all the time that it was given. These two are charged to no run.
    """

    reason: Verdict
    blocked_for: float
    """Seconds; of one that had to leave, since it was told."""
    limit: float
    """What it was given, in seconds: `max_block`, what a run may be past its timeout, what a claim loop may wait; 0 for
    one that had to leave."""
    culprits: tuple[tuple[Ref, int], ...] = ()
    """The runs that blocked it, by job and fence; empty where nobody knows, and all may have."""
    stack: str = ""
    """Where its threads were, the latest call first; empty where it did not say."""

    recorded: bool = False
    """Whether it is on record already that the worker hangs."""

    def hung(self, owner: str) -> tuple[WorkerHung, ...]:
        """Return what is to be recorded of that worker beside its death."""
        if self.recorded or self.reason == "leaving":
            return ()
        return (WorkerHung(owner=owner, blocked_for=self.blocked_for, stack=self.stack),)

    @property
    def blames_none(self) -> bool:
        """Whether it is for no run's fault that the child is killed."""
        return self.reason in ("not_claiming", "leaving")

    def __str__(self) -> str:
        if self.reason == "timeout":
            return (
                f"killed by its supervisor: a run was past its timeout, and the loop blocked {self.blocked_for:.1f} s"
            )
        if self.reason == "not_claiming":
            return f"killed by its supervisor: its claim loop had had no answer for {self.blocked_for:.1f} s"
        if self.reason == "leaving":
            return f"killed by its supervisor: it was told to leave, and had not left {self.blocked_for:.1f} s later"
        return f"killed by its supervisor: its event loop was blocked for {self.blocked_for:.1f} s"
