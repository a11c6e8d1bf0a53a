"""What one run of a job came to: a fact, before anybody has decided what follows from it."""

from typing import Literal

from msgspec import Struct

from tenure.core.job import RecordedError, StallReason

ReleaseReason = Literal[
    "shutdown",
    "prefetch",
    "snoozed",
    "unreachable",
    "unknown_task",
    "newer_payload",
    "worker_failed",
    "process_died",
    "loop_blocked",
]


StopCode = Literal[
    "no_progress", "lease_expired", "timeout", "cancelled", "unreachable", "shutdown", "worker_failed", "ended"
]
"""Why an exclusive run was stopped whose handler goes on: what it comes to when that, or its process, ends.

`ended`: nothing stopped it. Its call ended, as by a timeout of its middleware, and its thread goes on.
"""


class Returned(Struct, frozen=True, tag=True):
    """The handler returned; its result, encoded."""

    result: bytes


class Raised(Struct, frozen=True, tag=True):
    """The handler raised. `final`: its policy says never again; `after`: it named its own delay.

    `shortage`: the error says that the machine or the process ran out of descriptors, threads or memory. `alone`: the
    run harmed the other ones of its process, so the next one gets a process to itself.
    """

    error: RecordedError
    final: bool = False
    after: int | None = None
    shortage: bool = False
    alone: bool = False


class TimedOut(Struct, frozen=True, tag=True):
    """The run passed its `timeout`, or the job its `deadline` (then `final`)."""

    error: RecordedError
    final: bool = False


class Rejected(Struct, frozen=True, tag=True):
    """The handler said: never again."""

    error: RecordedError


class Unreadable(Struct, frozen=True, tag=True):
    """Arguments that cannot be decoded, or a result that cannot be encoded: a further run would change nothing."""

    error: RecordedError


UnknownReason = Literal["unknown_task", "newer_payload"]


class Unknown(Struct, frozen=True, tag=True):
    """This worker does not know the task, or not this version of its payload; another one may."""

    reason: UnknownReason = "unknown_task"


class Snoozed(Struct, frozen=True, tag=True):
    """The handler asked to be run later."""

    delay: int


class Interrupted(Struct, frozen=True, tag=True):
    """The run was stopped, or never begun, for no fault of its own.

    `begun`: the handler may have been called. `stopping`: the worker had been asked to stop, or was being recycled.
    """

    reason: Literal["shutdown", "prefetch", "unreachable", "worker_failed"]
    delay: int = 0
    begun: bool = False
    stopping: bool = True


class Cancelled(Struct, frozen=True, tag=True):
    """The run stopped because somebody had asked for it, or its handler did."""

    reason: str | None = None
    by: str | None = None


class Stalled(Struct, frozen=True, tag=True):
    """The run's holder fell silent or died; told by a reaper or a supervisor, never by the run itself.

    `blameless`: its process was ended by another run for certain, so this one is not charged for it. `begun`: False if
    it is known that its handler was never called. `delay`: after how many microseconds the job may run again.
    """

    reason: StallReason
    silent_for: int = 0
    owner: str = ""
    detail: str | None = None
    blameless: bool = False
    begun: bool = True
    delay: int = 0


Outcome = Returned | Raised | TimedOut | Rejected | Unreadable | Unknown | Snoozed | Interrupted | Cancelled | Stalled
