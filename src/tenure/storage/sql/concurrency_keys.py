"""Concurrency keys in SQL: which jobs hold a key, which are parked under it, and which are released.

A holder is a row for an active job and one of its keys, so there are no counters. A job without room is parked under
its first full key and leaves the ready jobs. A job of a paused task is parked under a name that no job can hold. A job
whose rate is not open is parked under that rate (rates.py).
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from tenure.core.job import JobRecord, Key, NewJob
from tenure.storage.protocol import PAUSED, PROMOTE_LIMIT, RATE, UNKNOWN, knows, queue_topic, unknown_place
from tenure.storage.sql import rates
from tenure.storage.sql.settings import setting
from tenure.storage.sql.transaction import Transaction


def register(tx: Transaction, job: NewJob) -> None:
    """Register a new job's keys; the limits that it carries apply from now on."""
    count(tx, job.queue, job.keys, 1)
    for key in job.keys:
        slots = tx.key(job.queue, key.name)
        raised, slots.limit = key.limit > slots.limit, key.limit
        if raised:
            unpark(tx, job.queue, key.name)


def count(tx: Transaction, queue: str, keys: Sequence[Key], more: int) -> None:
    """Add to the number of unfinished jobs that name these keys."""
    for key in keys:
        slots = tx.key(queue, key.name)
        if not slots.named:
            slots.limit = key.limit
        slots.named += more


def may_start_freely(tx: Transaction, queue: str, task: str) -> bool:
    """Return True if a job of this task without keys and rates may start and takes nothing by its start."""
    settings = setting(tx, "task", task)
    return not settings.paused and settings.rate is None and rates.queue_rate(tx, queue) is None


def blocked_by(tx: Transaction, job: JobRecord, tasks: Mapping[str, int] | None) -> str | None:
    """Return the name that a job must be parked under, or None if all its keys and rates let it start.

    `tasks`: the tasks that the caller knows. They are checked only for a job that has started before.
    """
    if setting(tx, "task", job.task).paused:
        return PAUSED + job.task
    if job.starts and job.unreadable is None and not knows(tasks, job.task, job.policy.version):
        return unknown_place(job.task, job.policy.version)
    under = next((key.name for key in job.keys if not tx.key(job.queue, key.name).free), None)
    return rates.closed_rate(tx, job) if under is None else under


def acquire(tx: Transaction, job: JobRecord) -> None:
    """Make a starting job a holder of each of its keys."""
    for key in job.keys:
        tx.key(job.queue, key.name).held += tx.run(
            "exchange.insert_slot", {"queue": job.queue, "key": key.name, "id": job.id}
        )


def release(tx: Transaction, queue: str, job: str, keys: Sequence[Key]) -> None:
    """Remove a job that is not active any more from the holders of its keys."""
    for key in keys:
        tx.key(queue, key.name).held -= tx.run("exchange.delete_slot", {"queue": queue, "key": key.name, "id": job})


def park(tx: Transaction, seq: int, job: JobRecord, under: str) -> None:
    """Park a ready job until there is room."""
    tx.run("exchange.park", {"under": under, "seq": seq})
    tx.count_move(job.queue, to="parked")
    mark_job_freed(tx, job)
    if under.startswith(RATE):
        rates.note_opening(tx, job.queue, under)
    if under.startswith(UNKNOWN):
        tx.topics.append(queue_topic(job.queue))


def unpark_one(tx: Transaction, seq: int, job: JobRecord) -> JobRecord:
    """Release a parked job, and return its new record."""
    tx.run("exchange.park", {"under": None, "seq": seq})
    tx.count_move(job.queue, left="parked")
    return structs.replace(job, parked_under=None)


def mark_freed(tx: Transaction, queue: str, keys: Sequence[Key]) -> None:
    """Record the keys of a job that was their holder."""
    tx.freed.update((queue, key.name) for key in keys)


def mark_job_freed(tx: Transaction, job: JobRecord) -> None:
    """Record the keys and rates of a job that has left the ready jobs, because they may be free."""
    mark_freed(tx, job.queue, job.keys)
    tx.freed.update((job.queue, name) for name in rates.parking_names(tx, job))


def release_opened(tx: Transaction, queue: str) -> None:
    """Release the jobs that the rates of a queue allow to start by now, no faster than they could have started.

    Each call releases up to `PROMOTE_LIMIT` jobs, beginning with the rates that have been open for the longest time.
    """
    left = PROMOTE_LIMIT
    for under in rates.opened(tx, queue):
        if not left:
            break
        left -= _open(tx, queue, under, left)


def release_allowed(tx: Transaction, queue: str, under: str) -> int:
    """Release every job this rate now allows, ignoring earlier releases. Return the count."""
    return _open(tx, queue, under, PROMOTE_LIMIT, afresh=True)


def _open(tx: Transaction, queue: str, under: str, limit: int, *, afresh: bool = False) -> int:
    room, so_far = rates.starts(tx, queue, under, limit, afresh=afresh)
    unparked = unpark(tx, queue, under, room=room)
    rates.note_opening(tx, queue, under, so_far=so_far)
    return unparked


def release_freed(tx: Transaction) -> int:
    """Release jobs parked under keys and rates that were freed since the last call; return the count.

    Each function that moves jobs ends with this call, once for all its moves, so that each free place is offered once.
    Under a rate, each job that left makes room for one more job, because the other jobs that the rate allows are ready.
    """
    places = list(tx.freed.items())
    tx.freed.clear()
    return sum(_release_freed(tx, queue, name, left) for (queue, name), left in places)


def _release_freed(tx: Transaction, queue: str, under: str, left: int) -> int:
    if not under.startswith(RATE):
        return unpark(tx, queue, under)
    unparked = unpark(tx, queue, under, room=min(rates.room(tx, queue, under), left))
    if unparked:
        rates.delete_opening(tx, queue, under)
    return unparked


def unpark(tx: Transaction, queue: str, under: str, *, room: int | None = None) -> int:
    """Release as many parked jobs as a key has room for, or `room` jobs under a rate; return the count."""
    room = min(_room(tx, queue, under) if room is None else room, PROMOTE_LIMIT)
    if not room:
        return 0
    unparked = tx.run("exchange.unpark", {"queue": queue, "under": under, "limit": room})
    if unparked:
        tx.count_move(queue, left="parked", jobs=unparked)
        tx.topics.append(queue_topic(queue))
    return unparked


def _room(tx: Transaction, queue: str, under: str) -> int:
    """Return how many of the jobs parked under a name may be released."""
    if under.startswith(PAUSED):
        return 0 if setting(tx, "task", under.removeprefix(PAUSED)).paused else PROMOTE_LIMIT
    slots = tx.key(queue, under)
    if not slots.named and not under.startswith((RATE, UNKNOWN)):
        # Each job that is parked under a key names it. A damaged record may be parked under a name that is not a key.
        return PROMOTE_LIMIT
    return slots.free
