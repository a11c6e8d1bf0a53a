"""The states of a job and the allowed transitions. A test keeps the drawing in docs/state-machine.md equal to them."""

from enum import StrEnum


class State(StrEnum):
    """The state of a job."""

    DELAYED = "delayed"
    WAITING = "waiting"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED})
"""States that only a redrive, by an operator or by a rule, can leave."""

REDRIVABLE = TERMINAL - {State.COMPLETED}
"""States from which a job can be redriven."""

TRANSITIONS: frozenset[tuple[State | None, State]] = frozenset(
    {
        (None, State.DELAYED),
        (None, State.WAITING),
        (None, State.SUSPENDED),
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
        (State.ACTIVE, State.SUSPENDED),
        (State.SUSPENDED, State.WAITING),
        (State.SUSPENDED, State.COMPLETED),
        (State.SUSPENDED, State.FAILED),
        (State.SUSPENDED, State.CANCELLED),
        (State.FAILED, State.WAITING),
        (State.FAILED, State.DELAYED),
        (State.FAILED, State.SUSPENDED),
        (State.CANCELLED, State.WAITING),
        (State.CANCELLED, State.DELAYED),
        (State.CANCELLED, State.SUSPENDED),
        (State.EXPIRED, State.WAITING),
        (State.EXPIRED, State.DELAYED),
        (State.EXPIRED, State.SUSPENDED),
    }
)
"""Every transition of a job. None: the job does not exist yet; active to active is a renewal or a reclaim."""
