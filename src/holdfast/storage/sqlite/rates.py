"""Rates in SQL: whose start they put off, and when they let the next one start (core/rate.py).

Of each there is one number: up to when its time is taken, by starts alone. A job that must wait for its rate stands
parked under that rate's name, out of everybody's way; beside the number stands when the first of these may start, so
that a claim finds the rates that have opened, and the others cost it nothing.
"""

from collections.abc import Iterable

from holdfast.core import rate as rule
from holdfast.core.job import JobRecord, NewJob, RateKey
from holdfast.storage.protocol import PROMOTE_LIMIT, RATE, SCAN_LIMIT, TASK_RATE, queue_topic
from holdfast.storage.sqlite import rows
from holdfast.storage.sqlite.queries import query
from holdfast.storage.sqlite.settings import setting
from holdfast.storage.sqlite.step import Step

_NOTE_OPENING = query("rates", "note_opening")
_OPENING_AHEAD = query("rates", "opening_ahead")
_LOOK_ANEW = query("rates", "look_anew")
_OPEN = query("rates", "open")
_FIRST = query("rates", "first")


def of(step: Step, job: NewJob | JobRecord) -> list[RateKey]:
    """Return the rates that a job's start takes time of: its own, its task's setting in the place of the task's."""
    return _of(step, job.task, job.rates)


def closed(step: Step, job: JobRecord) -> str | None:
    """Return what a job must be parked under before its rates let it start, None where they all do."""
    for rate in of(step, job):
        if rule.opens_at(step.rate(job.queue, rate.name).taken, rate, step.now) > step.now:
            return RATE + rate.name
    return None


def of_queue(step: Step, queue: str) -> RateKey | None:
    """Return the rate that a queue is set, None where it is free."""
    rate = setting(step, "queue", queue).rate
    return rate if rate is not None and rate.interval else None


def free(step: Step, queue: str) -> int:
    """Return how many jobs may start now by the queue's own rate, or may be looked at where it has none."""
    rate = of_queue(step, queue)
    return SCAN_LIMIT if rate is None else rule.free(step.rate(queue, rate.name).taken, rate, step.now)


def take(step: Step, job: JobRecord) -> None:
    """Take the time of a start."""
    told = of_queue(step, job.queue)
    for rate in [*of(step, job), *(() if told is None else (told,))]:
        known = step.rate(job.queue, rate.name)
        known.taken = rule.taken(known.taken, rate, step.now)


def room(step: Step, queue: str, under: str) -> int:
    """Return how many of those parked under a rate may start now: all, where the first of them has it no more."""
    found, rate = _first(step, queue, under)
    if not found:
        return 0
    return SCAN_LIMIT if rate is None else rule.free(step.rate(queue, rate.name).taken, rate, step.now)


def opened(step: Step, queue: str) -> list[str]:
    """Return what those are parked under whose rates let somebody start by now."""
    if not step.line(queue).opening:
        return []
    return [RATE + name for (name,) in step.all(_OPEN, (queue, step.now))]


def starts(step: Step, queue: str, under: str) -> tuple[int, int | None]:
    """Return how many of those parked under a rate are to be let in now, and up to when its time is taken by them.

    Those let in before are taken to have started, though they may stand in line: in the place of who leaves that
    without starting another is let in at once.
    """
    found, rate = _first(step, queue, under)
    if rate is None:
        return (SCAN_LIMIT if found else 0), None
    known = step.rate(queue, rate.name)
    until = known.taken if known.opens is None else max(known.taken, rule.taken_if_open(known.opens, rate))
    room = min(rule.free(until, rate, step.now), PROMOTE_LIMIT)
    return room, rule.taken(until, rate, step.now, starts=room)


def note_opening(step: Step, queue: str, under: str, *, until: int | None = None) -> None:
    """Note when a rate lets the first of those start who are parked under it, or that there is nobody any more.

    `until`: up to when its time is taken with those that were let in before.
    """
    found, rate = _first(step, queue, under)
    opens: int | None = None
    if found:
        opens = step.now
    if rate is not None:
        taken = step.rate(queue, rate.name).taken if until is None else until
        opens = rule.opens_at(taken, rate, step.now)
    _note(step, queue, under, opens)


def forget_opening(step: Step, queue: str, under: str) -> None:
    """Forget when a rate opens: it has changed."""
    _note(step, queue, under, None)


def note_openings(step: Step, queue: str) -> None:
    """Note when the rates of a queue that have just been taken of let the next of their parked jobs start."""
    for under in opened(step, queue):
        note_opening(step, queue, under)


def look_anew(step: Step) -> None:
    """Let the next claims look at all who wait for a rate: when it opens was told before the clock was set back."""
    step.write_down()
    for (queue,) in step.all(_OPENING_AHEAD, (step.now,)):
        step.knocked.append(queue_topic(queue))
    step.run(_LOOK_ANEW, (step.now, step.now))
    step.forget_rates()


def opens_at(step: Step, queue: str) -> int:
    """Return when a queue's own rate lets the next of its jobs start."""
    rate = of_queue(step, queue)
    return step.now if rate is None else rule.opens_at(step.rate(queue, rate.name).taken, rate, step.now)


def names(step: Step, job: NewJob | JobRecord) -> Iterable[str]:
    """Return what a job may be parked under by its rates."""
    return (RATE + rate.name for rate in of(step, job))


def of_task(task: str) -> str:
    """Return what jobs are parked under by the rate of their task."""
    return RATE + TASK_RATE + task


def _note(step: Step, queue: str, under: str, opens: int | None) -> None:
    known = step.rate(queue, under.removeprefix(RATE))
    if opens != known.opens:
        known.opens = opens
        step.run(_NOTE_OPENING, (queue, under.removeprefix(RATE), opens))
        step.line(queue).opening = True


def _of(step: Step, task: str, rates: Iterable[RateKey]) -> list[RateKey]:
    told = setting(step, "task", task).rate
    if told is None:
        return [rate for rate in rates if rate.interval]
    return [rate for rate in (told, *rates) if rate.interval and (rate is told or rate.name != told.name)]


def _first(step: Step, queue: str, under: str) -> tuple[bool, RateKey | None]:
    """Say whether anybody is parked under a rate, and return that of the first of them, None where it is gone."""
    row = step.one(_FIRST, (queue, under))
    if row is None:
        return False, None
    task, written = row
    rates = _of(step, task, rows.rates(written) if written else ())
    return True, next((rate for rate in rates if RATE + rate.name == under), None)
