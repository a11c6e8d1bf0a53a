"""The outcome of one run: a fact, before the decision about the job."""

from typing import Literal

from msgspec import Struct

from tenure.core.job import RecordedError, StallReason
from tenure.core.waiting import Wait

ReleaseReason = Literal[
    "shutdown",
    "prefetch",
    "snoozed",
    "rate_limited",
    "unreachable",
    "unknown_task",
    "newer_payload",
    "worker_failed",
    "process_died",
    "loop_blocked",
    "suspended",
]


StopCode = Literal[
    "no_progress", "lease_expired", "timeout", "cancelled", "unreachable", "shutdown", "worker_failed", "ended"
]
"""Why an exclusive run was stopped although its handler goes on; its outcome when the handler or its process ends.

`ended`: nothing stopped it. Its call ended, for example by a timeout in its middleware, and its thread goes on.
"""


class Returned(Struct, frozen=True, tag=True):
    """The handler returned. `result` is encoded."""

    result: bytes


class Raised(Struct, frozen=True, tag=True):
    """The handler raised. `final`: the policy rules out a retry; `after`: the error or the task named the delay.

    `shortage`: the error says that the machine or the process ran out of descriptors, threads or memory. `alone`: the
    run harmed the other runs of its process, so the next run gets a process of its own.
    """

    error: RecordedError
    final: bool = False
    after: int | None = None
    shortage: bool = False
    alone: bool = False


class TimedOut(Struct, frozen=True, tag=True):
    """The run passed its `timeout`, or the job its `deadline` (then `final`). `after`: the task named the delay."""

    error: RecordedError
    final: bool = False
    after: int | None = None


class Rejected(Struct, frozen=True, tag=True):
    """The handler rejected the job: a retry is pointless."""

    error: RecordedError


class Unreadable(Struct, frozen=True, tag=True):
    """The arguments cannot be decoded, or the result cannot be encoded: a further run would change nothing."""

    error: RecordedError


UnknownReason = Literal["unknown_task", "newer_payload"]


class Unknown(Struct, frozen=True, tag=True):
    """This worker does not know the task, or this version of its payload; another worker may."""

    reason: UnknownReason = "unknown_task"


class Snoozed(Struct, frozen=True, tag=True):
    """The handler asked to be run later."""

    delay: int


class Suspended(Struct, frozen=True, tag=True):
    """The handler waits, without a slot and without memory, until its job is awakened."""

    wait: Wait


class RateLimitHit(Struct, frozen=True, tag=True):
    """The handler met a rate limit: nothing under the same rate may start for `retry_after` microseconds."""

    retry_after: int


class Interrupted(Struct, frozen=True, tag=True):
    """The run was stopped, or never begun, for a reason outside of it.

    `begun`: the handler may have been called. `stopping`: the worker had been asked to stop, or was being recycled.
    """

    reason: Literal["shutdown", "prefetch", "unreachable", "worker_failed"]
    delay: int = 0
    begun: bool = False
    stopping: bool = True


class Cancelled(Struct, frozen=True, tag=True):
    """The run stopped because of a cancel request, or its handler cancelled it."""

    reason: str | None = None
    by: str | None = None


class Stalled(Struct, frozen=True, tag=True):
    """The run's holder fell silent or died. A reaper or a supervisor reports this, never the run itself.

    `blameless`: another run certainly ended the process, so this run is not charged. `begun`: False if its handler was
    certainly never called. `delay`: after how many microseconds the job may run again. `isolated`: its worker died, for
    an unknown reason, while it ran in a process of its own.
    """

    reason: StallReason
    silent_for: int = 0
    owner: str = ""
    detail: str | None = None
    blameless: bool = False
    begun: bool = True
    delay: int = 0
    isolated: bool = False


Outcome = (
    Returned
    | Raised
    | TimedOut
    | Rejected
    | Unreadable
    | Unknown
    | Snoozed
    | Suspended
    | RateLimitHit
    | Interrupted
    | Cancelled
    | Stalled
)
