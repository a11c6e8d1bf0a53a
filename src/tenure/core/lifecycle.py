"""Which state may follow which. The drawing in docs/state-machine.md is held equal to this table by a test."""

from enum import StrEnum


class State(StrEnum):
    """Where a job stands."""

    DELAYED = "delayed"
    WAITING = "waiting"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED})
"""States that nothing but a redrive, by an operator or by a rule, leads out of."""

REDRIVABLE = TERMINAL - {State.COMPLETED}
"""States a redrive starts from."""

TRANSITIONS: frozenset[tuple[State | None, State]] = frozenset(
    {
        (None, State.DELAYED),
        (None, State.WAITING),
        (State.DELAYED, State.WAITING),
        (State.DELAYED, State.CANCELLED),
        (State.DELAYED, State.EXPIRED),
        (State.WAITING, State.DELAYED),
        (State.WAITING, State.ACTIVE),
        (State.WAITING, State.CANCELLED),
        (State.WAITING, State.EXPIRED),
        (State.ACTIVE, State.ACTIVE),
        (State.ACTIVE, State.COMPLETED),
        (State.ACTIVE, State.FAILED),
        (State.ACTIVE, State.CANCELLED),
        (State.ACTIVE, State.DELAYED),
        (State.ACTIVE, State.WAITING),
        (State.FAILED, State.WAITING),
        (State.FAILED, State.DELAYED),
        (State.CANCELLED, State.WAITING),
        (State.CANCELLED, State.DELAYED),
        (State.EXPIRED, State.WAITING),
        (State.EXPIRED, State.DELAYED),
    }
)
"""Every move a job can make; None is the nothing it comes from, and active to active is a renewal or a reclaim."""
