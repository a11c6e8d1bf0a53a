"""Which job a call comes to instead of making its own: by the key they share, as long as that job may be come to.

Whether a key is held follows from the records of the jobs alone. There is no lock beside them that could be left
behind, or be lost before its time; only a key that is held for a time is a note of its own, which time does away with.
"""

from typing import Literal, assert_never

from msgspec import Struct

from tenure.core.job import CollectKey, DebounceKey, JobRecord, MergeKey, Ref, ThrottleKey, UniqueKey
from tenure.core.lifecycle import TERMINAL, State


class Window(Struct):
    """A key for a time: until when, how many jobs were made under it, and the latest of them."""

    until: int
    jobs: int
    ref: Ref


Made = Literal["created", "duplicate", "replaced", "gathered", "throttled"]
"""What became of a call to enqueue."""


def merge_name(key: MergeKey) -> str:
    """Return the name that a key goes by in its queue: keys of different kinds never meet."""
    return f"{type(key).__struct_config__.tag}:{key.key}"


def throttle_name(key: ThrottleKey) -> str:
    """Return the name that a throttle's window goes by in its queue."""
    return f"throttle:{key.key}"


GATHERED_LIMIT = 8 * 1024 * 1024
"""From so many bytes of arguments on, frames and all, a job gathers no more."""


def may_be_come_to(job: JobRecord, key: MergeKey) -> bool:
    """Say whether a call with this key comes to a job that has the same."""
    match key:
        case UniqueKey(window=int()):
            return False
        case UniqueKey(scope="queued"):
            return job.state in (State.DELAYED, State.WAITING)
        case UniqueKey():
            return job.state not in TERMINAL
        case DebounceKey():
            return _yet_to_start(job)
        case CollectKey():
            return _yet_to_start(job) and not _full(key, job.gathered, job.gathered_bytes)
        case _:
            assert_never(key)


def due_at(key: DebounceKey | CollectKey, *, first: int, calls: int, now: int, size: int = 0) -> int:
    """Return when a job is due that was called for now, the `calls`-th time; `first`: when it first was, by its record.

    `size`: how many bytes of arguments it has gathered then.
    One that was first called for later than now was so before the clock was set back, and waits as if from now on.
    """
    if isinstance(key, CollectKey) and _full(key, calls, size):
        return now
    latest = now + key.delay
    return latest if key.max_wait is None else max(min(latest, min(first, now) + key.max_wait), now)


def _full(key: CollectKey, calls: int, size: int) -> bool:
    return calls >= key.max_size or size >= GATHERED_LIMIT


def _yet_to_start(job: JobRecord) -> bool:
    # What has run once has run with what it had taken in by then.
    return job.starts == 0 and job.state in (State.DELAYED, State.WAITING)
