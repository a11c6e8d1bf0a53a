"""The model's schedules: create, pause and remove them, and advance them so that each tick happens once."""

from collections.abc import Sequence

from tenure.clock import Clock
from tenure.core.job import NewJob, Ref
from tenure.core.schedule import Fate, Schedule, after_tick, fate_of, may_fire, paused_at, redefined
from tenure.storage.memory.waiting import WaitingRules
from tenure.storage.protocol import (
    DUE_LIMIT,
    Change,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ScheduleResult,
    Tick,
)


class ScheduleStore(WaitingRules):
    """Stores schedules and their progress."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._schedules: dict[str, Schedule] = {}

    def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Change schedules, in the order given."""
        now = self._clock.now()
        planned = [self._change(change, now, offset) for offset, change in enumerate(changes)]
        self._deliver_immediate(now)
        self._indexes.release_freed(now)
        return planned

    def _change(self, change: Change, now: int, offset: int) -> ScheduleResult:
        known = self._schedules.get(change.name)
        match change:
            case PutSchedule(schedule):
                self._schedules[change.name] = redefined(known, schedule, now)
            case _ if known is None:
                return ScheduleResult(change.name, "gone")
            case PauseSchedule(paused=paused, next_tick=next_tick):
                self._schedules[change.name] = paused_at(known, now, paused=paused, next_tick=next_tick)
            case RemoveSchedule():
                del self._schedules[change.name]
            case Tick():
                return self._advance(known, change, now, offset)
        return ScheduleResult(change.name, "done")

    def _advance(self, known: Schedule, tick: Tick, now: int, offset: int) -> ScheduleResult:
        moved = tick.job is not None and self._setting("queue", tick.job.queue).moved_to is not None
        if moved or not known.is_at_tick(tick.expected):
            return ScheduleResult(tick.name, "superseded")
        fate = None if tick.job is None else self._fire(known, tick.job, now, offset)
        after, events = after_tick(known, tick.tick, tick.next_tick, missed=tick.missed, fate=fate, now=now)
        self._schedules[tick.name] = after
        for event in events:
            self._record(event, now)
        return ScheduleResult(tick.name, "done", fate if isinstance(fate, Ref) else None)

    def _fire(self, known: Schedule, job: NewJob, now: int, offset: int) -> Fate:
        if not may_fire(known.overlap, self._indexes.unfinished_of(known.name)):
            return "overlap"
        receipt = self._enqueue(job, now, offset)
        return fate_of(receipt.action, receipt.ref)

    def next_tick(self) -> int | None:
        """Return the earliest next tick of the schedules that are not paused, or None without one."""
        ticks = (each.next_tick for each in self._schedules.values() if not each.paused)
        return min((tick for tick in ticks if tick is not None), default=None)

    def due_schedules(self, now: int) -> tuple[tuple[Schedule, ...], int | None]:
        """Return the due schedules, and how long until the next tick of another one.

        Schedules with a due tick come first, earliest first. Then come those whose last tick lies ahead of the clock.
        """
        going = [schedule for schedule in self._schedules.values() if not schedule.paused]
        ticking = sorted((each.next_tick, each.name) for each in going if each.next_tick is not None)
        due = [name for tick, name in ticking if tick <= now]
        due += sorted(each.name for each in going if each.is_ahead(now) and each.name not in due)
        later = [tick for tick, _ in ticking if tick > now]
        return tuple(self._schedules[name] for name in due[:DUE_LIMIT]), later[0] - now if later else None
