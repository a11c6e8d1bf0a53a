"""Why a supervisor kills a child that lives, and for whose fault: what its burial must know beside its death."""

from typing import Literal

from msgspec import Struct

from holdfast.core.events import WorkerHung
from holdfast.core.job import Ref

Verdict = Literal["loop_blocked", "timeout", "not_claiming"]


class Sentence(Struct, frozen=True):
    """A child's event loop did not turn, or its claim loop did not, and nothing within it could help that.

    `loop_blocked`: for longer than `max_block`, by the runs named here, if anybody knows by which. `timeout`: so that
    these could not be ended when their time was over; they have timed out. Either way their neighbours are innocent.
    `not_claiming`: its claim loop had no answer although the storage gives some; all of its runs are innocent.
    """

    reason: Verdict
    blocked_for: float
    """Seconds."""
    limit: float
    """What it was given, in seconds: `max_block`, what a run may be past its timeout, what a claim loop may wait."""
    culprits: tuple[tuple[Ref, int], ...] = ()
    """The runs that blocked it, by job and fence; empty where nobody knows, and all may have."""
    stack: str = ""
    """Where its threads were, the latest call first; empty where it did not say."""

    recorded: bool = False
    """Whether it is on record already that the worker hangs."""

    def hung(self, owner: str) -> WorkerHung:
        """Return that worker's fate as an event."""
        return WorkerHung(owner=owner, blocked_for=self.blocked_for, stack=self.stack)

    def __str__(self) -> str:
        if self.reason == "timeout":
            return (
                f"killed by its supervisor: a run was past its timeout, and the loop blocked {self.blocked_for:.1f} s"
            )
        if self.reason == "not_claiming":
            return f"killed by its supervisor: its claim loop had had no answer for {self.blocked_for:.1f} s"
        return f"killed by its supervisor: its event loop was blocked for {self.blocked_for:.1f} s"
