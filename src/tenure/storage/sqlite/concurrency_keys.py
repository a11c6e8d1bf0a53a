"""Concurrency keys in SQL: who holds a slot, who is parked, and who is let back in line.

A slot is a row for an active job and one of its keys, never a number. A job without a slot to go to stands parked
under the first of its keys that is full, out of everybody's way; a job of a paused task does so under a name that no
slot is ever taken of, and one whose rate is not open under that rate (rates.py).
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
    """Let a new job name its keys; the limits that it brings along hold from now on."""
    count(step, job.queue, job.keys, 1)
    for key in job.keys:
        slots = step.slots(job.queue, key.name)
        raised, slots.limit = key.limit > slots.limit, key.limit
        if raised:
            unpark(step, job.queue, key.name)


def count(step: Transaction, queue: str, keys: Sequence[Key], more: int) -> None:
    """Note that so many more unfinished jobs name these keys."""
    for key in keys:
        slots = step.slots(queue, key.name)
        if not slots.named:
            slots.limit = key.limit
        slots.named += more


def unbound(step: Transaction, queue: str, task: str) -> bool:
    """Say whether a job of a task that brings neither keys nor rates may start, and takes nothing by it."""
    told = setting(step, "task", task)
    return not told.paused and told.rate is None and rates.of_queue(step, queue) is None


def full(step: Transaction, job: JobRecord, tasks: Mapping[str, int] | None) -> str | None:
    """Return what a job must be parked under before it may start, None where all its keys and rates have room.

    `tasks`: what the caller knows. Only a job that has started before is held against it.
    """
    if setting(step, "task", job.task).paused:
        return PAUSED + job.task
    if job.starts and job.unreadable is None and not knows(tasks, job.task, job.policy.version):
        return unknown_place(job.task, job.policy.version)
    under = next((key.name for key in job.keys if not step.slots(job.queue, key.name).free), None)
    return rates.closed(step, job) if under is None else under


def take(step: Transaction, job: JobRecord) -> None:
    """Take a slot of each key of a job that starts."""
    for key in job.keys:
        step.slots(job.queue, key.name).held += step.run(_TAKE_SLOT, (job.queue, key.name, job.id))


def leave(step: Transaction, queue: str, job: str, keys: Sequence[Key]) -> None:
    """Leave the slots of a job that is active no more."""
    for key in keys:
        step.slots(queue, key.name).held -= step.run(_LEAVE_SLOT, (queue, key.name, job))


def park(step: Transaction, seq: int, job: JobRecord, under: str) -> None:
    """Take a ready job out of line until there is room."""
    step.run(_PARK, (under, seq))
    step.moved(job.queue, to="parked")
    offer_place(step, job)
    if under.startswith(RATE):
        rates.note_opening(step, job.queue, under)
    if under.startswith(UNKNOWN):
        step.knocked.append(queue_topic(job.queue))


def come_back(step: Transaction, seq: int, job: JobRecord) -> JobRecord:
    """Put a parked job back in line, and return it as it is there."""
    step.run(_PARK, (None, seq))
    step.moved(job.queue, left="parked")
    return structs.replace(job, parked_under=None)


def offer(step: Transaction, queue: str, keys: Sequence[Key]) -> None:
    """Note the keys of a job that has left a slot."""
    step.freed.update((queue, key.name) for key in keys)


def offer_place(step: Transaction, job: JobRecord) -> None:
    """Note the keys and rates of a job that has left its place in line, though they may be free."""
    offer(step, job.queue, job.keys)
    step.freed.update((job.queue, name) for name in rates.names(step, job))


def open_up(step: Transaction, queue: str) -> None:
    """Let back in line whom the rates of a queue allow to start by now, no faster than they might have started.

    So many at a time, and first of those rates that have been open for the longest.
    """
    left = PROMOTE_LIMIT
    for under in rates.opened(step, queue):
        if not left:
            break
        left -= _open(step, queue, under, left)


def open_anew(step: Transaction, queue: str, under: str) -> int:
    """Let in whom a rate allows to start, whoever was let in before; return how many that were."""
    return _open(step, queue, under, PROMOTE_LIMIT, anew=True)


def _open(step: Transaction, queue: str, under: str, limit: int, *, anew: bool = False) -> int:
    room, so_far = rates.starts(step, queue, under, limit, anew=anew)
    unparked = unpark(step, queue, under, room=room)
    rates.note_opening(step, queue, under, so_far=so_far)
    return unparked


def let_in(step: Transaction) -> int:
    """Let others in line under the keys and rates that were left since the last time; return how many that were.

    Whoever moves jobs does so in the end, once for all of them: each free slot is offered once. Under a rate each makes
    place for one more, for the others that it allows stand in line already.
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
    """Let as many jobs back in line as have room under a key, or so many under a rate; return how many that were."""
    room = min(_room(step, queue, under) if room is None else room, PROMOTE_LIMIT)
    if not room:
        return 0
    unparked = step.run(_UNPARK, (queue, under, room))
    if unparked:
        step.moved(queue, left="parked", jobs=unparked)
        step.knocked.append(queue_topic(queue))
    return unparked


def _room(step: Transaction, queue: str, under: str) -> int:
    """Return how many of those parked under a name may be let in."""
    if under.startswith(PAUSED):
        return 0 if setting(step, "task", under.removeprefix(PAUSED)).paused else PROMOTE_LIMIT
    slots = step.slots(queue, under)
    if not slots.named and not under.startswith((RATE, UNKNOWN)):
        # Each job that is parked under a key names it. A damaged record may stand under a name that is not a key.
        return PROMOTE_LIMIT
    return slots.free
