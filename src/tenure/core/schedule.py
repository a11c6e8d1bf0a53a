"""A stored schedule: the job to enqueue, the ticks, its progress, and the rules for each tick."""

from collections.abc import Iterable
from typing import Literal, assert_never

from msgspec import Struct, structs

from tenure.core.deduplication import EnqueueAction
from tenure.core.duration import moment
from tenure.core.events import Event, ScheduleFired, ScheduleMissed, ScheduleSkipped
from tenure.core.job import NewJob, Ref
from tenure.core.lifecycle import State

Missed = Literal["skip", "latest", "all"]
Overlap = Literal["skip", "queue_one", "allow"]

Fate = Ref | Literal["overlap", "throttled", "duplicate"]
"""The result of a tick that should get a job: the job that it made or was merged into, or why it made none."""

GRACE = 10_000_000
"""By how much a tick may be late before it counts as missed, in microseconds: the time that a change of leader may
take."""

AHEAD = 10_000_000
"""How far the last tick may lie ahead of the clock before the clock counts as set back, in microseconds."""


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule. Its ticks follow `cron` in the time zone `tz`, or every `every` microseconds counted from 1970.

    `job`: what each tick enqueues; its id is left empty. `missed`: the policy for ticks that are late by more than
    `grace`;
    `most`: how many of them `all` makes up for. `overlap`: the policy for a tick while a job of an earlier tick is
    unfinished. `last_tick`: the latest tick that was handled, or when the schedule was created; `next_tick`: the next
    due tick, None if there are no more. `last_id`: the job of the latest tick that made one.
    `limit`: after how many runs it ends; `runs`: how many of its ticks have made a job or were merged into one.
    `start` and `end`: no tick lies before or after these instants. `immediately`: its creation is its first tick.
    """

    name: str
    job: NewJob
    cron: str | None = None
    tz: str = "UTC"
    every: int | None = None
    missed: Missed = "latest"
    most: int | None = None
    overlap: Overlap = "skip"
    grace: int = GRACE
    paused: bool = False
    created: int = 0
    last_tick: int = 0
    next_tick: int | None = None
    last_id: str | None = None
    limit: int | None = None
    start: int | None = None
    end: int | None = None
    immediately: bool = False
    runs: int = 0

    @property
    def is_spent(self) -> bool:
        """True if the schedule has had as many runs as its limit allows."""
        return self.limit is not None and self.runs >= self.limit

    @property
    def begins_now(self) -> bool:
        """True if its creation is a tick that has not been handled yet."""
        return self.immediately and self.next_tick == self.created and self.last_tick == self.created - 1

    def ticks_as(self, other: "Schedule") -> bool:
        """Return True if both have the same ticks."""
        mine = self.cron, self.tz, self.every, self.start, self.end, self.limit
        return mine == (other.cron, other.tz, other.every, other.start, other.end, other.limit)

    def is_at_tick(self, expected: int) -> bool:
        """Return True if the schedule may advance, given that the caller expects this last tick."""
        return not self.paused and not self.is_spent and self.last_tick == expected

    def is_ahead(self, now: int) -> bool:
        """Return True if the last tick lies well after now: the clock was set back, so the next tick is far off."""
        return self.last_tick > now + AHEAD


def redefined(known: Schedule | None, new: Schedule, now: int) -> Schedule:
    """Return a schedule after a put: its definition is that of `new`, its progress that of `known`.

    If its ticks change, it continues from the instant of the put, and ticks that it would have had before are not
    missed. It does the same if the clock was set back.
    """
    if known is None:
        return _created(new)
    set_back = known.is_ahead(now)
    same = known.ticks_as(new) and not set_back
    last_tick = new.last_tick if set_back else max(new.last_tick, known.last_tick)
    is_spent = new.limit is not None and known.runs >= new.limit
    next_tick = known.next_tick if same else new.next_tick
    return Schedule(
        name=new.name,
        job=new.job,
        cron=new.cron,
        tz=new.tz,
        every=new.every,
        missed=new.missed,
        most=new.most,
        overlap=new.overlap,
        grace=new.grace,
        paused=known.paused,
        created=known.created,
        last_tick=known.last_tick if same else last_tick,
        next_tick=None if is_spent else next_tick,
        last_id=known.last_id,
        limit=new.limit,
        start=new.start,
        end=new.end,
        immediately=new.immediately,
        runs=known.runs,
    )


def _created(new: Schedule) -> Schedule:
    begun = new.start is None or new.start <= new.created
    ended = new.end is not None and new.end < new.created
    if not new.immediately or not begun or ended:
        return new
    return structs.replace(new, last_tick=new.created - 1, next_tick=new.created)


def paused_at(known: Schedule, now: int, *, paused: bool, next_tick: int | None) -> Schedule:
    """Return a schedule after a pause or a resume: ticks that passed in a pause are neither fired nor missed."""
    if paused or not known.paused:
        return structs.replace(known, paused=paused)
    last_tick = now if known.is_ahead(now) else max(known.last_tick, now)
    next_tick = None if known.is_spent else next_tick
    return structs.replace(known, paused=False, last_tick=last_tick, next_tick=next_tick)


def may_fire(overlap: Overlap, unfinished: Iterable[State]) -> bool:
    """Return True if a tick may make a job, given the states of unfinished jobs of earlier ticks."""
    match overlap:
        case "skip":
            return not any(True for _ in unfinished)
        case "queue_one":
            return all(state is State.ACTIVE for state in unfinished)
        case "allow":
            return True
        case _:
            assert_never(overlap)


def fate_of(action: EnqueueAction, ref: Ref) -> Fate:
    """Return the result of a tick whose job was enqueued, given the result of that call."""
    match action:
        case "created" | "replaced" | "collected":
            return ref
        case "throttled" | "duplicate":
            return action
        case "pending":
            raise AssertionError("a tick belongs to no transaction of a user")
        case _:
            assert_never(action)


def after_tick(
    known: Schedule, tick: int, next_tick: int | None, *, missed: int, fate: Fate | None, now: int
) -> tuple[Schedule, list[Event]]:
    """Return a schedule after a tick, and the events: for the missed ticks first, then for the tick itself.

    `missed`: how many ticks are given up. `fate`: None if the tick makes no job.
    """
    at = moment(tick)
    after = structs.replace(known, last_tick=tick, next_tick=next_tick)
    events: list[Event] = []
    if missed:
        events.append(ScheduleMissed(name=known.name, tick=at, ticks=missed, policy=known.missed))
    if isinstance(fate, Ref):
        late_by = max(0, now - tick) / 1_000_000
        events.append(ScheduleFired(name=known.name, tick=at, late_by=late_by, queue=fate.queue, id=fate.id))
        after = structs.replace(after, last_id=fate.id, runs=known.runs + 1)
        if after.is_spent:
            after = structs.replace(after, next_tick=None)
    elif fate is not None:
        events.append(ScheduleSkipped(name=known.name, tick=at, reason=fate))
    return after, events
