"""Decides which existing job a call is merged into: the one with the same key, while its state allows it.

The records of the jobs alone determine which job holds a key. Without separate locks, no lock can be left behind or
lost too early. Only a key with a window has a record of its own, which expires.
"""

from typing import Literal, assert_never

from msgspec import Struct

from tenure.core.job import CollectKey, DebounceKey, JobRecord, MergeKey, Ref, ThrottleKey, UniqueKey
from tenure.core.lifecycle import TERMINAL, State


class Window(Struct):
    """A key with a time limit: its end, how many jobs were made under it, and the latest of them."""

    until: int
    jobs: int
    ref: Ref


EnqueueAction = Literal["created", "duplicate", "replaced", "collected", "throttled", "pending"]
"""The result of a call to enqueue."""


def merge_name(key: MergeKey) -> str:
    """Return the name of a key in its queue; keys of different kinds have different names."""
    return f"{type(key).__struct_config__.tag}:{key.key}"


def throttle_name(key: ThrottleKey) -> str:
    """Return the name of a throttle's window in its queue."""
    return f"throttle:{key.key}"


COLLECTED_LIMIT = 8 * 1024 * 1024
"""When a job has this many bytes of collected arguments, including frames, it collects no more calls."""


def accepts_merge(job: JobRecord, key: MergeKey) -> bool:
    """Return True if a call with this key is merged into a job that has the same key."""
    match key:
        case UniqueKey(window=int()):
            return False
        case UniqueKey(scope="queued"):
            return job.state in (State.DELAYED, State.WAITING) or _waits_for_its_first_start(job)
        case UniqueKey():
            return job.state not in TERMINAL
        case DebounceKey():
            return _has_not_started(job)
        case CollectKey():
            return _has_not_started(job) and not _full(key, job.collected, job.collected_bytes)
        case _:
            assert_never(key)


def due_at(key: DebounceKey | CollectKey, *, first: int, calls: int, now: int, size: int = 0) -> int:
    """Return when a job is due after its `calls`-th call, made now. `first`: the recorded time of its first call.

    `size`: the job's bytes of collected arguments. If the first call lies later than now, the clock was set back since.
    The job then waits as if the call came now.
    """
    if isinstance(key, CollectKey) and _full(key, calls, size):
        return now
    latest = now + key.delay
    return latest if key.max_wait is None else max(min(latest, min(first, now) + key.max_wait), now)


def _full(key: CollectKey, calls: int, size: int) -> bool:
    return calls >= key.max_size or size >= COLLECTED_LIMIT


def _waits_for_its_first_start(job: JobRecord) -> bool:
    return job.state is State.SUSPENDED and job.starts == 0


def _has_not_started(job: JobRecord) -> bool:
    # A started job has read its merged calls already.
    return job.starts == 0 and job.state in (State.DELAYED, State.WAITING)
