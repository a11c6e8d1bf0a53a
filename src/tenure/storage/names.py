"""The names that storages share: of topics, of keys under which jobs are parked, and of orders to workers."""

from collections.abc import Mapping

from tenure.core.job import Ref


def queue_topic(queue: str) -> str:
    """Return the topic for hints that a queue has work."""
    return f"queue:{queue}"


def job_topic(ref: Ref) -> str:
    """Return the topic for hints that a job changed; names hold no NUL, so the topic belongs to one job only."""
    return f"job:{ref.queue}\0{ref.id}"


def owner_topic(owner: str) -> str:
    """Return the topic for hints that an owner should send a beat at once."""
    return f"owner:{owner}"


def knows(tasks: Mapping[str, int] | None, task: str, version: int) -> bool:
    """Return True if a caller with these tasks knows this task in this payload version."""
    return tasks is None or tasks.get(task, 0) >= version


def unknown_place(task: str, version: int) -> str:
    """Return the name of the key under which jobs are parked until a worker knows their task and version."""
    return f"{UNKNOWN}{task}:{version}"


def task_of_place(name: str) -> tuple[str, int]:
    """Return the task and version of the key name that jobs are parked under; the inverse of `unknown_place`."""
    task, _, version = name.removeprefix(UNKNOWN).rpartition(":")
    return task, int(version)


UNKNOWN = "unknown:"
"""The prefix of key names under which jobs of unknown tasks are parked."""

UNKNOWN_LOOKS = 100
"""How many jobs of an unknown task a survey examines to find the longest-waiting one."""

PLACE_LIMIT = 250
"""How many names of unknown tasks one claim looks at, over all of its queues.

If a queue has more of them and the caller knows more tasks, each claim looks at another part of the names."""

PAUSED = "paused:"
"""The prefix of key names under which the jobs of a paused task are parked."""

RATE = "rate:"
"""The prefix of key names under which jobs are parked until their rate lets them start."""

QUEUE_RATE = "queue"
"""The name of the rate that is set for a queue."""

LIMIT = "limit:"
"""The prefix of the name under which a limit is kept that `RateLimited` has set for a rate."""

TASK_RATE = "task:"
"""The prefix of the names of task rates, both those that are set and those that jobs carry."""

CONCURRENCY = "concurrency:"
"""The prefix of the order that sets how many jobs a worker runs at once; the number follows."""

OUTDATED = "outdated:"
"""The prefix of the order to stop that a worker gets if it knows only an older schema; the reason follows."""

MOVED = "moved:"
"""The prefix of the order that tells a worker where the jobs went; the address follows."""

EVENTS_TOPIC = "events"
"""The topic for hints that there are new events."""
