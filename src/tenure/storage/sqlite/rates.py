"""Rates in SQL: whose start they put off, and when they let the next one start (core/rate.py).

Of each there is one number: up to when its time is taken, by starts alone. A job that must wait for its rate stands
parked under that rate's name, out of everybody's way; beside the number stands when the first of these may start, so
that a claim finds the rates that have opened, and the others cost it nothing.
"""

from collections.abc import Iterable, Sequence

from msgspec import MsgspecError

from tenure.core import rate as rule
from tenure.core.job import JobRecord, NewJob, RateKey
from tenure.core.rate import RateReservation
from tenure.storage.protocol import PROMOTE_LIMIT, RATE, SCAN_LIMIT, queue_topic
from tenure.storage.sqlite import rows
from tenure.storage.sqlite.settings import setting
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction

_NOTE_OPENING = query("rates", "note_opening")
_OPENING_AHEAD = query("rates", "opening_ahead")
_LOOK_ANEW = query("rates", "look_anew")
_OPEN = query("rates", "open")
_FIRST = query("rates", "first")
_OF_TASKS = query("rates", "of_tasks")
_RETUNED = query("rates", "retuned")

_OF_TASKS_BETWEEN = (("task:", "task;"), ("task/", "task0"))
"""Where the names lie that begin with "task:" or "task/"."""


def of(step: Transaction, job: NewJob | JobRecord) -> list[RateKey]:
    """Return the rates that a job's start takes time of: its own, those of its task replaced by its setting."""
    return _of(step, job.task, job.rates)


def closed(step: Transaction, job: JobRecord) -> str | None:
    """Return what a job must be parked under before its rates let it start, None where they all do."""
    for rate in of(step, job):
        if rule.opens_at(step.rate(job.queue, rate.name).taken, rate, step.now) > step.now:
            return RATE + rate.name
    return None


def of_queue(step: Transaction, queue: str) -> RateKey | None:
    """Return the rate that a queue is set, None where it is free."""
    rate = setting(step, "queue", queue).rate
    return rate if rate is not None and rate.interval else None


def free(step: Transaction, queue: str) -> int:
    """Return how many jobs may start now by the queue's own rate, or may be looked at where it has none."""
    rate = of_queue(step, queue)
    return SCAN_LIMIT if rate is None else rule.free(step.rate(queue, rate.name).taken, rate, step.now)


def take(step: Transaction, job: JobRecord) -> None:
    """Take the time of a start."""
    told = of_queue(step, job.queue)
    for rate in [*of(step, job), *(() if told is None else (told,))]:
        known = step.rate(job.queue, rate.name)
        known.taken = rule.taken(known.taken, rate, step.now)


def give_back(step: Transaction, job: JobRecord) -> None:
    """Give back the time of a start in vain, so that the next job may start that much earlier."""
    told = of_queue(step, job.queue)
    for rate in [*of(step, job), *(() if told is None else (told,))]:
        known = step.rate(job.queue, rate.name)
        if known.taken.until > step.now:
            more = rule.regained(rate, job.started or step.now, step.now)
            known.taken = RateReservation(known.taken.until - more, known.taken.reach)
            if known.opens is not None:
                _note(step, job.queue, RATE + rate.name, known.opens - more)


def room(step: Transaction, queue: str, under: str) -> int:
    """Return how many of those parked under a rate may start now: all, where the first of them has it no more."""
    found, rate = _first(step, queue, under)
    if not found:
        return 0
    return SCAN_LIMIT if rate is None else rule.free(step.rate(queue, rate.name).taken, rate, step.now)


def opened(step: Transaction, queue: str) -> list[str]:
    """Return what those are parked under whose rates let somebody start by now."""
    if not step.line(queue).opening:
        return []
    return [RATE + name for (name,) in step.all(_OPEN, (queue, step.now, PROMOTE_LIMIT))]


def starts(step: Transaction, queue: str, under: str, limit: int, *, anew: bool) -> tuple[int, RateReservation | None]:
    """Return how many of those parked under a rate are to be let in now, and how far its time is taken by them.

    Those let in before are taken to have started, though they may stand in line (`anew`: none of them does any more):
    in the place of who leaves that without starting another is let in at once.
    """
    found, rate = _first(step, queue, under)
    if rate is None:
        return (limit if found else 0), None
    known = step.rate(queue, rate.name)
    so_far = known.taken if anew or known.opens is None else max(known.taken, rule.taken_if_open(known.opens, rate))
    room = min(rule.free(so_far, rate, step.now), limit)
    return room, rule.taken(so_far, rate, step.now, starts=room)


def note_opening(step: Transaction, queue: str, under: str, *, so_far: RateReservation | None = None) -> None:
    """Note when a rate lets the first of those start who are parked under it, or that there is nobody any more.

    `so_far`: how far its time is taken with those that were let in.
    """
    found, rate = _first(step, queue, under)
    opens: int | None = None
    if found:
        opens = step.now
    if rate is not None:
        opens = rule.opens_at(step.rate(queue, rate.name).taken if so_far is None else so_far, rate, step.now)
    _note(step, queue, under, opens)


def forget_opening(step: Transaction, queue: str, under: str) -> None:
    """Forget when a rate opens, once the last job that was parked under it is gone: nobody asks any more."""
    if not _first(step, queue, under)[0]:
        _note(step, queue, under, None)


def retune(step: Transaction, rate: RateKey, queues: Iterable[str]) -> None:
    """Go by the new pace of a rate."""
    for queue in queues:
        known = step.rate(queue, rate.name)
        known.taken = rule.retuned(known.taken, rate, step.now)


def queues_of(step: Transaction, rate: RateKey) -> list[str]:
    """Return the queues in which time of a rate is taken."""
    return [queue for (queue,) in step.all(_RETUNED, (rate.name,))]


def of_task(step: Transaction, queue: str, task: str) -> list[str]:
    """Return what jobs are parked under by the rates that are a task's own."""
    names = [name for kind in _OF_TASKS_BETWEEN for (name,) in step.all(_OF_TASKS, (queue, *kind))]
    return [RATE + name for name in names if rule.is_of_task(name, task)]


def look_anew(step: Transaction) -> None:
    """Let the next claims look at all who wait for a rate: when it opens was told before the clock was set back."""
    step.write_down()
    for (queue,) in step.all(_OPENING_AHEAD, (step.now,)):
        step.knocked.append(queue_topic(queue))
    step.run(_LOOK_ANEW, (step.now,))
    step.forget_rates()


def opens_at(step: Transaction, queue: str) -> int:
    """Return when a queue's own rate lets the next of its jobs start."""
    rate = of_queue(step, queue)
    return step.now if rate is None else rule.opens_at(step.rate(queue, rate.name).taken, rate, step.now)


def names(step: Transaction, job: NewJob | JobRecord) -> Iterable[str]:
    """Return what a job may be parked under by its rates."""
    return (RATE + rate.name for rate in of(step, job))


def _note(step: Transaction, queue: str, under: str, opens: int | None) -> None:
    known = step.rate(queue, under.removeprefix(RATE))
    if opens != known.opens:
        known.opens = opens
        step.run(_NOTE_OPENING, (queue, under.removeprefix(RATE), opens))
        step.line(queue).opening = True


def _of(step: Transaction, task: str, rates: Iterable[RateKey]) -> list[RateKey]:
    return rule.heeded(rates, setting(step, "task", task).rate, task)


def _read(written: str | None) -> Sequence[RateKey]:
    try:
        return rows.rates(str(written)) if written else ()
    except MsgspecError:
        # The claim that comes to the job sets it aside.
        return ()


def _first(step: Transaction, queue: str, under: str) -> tuple[bool, RateKey | None]:
    """Say whether anybody is parked under a rate, and return that of the first of them, None where it is gone."""
    row = step.one(_FIRST, (queue, under))
    if row is None:
        return False, None
    task, written = row
    rates = _of(step, task, _read(written))
    return True, next((rate for rate in rates if RATE + rate.name == under), None)
