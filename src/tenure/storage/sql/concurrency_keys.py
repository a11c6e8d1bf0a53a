"""Concurrency keys in SQL: which jobs hold a key, which are parked under it, and which are released.

A holder is a row for an active job and one of its keys, so there are no counters. A job without room is parked under
its first full key and leaves the ready jobs. A job of a paused task is parked under a name that no job can hold. A job
whose rate is not open is parked under that rate (rates.py).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from tenure.core.job import JobRecord, Key, NewJob
from tenure.storage.protocol import PAUSED, PROMOTE_LIMIT, RATE, UNKNOWN, knows, queue_topic, unknown_place
from tenure.storage.sql import rates
from tenure.storage.sql.lists import json_rows
from tenure.storage.sql.settings import setting
from tenure.storage.sql.transaction import Transaction

Slot = tuple[int, str, str]
"""A holder of a concurrency key: the job's seq, its queue, and the key's name."""


def load(tx: Transaction, jobs: Iterable[NewJob | JobRecord]) -> None:
    """Read the keys of several jobs in one statement, before they are used one by one."""
    tx.load_keys([(job.queue, key.name) for job in jobs for key in job.keys])


def register(tx: Transaction, job: NewJob | JobRecord) -> None:
    """Register the keys of a job that was not here before; the limits that it carries apply from now on."""
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


def slots_of(seq: int, queue: str, keys: Sequence[Key]) -> list[Slot]:
    """Return the slots of a job that holds these keys."""
    return [(seq, queue, name) for name in dict.fromkeys(key.name for key in keys)]


def acquire(tx: Transaction, seq: int, job: JobRecord) -> list[Slot]:
    """Count a starting job as a holder of each of its keys; return the slots that the caller must then insert."""
    slots = slots_of(seq, job.queue, job.keys)
    for _, queue, name in slots:
        tx.key(queue, name).held += 1
    return slots


def insert_slots(tx: Transaction, slots: Sequence[Slot]) -> None:
    """Insert slots that are counted."""
    if slots and tx.run("exchange.insert_slots", {"slots": json_rows([(seq, key) for seq, _, key in slots])}) < len(
        slots
    ):
        # Some were there already, left by damaged records.
        tx.recount_holders([(queue, key) for _, queue, key in slots])


def delete_slots(tx: Transaction, slots: Sequence[Slot]) -> None:
    """Delete and count off the slots of jobs that are not active any more."""
    if not slots:
        return
    deleted = tx.run("exchange.delete_slots", {"slots": json_rows([(seq, key) for seq, _, key in slots])})
    known = [(queue, key) for _, queue, key in slots if tx.knows_key(queue, key)]
    tx.load_keys([(queue, key) for _, queue, key in slots])
    for queue, key in known:
        tx.key(queue, key).held -= 1
    if deleted < len(slots):
        tx.recount_holders(known)


def release(tx: Transaction, queue: str, job: str, keys: Sequence[Key]) -> None:
    """Remove a job that is not active any more from the holders of its keys."""
    for key in keys:
        tx.key(queue, key.name).held -= tx.run("exchange.delete_slot", {"queue": queue, "key": key.name, "id": job})


def park(tx: Transaction, seq: int, job: JobRecord, under: str) -> None:
    """Park a ready job until there is room."""
    tx.run("exchange.park", {"under": under, "seq": seq})
    tx.note_parked(job.queue, under)
    tx.count_move(job.queue, to="parked")
    mark_job_freed(tx, job)
    if under.startswith(RATE):
        rates.note_opening(tx, job.queue, under)
    if under.startswith(UNKNOWN):
        tx.topics.append(queue_topic(job.queue))


def unpark_one(tx: Transaction, seq: int, job: JobRecord) -> JobRecord:
    """Release a parked job, and return its new record."""
    tx.run("exchange.park", {"under": None, "seq": seq})
    tx.count_move(job.queue, left="parked", since=job.score)
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
    if not tx.freed:
        return 0
    places = list(tx.freed.items())
    tx.freed.clear()
    keys = [place for place, _ in places if not place[1].startswith(RATE)]
    tx.load_keys([(queue, name) for queue, name in keys if not name.startswith((PAUSED, UNKNOWN))])
    rooms = [(queue, name, room) for queue, name in keys if (room := min(_room(tx, queue, name), PROMOTE_LIMIT))]
    return _unpark_all(tx, rooms) + sum(
        _release_freed(tx, queue, name, left) for (queue, name), left in places if name.startswith(RATE)
    )


def _release_freed(tx: Transaction, queue: str, under: str, left: int) -> int:
    """Release jobs under a rate that jobs have left."""
    unparked = unpark(tx, queue, under, room=min(rates.room(tx, queue, under), left))
    if unparked:
        rates.delete_opening(tx, queue, under)
    return unparked


def unpark(tx: Transaction, queue: str, under: str, *, room: int | None = None) -> int:
    """Release as many parked jobs as a key has room for, or `room` jobs under a rate; return the count."""
    room = min(_room(tx, queue, under) if room is None else room, PROMOTE_LIMIT)
    return _unpark_all(tx, [(queue, under, room)] if room else ())


def _unpark_all(tx: Transaction, rooms: Sequence[tuple[str, str, int]]) -> int:
    """Release the best jobs parked under these names, each a queue, a name, and how many; return the count."""
    if not rooms:
        return 0
    values = {"rooms": json_rows(rooms), "most": max(room for _, _, room in rooms)}
    rows = tx.all("exchange.unpark", values)
    unparked = Counter(queue for queue, _ in rows)
    for queue, jobs in unparked.items():
        tx.count_move(queue, left="parked", jobs=jobs, since=min(score for of, score in rows if of == queue))
        tx.topics.append(queue_topic(queue))
    return unparked.total()


def _room(tx: Transaction, queue: str, under: str) -> int:
    """Return how many of the jobs parked under a name may be released."""
    if under.startswith(PAUSED):
        return 0 if setting(tx, "task", under.removeprefix(PAUSED)).paused else PROMOTE_LIMIT
    slots = tx.key(queue, under)
    if not slots.parked:
        return 0
    if not slots.named and not under.startswith((RATE, UNKNOWN)):
        # Each job that is parked under a key names it. A damaged record may be parked under a name that is not a key.
        return PROMOTE_LIMIT
    return slots.free
