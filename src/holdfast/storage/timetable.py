"""The model's schedules: put, paused, removed, and moved on tick by tick, each tick once."""

from collections.abc import Sequence
from typing import Literal

from msgspec import structs

from holdfast.clock import Clock
from holdfast.core.duration import moment
from holdfast.core.events import Event, ScheduleFired, ScheduleMissed, ScheduleSkipped
from holdfast.core.job import NewJob
from holdfast.core.schedule import Schedule, may_fire, paused_at, put_over
from holdfast.storage.intake import Intake
from holdfast.storage.protocol import (
    DUE_LIMIT,
    Change,
    PauseSchedule,
    Planned,
    PutSchedule,
    RemoveSchedule,
    Tick,
)

Became = Literal["fired", "overlap", "duplicate"]


class Timetable(Intake):
    """Remembers schedules, and who has dealt with which of their ticks."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._schedules: dict[str, Schedule] = {}

    def plan(self, changes: Sequence[Change]) -> list[Planned]:
        """Change schedules, in the order given."""
        now = self._clock.now()
        planned = [self._change(change, now, offset) for offset, change in enumerate(changes)]
        self._shelf.let_in(now)
        return planned

    def _change(self, change: Change, now: int, offset: int) -> Planned:
        known = self._schedules.get(change.name)
        match change:
            case PutSchedule(schedule):
                self._schedules[change.name] = schedule if known is None else put_over(known, schedule)
            case _ if known is None:
                return Planned(change.name, "gone")
            case PauseSchedule(paused=paused, next_tick=next_tick):
                if paused != known.paused:
                    self._schedules[change.name] = paused_at(known, now, paused=paused, next_tick=next_tick)
            case RemoveSchedule():
                del self._schedules[change.name]
            case Tick():
                return self._move_on(known, change, now, offset)
        return Planned(change.name, "done")

    def _move_on(self, known: Schedule, asked: Tick, now: int, offset: int) -> Planned:
        if known.paused or known.last_tick != asked.expected:
            return Planned(asked.name, "superseded")
        became = None if asked.job is None else self._fire(known, asked.job, now, offset)
        for event in told(known, asked, now, became):
            self._record(event, now)
        made = asked.job.ref if asked.job is not None and became == "fired" else None
        self._schedules[asked.name] = moved_on(known, asked, None if made is None else made.id)
        return Planned(asked.name, "done", made)

    def _fire(self, known: Schedule, job: NewJob, now: int, offset: int) -> Became:
        if not may_fire(known.overlap, self._shelf.unfinished_of(known.name)):
            return "overlap"
        return "fired" if self._remember(job, now, offset).made == "created" else "duplicate"

    def _due_schedules(self, now: int) -> tuple[tuple[Schedule, ...], int | None]:
        """Return the schedules with a tick that has come, the longest due first, and how long until another has one."""
        ticking = sorted(
            (schedule.next_tick, schedule.name)
            for schedule in self._schedules.values()
            if schedule.next_tick is not None and not schedule.paused
        )
        due = [self._schedules[name] for tick, name in ticking if tick <= now][:DUE_LIMIT]
        ahead = [tick for tick, _ in ticking if tick > now]
        return tuple(due), ahead[0] - now if ahead else None


def moved_on(known: Schedule, asked: Tick, made: str | None) -> Schedule:
    """Return a schedule that has dealt with a tick."""
    return structs.replace(
        known, last_tick=asked.tick, next_tick=asked.next_tick, last_id=known.last_id if made is None else made
    )


def told(known: Schedule, asked: Tick, now: int, became: Became | None) -> list[Event]:
    """Return what is told of a tick: of those given up with it, and of itself."""
    tick = moment(asked.tick)
    events: list[Event] = []
    if asked.missed:
        events.append(ScheduleMissed(name=asked.name, tick=tick, ticks=asked.missed, policy=known.missed))
    if became == "fired" and asked.job is not None:
        late_by = max(0, now - asked.tick) / 1_000_000
        events.append(
            ScheduleFired(name=asked.name, tick=tick, late_by=late_by, queue=asked.job.queue, id=asked.job.id)
        )
    elif became is not None and became != "fired":
        events.append(ScheduleSkipped(name=asked.name, tick=tick, reason=became))
    return events
