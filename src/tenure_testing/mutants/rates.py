"""Mutants of schedules and their ticks, of rates, of fair keys and of newest first."""

from collections.abc import Iterable, Sequence

from msgspec import structs

from tenure.clock import Clock
from tenure.core.job import JobRecord, NewJob, Owner, RateKey
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.order import score_at
from tenure.core.schedule import Fate, Schedule
from tenure.storage.memory.job_indexes import OrderedJobs
from tenure.storage.memory.model import Model
from tenure.storage.protocol import RATE, Change, ClaimRequest, PauseSchedule, ScheduleResult, Tick
from tenure_testing.mutants.registry import mutant

# ── schedules ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("schedules")
class CronWithoutCompare(Model):
    """A tick advances its schedule without comparing the last tick."""

    def _advance(self, known: Schedule, tick: Tick, now: int, offset: int) -> ScheduleResult:
        return super()._advance(known, structs.replace(tick, expected=known.last_tick), now, offset)


@mutant("schedules")
class CronComparedTooLate(Model):
    """The job of a tick is enqueued before the schedule's last tick is compared."""

    def _advance(self, known: Schedule, tick: Tick, now: int, offset: int) -> ScheduleResult:
        if tick.job is not None and known.last_tick != tick.expected:
            self._fire(known, tick.job, now, offset)
        return super()._advance(known, tick, now, offset)


@mutant("schedules")
class TickInTwoSteps(Model):
    """A schedule is advanced in one step, and the job of its tick is enqueued in the next."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._owed: list[NewJob] = []

    def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Enqueue the jobs of the last call's ticks, then move on."""
        owed, self._owed = self._owed, []
        self.enqueue(owed)
        return super().plan(changes)

    def _fire(self, known: Schedule, job: NewJob, now: int, offset: int) -> Fate:
        self._owed.append(job)
        return job.ref


@mutant("schedules")
class TickNotRemembered(Model):
    """A tick creates its job but does not advance its schedule."""

    def _advance(self, known: Schedule, tick: Tick, now: int, offset: int) -> ScheduleResult:
        planned = super()._advance(known, tick, now, offset)
        if planned.ref is not None:
            self._schedules[tick.name] = known
        return planned


@mutant("schedules")
class PausedScheduleGoesOn(Model):
    """A paused schedule continues."""

    def _change(self, change: Change, now: int, offset: int) -> ScheduleResult:
        if isinstance(change, PauseSchedule):
            return ScheduleResult(change.name, "done")
        return super()._change(change, now, offset)


@mutant("schedules")
class OverlapOfTheActive(Model):
    """Only a running job of an earlier tick prevents an overlap, not a waiting one."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        states = self._indexes.unfinished_of
        self._indexes.unfinished_of = lambda schedule: [  # type: ignore[method-assign]
            state for state in states(schedule) if state is State.ACTIVE
        ]


@mutant("clock and schedules")
class ScheduleWaitsForTheClock(Model):
    """After the clock was set back, a schedule waits until the clock reaches its old time."""

    def due_schedules(self, now: int) -> tuple[tuple[Schedule, ...], int | None]:
        """Leave out the schedules that are ahead of the clock."""
        due, coming = super().due_schedules(now)
        return tuple(schedule for schedule in due if not schedule.is_ahead(now)), coming


# ── rates ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("")
class LimitIgnored(Model):
    """The limit that a handler sets for a rate or a queue is not stored."""

    def _limit(self, job: JobRecord, length: int, now: int) -> None:
        pass


@mutant("order")
class RateTakenByAnEmptyPoll(Model):
    """A claim that finds no job uses up a start of the rate."""

    def _claim(self, owner: Owner, order: ClaimRequest, now: int) -> list[Lease]:
        leases = super()._claim(owner, order, now)
        for queue in order.queues if not leases else ():
            for name, parked in self._queues[queue].parked.items():
                if name.startswith(RATE):
                    first = self._jobs[parked.first(1)[0]]
                    rates = [rate for rate in self._indexes.rates(first) if RATE + rate.name == name]
                    self._indexes.take_time(queue, rates, now)
        return leases


@mutant("order")
class RateInWindows(Model):
    """A rate counts starts in fixed windows, so that two bursts meet at an edge."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        indexes, room = self._indexes, self._indexes._room  # pyright: ignore[reportPrivateUsage]
        counts: dict[tuple[str, str, int], int] = {}

        def left(queue: str, rate: RateKey, now: int) -> tuple[int, int]:
            length = rate.interval * (rate.burst + 1)
            window = now // length
            return rate.burst + 1 - counts.get((queue, rate.name, window), 0), (window + 1) * length

        def opens_at(queue: str, rate: RateKey, now: int) -> int:
            free, following = left(queue, rate, now)
            return now if free > 0 else following

        def take_time(queue: str, rates: Iterable[RateKey], now: int) -> None:
            for rate in rates:
                place = queue, rate.name, now // (rate.interval * (rate.burst + 1))
                counts[place] = counts.get(place, 0) + 1

        def windowed(queue: str, name: str, parked: OrderedJobs, now: int) -> int:
            if not name.startswith(RATE):
                return room(queue, name, parked, now)
            first = indexes.jobs[parked.first(1)[0]]
            (rate,) = (rate for rate in indexes.rates(first) if RATE + rate.name == name)
            return max(0, left(queue, rate, now)[0])

        indexes.opens_at, indexes.take_time, indexes._room = opens_at, take_time, windowed  # type: ignore[method-assign]


@mutant("order")
class RateForgottenOnRetry(Model):
    """Only the first start of a job counts for its rates."""

    def _start(self, job: JobRecord, owner: Owner, now: int) -> Lease:
        taken = dict(self._indexes.reserved)
        lease = super()._start(job, owner, now)
        if job.starts:
            self._indexes.reserved = taken
        return lease


@mutant("order")
class RateForgottenBySweeps(Model):
    """A sweep forgets reservations of rates that are not over yet."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        forget = self._indexes.drop_outdated
        self._indexes.drop_outdated = lambda now: forget(now + 3_600_000_000)  # type: ignore[method-assign]


@mutant("order")
class RateNeverOpens(Model):
    """A job parked by a rate is never unparked, neither by claims nor by sweeps."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        unpark = self._indexes.unpark

        def never(queue: str, name: str, now: int, *, room: int | None = None) -> int:
            return 0 if name.startswith(RATE) else unpark(queue, name, now, room=room)

        self._indexes.unpark = never  # type: ignore[method-assign]


@mutant("order")
class QueueWithoutRate(Model):
    """A queue gives out its jobs as if it had no rate."""

    def _queue_opens_at(self, queue: str, now: int) -> int:
        return now


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("tenants")
class FairByTheClock(Model):
    """A tenant's next job is placed after its last one or the clock, not after the current front of the queue."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        score = self._indexes.score

        def by_the_clock(job: JobRecord, at: int, now: int) -> int:
            fairness = self._queues[job.queue].fairness
            if fairness is not None:
                fairness.front = at
                fairness.reached.clear()
            return score(job, at, now)

        self._indexes.score = by_the_clock  # type: ignore[method-assign]


@mutant("tenants")
class FairToNobody(Model):
    """Tenants are served in the order of their jobs."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._indexes.score = lambda job, at, now: score_at(at, boost=job.boost, lifo=job.lifo)  # type: ignore[method-assign]


@mutant("tenants")
class FairWithoutWeights(Model):
    """All tenants have the same share."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        score = self._indexes.score
        self._indexes.score = lambda job, at, now: score(structs.replace(job, weight=1), at, now)  # type: ignore[method-assign]


@mutant("order")
class NewestLast(Model):
    """`lifo` is ignored: such a job is placed last, as all others are."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        score = self._indexes.score
        self._indexes.score = lambda job, at, now: score(structs.replace(job, lifo=False), at, now)  # type: ignore[method-assign]


@mutant("order")
class NewestFirstUntilItIsDue(Model):
    """A delayed job with `lifo` is placed last when it becomes due."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        promoted = self._indexes.promoted
        self._indexes.promoted = lambda job, now: structs.replace(  # type: ignore[method-assign]
            promoted(job, now), score=job.run_at - job.boost if job.lifo else promoted(job, now).score
        )
