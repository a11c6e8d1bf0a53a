"""Rates in SQL: which jobs they hold back, and when they let the next one start (core/rate.py).

A rate has one number: up to when starts have taken its time. A job that must wait for its rate is parked under the
rate's name and leaves the ready jobs. The row also stores when the first parked job may start. So a claim
finds the rates that have opened, and the other rates cost it nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tenure.core import rate as rule
from tenure.core.duration import moment
from tenure.core.events import QueueLimited
from tenure.core.job import JobRecord, NewJob, RateKey
from tenure.core.rate import RateReservation
from tenure.storage.protocol import (
    LIMIT,
    LOOK_LIMIT,
    PROMOTE_LIMIT,
    QUEUE_RATE,
    RATE,
    SCAN_LIMIT,
    StartLimit,
    queue_topic,
)
from tenure.storage.sql import rows
from tenure.storage.sql.lists import json_names
from tenure.storage.sql.settings import setting
from tenure.storage.sql.transaction import Transaction

_OF_TASKS_BETWEEN = (("task:", "task;"), ("task/", "task0"))
"""The ranges of the names that begin with "task:" or "task/"."""


def rates_of(tx: Transaction, job: NewJob | JobRecord) -> list[RateKey]:
    """Return the rates that a job's start takes time of; a rate set for the task replaces the task's own rates."""
    return _effective(tx, job.task, job.rates)


def closed_rate(tx: Transaction, job: JobRecord) -> str | None:
    """Return the name that a job must be parked under because of a rate, None if all its rates are open."""
    for rate in rates_of(tx, job):
        if rule.opens_at(_taken(tx, job.queue, rate), rate, tx.now) > tx.now:
            return RATE + rate.name
    return None


def queue_rate(tx: Transaction, queue: str) -> RateKey | None:
    """Return the rate that is set for a queue, or None."""
    rate = setting(tx, "queue", queue).rate
    return rate if rate is not None and rate.interval else None


def _with_queue_rate(tx: Transaction, job: JobRecord) -> list[RateKey]:
    rate = queue_rate(tx, job.queue)
    return rates_of(tx, job) if rate is None else [*rates_of(tx, job), rate]


def free(tx: Transaction, queue: str) -> int:
    """Return how many jobs the queue's own rate lets start now; without a rate, how many may be examined."""
    if queue_limit(tx, queue) > tx.now:
        return 0
    rate = queue_rate(tx, queue)
    return SCAN_LIMIT if rate is None else rule.free(tx.rate(queue, rate.name).taken, rate, tx.now)


def limit(tx: Transaction, job: JobRecord, length: int) -> None:
    """Let nothing start under the job's own rate, or in its queue if it has none, for some time."""
    rate = rule.limit_name(rates_of(tx, job))
    name = rate or QUEUE_RATE
    known = tx.rate(job.queue, LIMIT + name)
    after = rule.extended(known.taken, length, tx.now)
    if after == known.taken:
        return
    known.taken = after
    if name == QUEUE_RATE:
        tx.note_limited(job.queue)
    if (opens := tx.rate(job.queue, name).opens) is not None:
        _note(tx, job.queue, RATE + name, max(opens, after.until))
    tx.record(QueueLimited(queue=job.queue, rate=rate, until=moment(after.until), by=job.id))


def lift(tx: Transaction, queue: str, name: str, by: str | None) -> None:
    """End the limit of a rate or a queue, or with "*" all limits of the queue."""
    found = limits(tx, [queue], None if name == "*" else name)
    ended = [limit.rate for limit in found.get(queue, ())]
    for rate in ended:
        limited = rate or QUEUE_RATE
        tx.rate(queue, LIMIT + limited).taken = RateReservation()
        if tx.rate(queue, limited).opens is not None:
            # The next claim checks it.
            _note(tx, queue, RATE + limited, 0)
        tx.record(QueueLimited(queue=queue, rate=rate, by=by))
    if ended:
        tx.topics.append(queue_topic(queue))


def limits(tx: Transaction, queues: Sequence[str], only: str | None = None) -> dict[str, list[StartLimit]]:
    """Return the limits of each queue that are in force, sorted by name: all, or the one of this name."""
    found: defaultdict[str, list[StartLimit]] = defaultdict(list)
    tx.flush()
    values = {"queues": json_names(queues), "first": LIMIT, "end": LIMIT[:-1] + ";", "now": tx.now}
    for queue, written in tx.all("rates.limits", values):
        name = written.removeprefix(LIMIT)
        until = rule.limit_end(tx.rate(queue, written).taken, tx.now)
        if until > tx.now and only in (None, name) and len(found[queue]) < LOOK_LIMIT:
            found[queue].append(StartLimit(None if name == QUEUE_RATE else name, until))
    return found


def queue_limit(tx: Transaction, queue: str) -> int:
    """Return the instant before which a limit lets no job of a queue start; not after now without a limit."""
    if not tx.may_be_limited(queue):
        return tx.now
    return rule.limit_end(tx.rate(queue, LIMIT + QUEUE_RATE).taken, tx.now)


def take(tx: Transaction, job: JobRecord) -> None:
    """Take the rates' time for one start."""
    for rate in _with_queue_rate(tx, job):
        known = tx.rate(job.queue, rate.name)
        known.taken = rule.taken(known.taken, rate, tx.now)


def give_back(tx: Transaction, job: JobRecord) -> None:
    """Give back the time of a start that was undone, so that the next job may start that much earlier."""
    for rate in _with_queue_rate(tx, job):
        known = tx.rate(job.queue, rate.name)
        if known.taken.until > tx.now:
            more = rule.refund(rate, job.started or tx.now, tx.now)
            known.taken = RateReservation(known.taken.until - more, known.taken.reach)
            if known.opens is not None:
                _note(tx, job.queue, RATE + rate.name, known.opens - more)


def room(tx: Transaction, queue: str, under: str) -> int:
    """Return how many jobs parked under a rate may start now: all, if the first of them no longer has the rate."""
    found, rate = _first(tx, queue, under)
    if not found:
        return 0
    return SCAN_LIMIT if rate is None else rule.free(_taken(tx, queue, rate), rate, tx.now)


def opened(tx: Transaction, queue: str) -> list[str]:
    """Return the names of the rates that have parked jobs and let one start by now."""
    if not tx.fair_queue(queue).opening:
        return []
    return [RATE + name for (name,) in tx.all("rates.opened", {"queue": queue, "now": tx.now, "limit": PROMOTE_LIMIT})]


def starts(tx: Transaction, queue: str, under: str, limit: int, *, afresh: bool) -> tuple[int, RateReservation | None]:
    """Return how many parked jobs a rate may release now, and its taken time after their starts.

    Jobs that were released before count as started, even if they are still ready. With `afresh` they do not count. If a
    job leaves the queue without starting, another one is released at once in its place.
    """
    found, rate = _first(tx, queue, under)
    if rate is None:
        return (limit if found else 0), None
    known = tx.rate(queue, rate.name)
    so_far = _taken(tx, queue, rate)
    if known.opens is not None and not afresh:
        so_far = max(so_far, rule.taken_if_open(known.opens, rate))
    room = min(rule.free(so_far, rate, tx.now), limit)
    return room, rule.taken(so_far, rate, tx.now, starts=room)


def note_opening(tx: Transaction, queue: str, under: str, *, so_far: RateReservation | None = None) -> None:
    """Record when a rate lets its first parked job start, or that no job is parked under it any more.

    `so_far`: the rate's taken time, including the released jobs.
    """
    found, rate = _first(tx, queue, under)
    opens: int | None = None
    if found:
        opens = tx.now
    if rate is not None:
        opens = rule.opens_at(_taken(tx, queue, rate) if so_far is None else so_far, rate, tx.now)
    _note(tx, queue, under, opens)


def delete_opening(tx: Transaction, queue: str, under: str) -> None:
    """Delete a rate's opening time if no job is parked under it any more."""
    if not _first(tx, queue, under)[0]:
        _note(tx, queue, under, None)


def set_pace(tx: Transaction, rate: RateKey, queues: Iterable[str]) -> None:
    """Apply a rate's new pace."""
    for queue in queues:
        known = tx.rate(queue, rate.name)
        known.taken = rule.retuned(known.taken, rate, tx.now)


def queues_of(tx: Transaction, rate: RateKey) -> list[str]:
    """Return the queues in which time of a rate is taken."""
    return [queue for (queue,) in tx.all("rates.queues", {"name": rate.name})]


def parked_rates(tx: Transaction, queue: str, task: str) -> list[str]:
    """Return the names of a task's own rates under which jobs are parked."""
    names = [
        name
        for first, end in _OF_TASKS_BETWEEN
        for (name,) in tx.all("rates.parked_rates", {"queue": queue, "first": first, "end": end})
    ]
    return [RATE + name for name in names if rule.is_of_task(name, task)]


def check_all(tx: Transaction) -> None:
    """Let the next claims check all parked rates: their opening times were set before the clock was set back."""
    tx.flush()
    for (queue,) in tx.all("rates.opening_ahead", {"now": tx.now}):
        tx.topics.append(queue_topic(queue))
    tx.run("rates.check_all", {"now": tx.now})
    tx.drop_rates()


def opens_at(tx: Transaction, queue: str) -> int:
    """Return when a queue's own rate and limit let its next job start."""
    rate = queue_rate(tx, queue)
    opens_at = tx.now if rate is None else rule.opens_at(tx.rate(queue, rate.name).taken, rate, tx.now)
    return max(opens_at, queue_limit(tx, queue))


def parking_names(tx: Transaction, job: NewJob | JobRecord) -> Iterable[str]:
    """Return the names that a job may be parked under because of its rates."""
    return (RATE + rate.name for rate in rates_of(tx, job))


def _taken(tx: Transaction, queue: str, rate: RateKey) -> RateReservation:
    """Return up to when a rate's time is taken, by starts or by a limit."""
    until = rule.limit_end(tx.rate(queue, LIMIT + rate.name).taken, tx.now)
    return rule.limited(tx.rate(queue, rate.name).taken, rate, until, tx.now)


def _note(tx: Transaction, queue: str, under: str, opens: int | None) -> None:
    known = tx.rate(queue, under.removeprefix(RATE))
    if opens != known.opens:
        known.opens = opens
        tx.note_opening()
        tx.run("rates.set_opening", {"queue": queue, "name": under.removeprefix(RATE), "opens_at": opens})
        tx.fair_queue(queue).opening = True


def _effective(tx: Transaction, task: str, rates: Iterable[RateKey]) -> list[RateKey]:
    return rule.effective_rates(rates, setting(tx, "task", task).rate, task)


def _read(written: str | None) -> Sequence[RateKey]:
    try:
        return rows.rates(str(written)) if written else ()
    except rows.UNREADABLE:
        # The claim that reaches the job sets it aside.
        return ()


def _first(tx: Transaction, queue: str, under: str) -> tuple[bool, RateKey | None]:
    """Return whether a job is parked under a rate, and the first such job's rate, None if it no longer has it."""
    row = tx.one("rates.first_parked", {"queue": queue, "under": under})
    if row is None:
        return False, None
    task, written = row
    rates = _effective(tx, task, _read(written))
    return True, next((rate for rate in rates if RATE + rate.name == under), None)
