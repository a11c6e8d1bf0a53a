"""Concurrency keys in SQL: which jobs hold a key, which are parked under it, and which are released.

A holder is a row for an active job and one of its keys, so there are no counters. A job without room is parked under
its first full key and leaves the ready jobs. A job of a paused task is parked under a name that no job can hold. A job
whose rate is not open is parked under that rate (rates.py).
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from tenure.core.job import JobRecord, Key, NewJob
from tenure.storage.protocol import PAUSED, PROMOTE_LIMIT, RATE, UNKNOWN, knows, queue_topic, unknown_place
from tenure.storage.sqlite import rates
from tenure.storage.sqlite.settings import setting
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction

_TAKE_SLOT = query("exchange", "take_slot")
_LEAVE_SLOT = query("exchange", "leave_slot")
_PARK = query("exchange", "park")
_UNPARK = query("exchange", "unpark")


def name(step: Transaction, job: NewJob) -> None:
    """Register a new job's keys; the limits that it carries apply from now on."""
    count(step, job.queue, job.keys, 1)
    for key in job.keys:
        slots = step.slots(job.queue, key.name)
        raised, slots.limit = key.limit > slots.limit, key.limit
        if raised:
            unpark(step, job.queue, key.name)


def count(step: Transaction, queue: str, keys: Sequence[Key], more: int) -> None:
    """Add to the number of unfinished jobs that name these keys."""
    for key in keys:
        slots = step.slots(queue, key.name)
        if not slots.named:
            slots.limit = key.limit
        slots.named += more


def unbound(step: Transaction, queue: str, task: str) -> bool:
    """Return True if a job of this task without keys and rates may start and takes nothing by its start."""
    told = setting(step, "task", task)
    return not told.paused and told.rate is None and rates.of_queue(step, queue) is None


def full(step: Transaction, job: JobRecord, tasks: Mapping[str, int] | None) -> str | None:
    """Return the name that a job must be parked under, or None if all its keys and rates let it start.

    `tasks`: the tasks that the caller knows. They are checked only for a job that has started before.
    """
    if setting(step, "task", job.task).paused:
        return PAUSED + job.task
    if job.starts and job.unreadable is None and not knows(tasks, job.task, job.policy.version):
        return unknown_place(job.task, job.policy.version)
    under = next((key.name for key in job.keys if not step.slots(job.queue, key.name).free), None)
    return rates.closed(step, job) if under is None else under


def take(step: Transaction, job: JobRecord) -> None:
    """Make a starting job a holder of each of its keys."""
    for key in job.keys:
        step.slots(job.queue, key.name).held += step.run(_TAKE_SLOT, (job.queue, key.name, job.id))


def leave(step: Transaction, queue: str, job: str, keys: Sequence[Key]) -> None:
    """Remove a job that is not active any more from the holders of its keys."""
    for key in keys:
        step.slots(queue, key.name).held -= step.run(_LEAVE_SLOT, (queue, key.name, job))


def park(step: Transaction, seq: int, job: JobRecord, under: str) -> None:
    """Park a ready job until there is room."""
    step.run(_PARK, (under, seq))
    step.moved(job.queue, to="parked")
    offer_place(step, job)
    if under.startswith(RATE):
        rates.note_opening(step, job.queue, under)
    if under.startswith(UNKNOWN):
        step.knocked.append(queue_topic(job.queue))


def come_back(step: Transaction, seq: int, job: JobRecord) -> JobRecord:
    """Release a parked job, and return its new record."""
    step.run(_PARK, (None, seq))
    step.moved(job.queue, left="parked")
    return structs.replace(job, parked_under=None)


def offer(step: Transaction, queue: str, keys: Sequence[Key]) -> None:
    """Record the keys of a job that was their holder."""
    step.freed.update((queue, key.name) for key in keys)


def offer_place(step: Transaction, job: JobRecord) -> None:
    """Record the keys and rates of a job that has left the ready jobs, because they may be free."""
    offer(step, job.queue, job.keys)
    step.freed.update((job.queue, name) for name in rates.names(step, job))


def open_up(step: Transaction, queue: str) -> None:
    """Release the jobs that the rates of a queue allow to start by now, no faster than they could have started.

    Each call releases up to `PROMOTE_LIMIT` jobs, beginning with the rates that have been open for the longest time.
    """
    left = PROMOTE_LIMIT
    for under in rates.opened(step, queue):
        if not left:
            break
        left -= _open(step, queue, under, left)


def open_anew(step: Transaction, queue: str, under: str) -> int:
    """Release every job this rate now allows, ignoring earlier releases. Return the count."""
    return _open(step, queue, under, PROMOTE_LIMIT, anew=True)


def _open(step: Transaction, queue: str, under: str, limit: int, *, anew: bool = False) -> int:
    room, so_far = rates.starts(step, queue, under, limit, anew=anew)
    unparked = unpark(step, queue, under, room=room)
    rates.note_opening(step, queue, under, so_far=so_far)
    return unparked


def let_in(step: Transaction) -> int:
    """Release jobs parked under keys and rates that were freed since the last call; return the count.

    Each step that moves jobs ends with this, once for all its moves, so that each free place is offered once. Under a
    rate, each job that left makes room for one more job, because the other jobs that the rate allows are ready already.
    """
    places = list(step.freed.items())
    step.freed.clear()
    return sum(_let_in(step, queue, name, left) for (queue, name), left in places)


def _let_in(step: Transaction, queue: str, under: str, left: int) -> int:
    if not under.startswith(RATE):
        return unpark(step, queue, under)
    unparked = unpark(step, queue, under, room=min(rates.room(step, queue, under), left))
    if unparked:
        rates.forget_opening(step, queue, under)
    return unparked


def unpark(step: Transaction, queue: str, under: str, *, room: int | None = None) -> int:
    """Release as many parked jobs as a key has room for, or `room` jobs under a rate; return the count."""
    room = min(_room(step, queue, under) if room is None else room, PROMOTE_LIMIT)
    if not room:
        return 0
    unparked = step.run(_UNPARK, (queue, under, room))
    if unparked:
        step.moved(queue, left="parked", jobs=unparked)
        step.knocked.append(queue_topic(queue))
    return unparked


def _room(step: Transaction, queue: str, under: str) -> int:
    """Return how many of the jobs parked under a name may be released."""
    if under.startswith(PAUSED):
        return 0 if setting(step, "task", under.removeprefix(PAUSED)).paused else PROMOTE_LIMIT
    slots = step.slots(queue, under)
    if not slots.named and not under.startswith((RATE, UNKNOWN)):
        # Each job that is parked under a key names it. A damaged record may be parked under a name that is not a key.
        return PROMOTE_LIMIT
    return slots.free
