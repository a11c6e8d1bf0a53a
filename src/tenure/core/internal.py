"""The queues of Tenure's own jobs. Without its name, no list, count or subscription includes such a queue."""

from collections.abc import Collection, Iterable

from tenure.core.check import named, shown
from tenure.errors import UsageError

INTERNAL = "tenure.internal."
"""The prefix of the names of internal queues and of the tasks of their jobs."""

OPS_QUEUE = f"{INTERNAL}ops"
"""The queue of bulk operations."""

WEBHOOKS_QUEUE = f"{INTERNAL}webhooks"
"""The queue of webhook deliveries."""

INTERNAL_QUEUES = (OPS_QUEUE, WEBHOOKS_QUEUE)


def is_internal(name: object) -> bool:
    """Return True if this is the name of an internal queue or task."""
    return isinstance(name, str) and name.startswith(INTERNAL)


def own_name(name: object, *, field: str) -> str:
    """Return the name that a user gives to a queue or task.

    Raises:
        UsageError: it is not a name (`check.named`), or it is reserved for internal queues and tasks.
    """
    valid = named(name, field=field)
    if is_internal(valid):
        raise UsageError(f"{field} = {shown(valid)} begins with {INTERNAL!r}, which is reserved; choose another name")
    return valid


def is_internal_event(event: object) -> bool:
    """Return True if this event is one of an internal queue."""
    return is_internal(getattr(event, "queue", None))


def included(queues: Iterable[str], named: Collection[str]) -> list[str]:
    """Return the queues that a listing includes, given those that it names: without names, all but internal ones."""
    return list(queues) if named else [queue for queue in queues if not is_internal(queue)]


def includes_worker(served: Collection[str], named: Iterable[str]) -> bool:
    """Return True if a survey of the named queues includes a worker that serves these queues.

    Workers that serve internal queues alone, as those of consoles do, are included if one of these queues is named.
    """
    return not served or not all(map(is_internal, served)) or any(map(is_internal, named))
