"""The model's schedules: create, pause and remove them, and advance them so that each tick happens once."""

from collections.abc import Sequence

from tenure.clock import Clock
from tenure.core.job import NewJob, Ref
from tenure.core.schedule import Fate, Schedule, after_tick, fate_of, may_fire, paused_at, redefined
from tenure.storage.memory.enqueue import EnqueueRules
from tenure.storage.protocol import (
    DUE_LIMIT,
    Change,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ScheduleResult,
    Tick,
)


class ScheduleStore(EnqueueRules):
    """Stores schedules and their progress."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._schedules: dict[str, Schedule] = {}

    def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Change schedules, in the order given."""
        now = self._clock.now()
        planned = [self._change(change, now, offset) for offset, change in enumerate(changes)]
        self._shelf.let_in(now)
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
                return self._move_on(known, change, now, offset)
        return ScheduleResult(change.name, "done")

    def _move_on(self, known: Schedule, asked: Tick, now: int, offset: int) -> ScheduleResult:
        if not known.is_at_tick(asked.expected):
            return ScheduleResult(asked.name, "superseded")
        fate = None if asked.job is None else self._fire(known, asked.job, now, offset)
        after, told = after_tick(known, asked.tick, asked.next_tick, missed=asked.missed, fate=fate, now=now)
        self._schedules[asked.name] = after
        for event in told:
            self._record(event, now)
        return ScheduleResult(asked.name, "done", fate if isinstance(fate, Ref) else None)

    def _fire(self, known: Schedule, job: NewJob, now: int, offset: int) -> Fate:
        if not may_fire(known.overlap, self._shelf.unfinished_of(known.name)):
            return "overlap"
        receipt = self._remember(job, now, offset)
        return fate_of(receipt.made, receipt.ref)

    def _due_schedules(self, now: int) -> tuple[tuple[Schedule, ...], int | None]:
        """Return the due schedules, and how long until the next tick of another one.

        Schedules with a due tick come first, earliest first. Then come those whose last tick lies ahead of the clock.
        """
        going = [schedule for schedule in self._schedules.values() if not schedule.paused]
        ticking = sorted((one.next_tick, one.name) for one in going if one.next_tick is not None)
        come = [name for tick, name in ticking if tick <= now]
        come += sorted(one.name for one in going if one.is_ahead(now) and one.name not in come)
        coming = [tick for tick, _ in ticking if tick > now]
        return tuple(self._schedules[name] for name in come[:DUE_LIMIT]), coming[0] - now if coming else None
