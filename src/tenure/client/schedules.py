"""Schedules: what is enqueued by itself, and when. They live in the storage, not in whichever process leads."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from datetime import datetime, timedelta
from random import Random
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from msgspec import structs

from tenure.background_loop import PORTAL
from tenure.client.handle import Job
from tenure.client.task import AsyncTask, EncodedCall, PlainTask, Task
from tenure.core.check import named, no_others, of_kind, shown, whole
from tenure.core.cron import Cron, Every
from tenure.core.duration import Duration, moment
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import NewJob
from tenure.core.schedule import Overlap, Schedule
from tenure.core.ticks import begun, rhythm_of
from tenure.errors import StorageError, StorageUnavailableError, UnknownScheduleError, UsageError
from tenure.options import TaskSettings
from tenure.options.schedules import MissedTicks, catching_up, graceful, overlapping
from tenure.storage.protocol import DUE_LIMIT, EnqueueResult, PauseSchedule, PutSchedule, RemoveSchedule, Storage

P = ParamSpec("P")
R = TypeVar("R")
TaskT = TypeVar("TaskT", bound=Task[Any, Any])

AT_ONCE = 5.0
"""Seconds in which a start puts the schedules that it can, when a part of the storage is out of reach."""

PATIENCE = ExponentialDelay(0.5, 5.0)
"""Between two tries to put what a start has left."""

LONGEST_NAME = 200
"""How many bytes the name of a schedule may have: the ids of its jobs begin with it."""


def schedule_of(
    name: object,
    job: NewJob,
    *,
    cron: object = None,
    every: Duration | None = None,
    tz: object = None,
    missed: object = "latest",
    overlap: object = "skip",
    grace: Duration,
) -> Schedule:
    """Return a schedule that has not begun: what is enqueued, and when.

    Raises:
        UsageError: a field has no valid value, or there is not exactly one of `cron` and `every`.
    """
    if (cron is None) == (every is None):
        raise UsageError('give either cron="0 4 * * *" or every="30s", one of them')
    if every is not None and tz is not None:
        raise UsageError(f"tz = {shown(tz)} means nothing to an interval; leave it out, or give cron instead of every")
    if job.run_at is not None:
        raise UsageError("run_at contradicts a schedule, whose ticks say when; leave it out, or give a delay")
    read = None if cron is None else Cron.parse(cron, "UTC" if tz is None else tz)
    policy, most = catching_up(missed)
    return Schedule(
        name=scheduled_name(name),
        job=structs.replace(job, id=""),
        cron=None if read is None else read.text,
        tz="UTC" if read is None else read.zone.key,
        every=None if every is None else Every.parse(every).interval,
        missed=policy,
        most=most,
        overlap=overlapping(overlap),
        grace=graceful(grace),
    )


def only_options(options: Iterable[str], own: Iterable[str]) -> None:
    """Make sure that what a schedule is given beside its own are options of a task.

    Raises:
        UsageError: one is none, or is said where a task is made.
    """
    given = tuple(options)
    for name in ("collect", "version", "since"):
        if name in given:
            raise UsageError(f"{name} is said where a task is made; put @app.task({name}=...) below the schedule")
    no_others(given, (*own, *TaskSettings.__annotations__))


def scheduled_name(name: object) -> str:
    """Return the name of a schedule.

    Raises:
        UsageError: it is none, or too long.
    """
    read = named(name, field="name")
    if len(read.encode()) > LONGEST_NAME:
        raise UsageError(f"name = {shown(name)} has over {LONGEST_NAME} bytes; give the schedule a shorter name=")
    return read


async def put_all(storage: Storage, schedules: Collection[Schedule]) -> tuple[Schedule, ...]:
    """Put what is declared in code into the storage; what is there keeps its last tick, its pause and its history.

    Return the schedules that could not be put, or not everywhere, for a part of the storage is out of reach.

    Raises:
        StorageError: the storage refuses them.
    """
    if not schedules:
        return ()
    try:
        await _put(storage, (await storage.survey()).now, schedules)
    except StorageUnavailableError:
        until = asyncio.get_running_loop().time() + AT_ONCE
        by_queue: defaultdict[str, list[Schedule]] = defaultdict(list)
        for schedule in schedules:
            by_queue[schedule.job.queue].append(schedule)
        left: list[Schedule] = []
        for queue, some in by_queue.items():
            try:
                # Each try at a part that does not answer takes seconds.
                async with asyncio.timeout_at(until):
                    await _put(storage, (await storage.survey([queue])).now, some)
            except (StorageUnavailableError, TimeoutError):
                left += some
        return tuple(left)
    return ()


async def put_later(storage: Storage, schedules: Collection[Schedule], *, rng: Random, logger: logging.Logger) -> None:
    """Put what `put_all` has left, as soon as the storage can be reached."""
    failures = 0
    while schedules:
        failures += 1
        if failures == 1:
            names = ", ".join(schedule.name for schedule in schedules)
            logger.warning("cannot put the schedules %s, trying again: a part of the storage is out of reach", names)
        await asyncio.sleep(PATIENCE.rest(failures, rng))
        try:
            schedules = await put_all(storage, schedules)
        except StorageError as error:
            logger.error("the storage refuses schedules that code declares: %s", error)
            return


async def _put(storage: Storage, now: int, schedules: Collection[Schedule]) -> None:
    changes = [PutSchedule(begun(schedule, now)) for schedule in schedules]
    for start in range(0, len(changes), DUE_LIMIT):
        await storage.plan(changes[start : start + DUE_LIMIT])


async def look_up(storage: Storage, name: object) -> tuple[Schedule, int]:
    """Return a schedule by its name, and the storage's now.

    Raises:
        UnknownScheduleError: there is none of that name.
        StorageError: the storage cannot be asked.
    """
    wanted = scheduled_name(name)
    survey = await storage.survey()
    for schedule in survey.schedules:
        if schedule.name == wanted:
            return schedule, survey.now
    known = ", ".join(sorted(schedule.name for schedule in survey.schedules)) or "none"
    raise UnknownScheduleError(f"there is no schedule {wanted!r}; known are: {known}")


async def pause(storage: Storage, name: object, *, paused: bool) -> Schedule:
    """Pause a schedule, or let it go on with the tick that comes next; return what it is then.

    Raises:
        UnknownScheduleError: there is none of that name.
        StorageError: the storage cannot be asked.
    """
    schedule, now = await look_up(storage, name)
    next_tick = None if paused else rhythm_of(schedule).next_after(now)
    await _change(storage, PauseSchedule(schedule.name, paused, next_tick))
    return (await look_up(storage, name))[0]


async def remove(storage: Storage, name: object) -> None:
    """Forget a schedule.

    Raises:
        UnknownScheduleError: there is none of that name.
        StorageError: the storage cannot be asked.
    """
    await _change(storage, RemoveSchedule((await look_up(storage, name))[0].name))


async def trigger(storage: Storage, name: object, job_id: str) -> tuple[EnqueueResult, NewJob]:
    """Enqueue what a schedule enqueues, now and beside its ticks; return what became of it, and the call.

    Raises:
        UnknownScheduleError: there is none of that name.
        StorageError: the job may have been remembered or not.
    """
    schedule, _ = await look_up(storage, name)
    call = structs.replace(schedule.job, id=job_id, schedule=schedule.name)
    (receipt,) = await storage.enqueue([call])
    return receipt, call


async def coming(storage: Storage, name: object, count: int) -> tuple[datetime, ...]:
    """Return when a schedule's next ticks are, whether it is paused or not.

    Raises:
        UnknownScheduleError: there is none of that name.
        StorageError: the storage cannot be asked.
    """
    schedule, now = await look_up(storage, name)
    rhythm, ticks = rhythm_of(schedule), list[datetime]()
    while len(ticks) < count and (tick := rhythm.next_after(now)) is not None:
        ticks.append(moment(tick))
        now = tick
    return tuple(ticks)


async def _change(storage: Storage, change: PauseSchedule | RemoveSchedule) -> None:
    (planned,) = await storage.plan([change])
    if planned.verdict == "gone":
        raise UnknownScheduleError(f"there is no schedule {change.name!r} any more")


class ScheduleDecorator(Protocol):
    """What `@app.cron(...)` and `@app.every(...)` give: a decorator for functions and for tasks."""

    @overload
    def __call__(self, task: TaskT, /) -> TaskT: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class Schedules:
    """The schedules of an app's storage: `app.schedules`. Those that code declares are among them."""

    def __init__(
        self,
        storage: Callable[[], Awaitable[Storage]],
        *,
        new_id: Callable[[], str],
        handle: Callable[[EnqueueResult, NewJob], Job[Any]],
        grace: timedelta,
    ) -> None:
        """Take the way to the storage, what makes ids and handles of what was enqueued, and the built-in grace."""
        self._storage = storage
        self._new_id = new_id
        self._handle = handle
        self._grace = grace

    async def put(
        self,
        name: str,
        call: EncodedCall[Any],
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        missed: MissedTicks = "latest",
        overlap: Overlap = "skip",
        grace: Duration | None = None,
    ) -> Schedule:
        """Make a schedule, or change the one of this name: `put("nightly", report.call("all"), cron="0 4 * * *")`.

        One that is there keeps its last tick, its pause and its history. With another `cron` or `every` it goes on from
        now: the ticks it would have had are not missed. The jobs get ids of their own, whatever the call's options say.
        All else is as with `app.cron`.

        Raises:
            UsageError: a field has no valid value, or there is not exactly one of `cron` and `every`.
            StorageError: it may have been put or not; putting it again does no harm.
        """
        of_kind(call, EncodedCall, field="call", remedy="write task.call(...)")
        made = schedule_of(
            name,
            call.job,
            cron=cron,
            every=every,
            tz=tz,
            missed=missed,
            overlap=overlap,
            grace=self._grace if grace is None else grace,
        )
        return await self._put(made)

    async def list(self) -> tuple[Schedule, ...]:
        """Return all schedules, by name.

        Raises:
            StorageError: the storage cannot be asked.
        """
        survey = await (await self._storage()).survey()
        return tuple(sorted(survey.schedules, key=lambda schedule: schedule.name))

    async def get(self, name: str) -> Schedule:
        """Return a schedule: what it enqueues and when, its last and its next tick (microseconds since 1970).

        Raises:
            UnknownScheduleError: there is none of that name.
            StorageError: the storage cannot be asked.
        """
        return (await look_up(await self._storage(), name))[0]

    async def pause(self, name: str) -> Schedule:
        """Let a schedule's ticks make no jobs; the jobs it has made go on.

        Raises:
            UnknownScheduleError: there is none of that name.
            StorageError: the storage cannot be asked.
        """
        return await pause(await self._storage(), name, paused=True)

    async def resume(self, name: str) -> Schedule:
        """Let a schedule go on with the tick that comes next; those that went by in the pause are not missed.

        Raises:
            UnknownScheduleError: there is none of that name.
            StorageError: the storage cannot be asked.
        """
        return await pause(await self._storage(), name, paused=False)

    async def update(
        self,
        name: str,
        call: EncodedCall[Any] | None = None,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        missed: MissedTicks | None = None,
        overlap: Overlap | None = None,
        grace: Duration | None = None,
    ) -> Schedule:
        """Change what is given of a schedule, and leave the rest as it is.

        Of one that code declares, the code wins again when a worker starts.

        Raises:
            UnknownScheduleError: there is none of that name.
            UsageError: a field has no valid value.
            StorageError: it may have been changed or not; doing it again does no harm.
        """
        if call is not None:
            of_kind(call, EncodedCall, field="call", remedy="write task.call(...)")
        known, _ = await look_up(await self._storage(), name)
        if cron is None and every is None:
            cron = known.cron
            every = None if known.every is None else timedelta(microseconds=known.every)
        if cron is not None and tz is None:
            tz = known.tz
        made = schedule_of(
            known.name,
            known.job if call is None else call.job,
            cron=cron,
            every=every,
            tz=tz,
            missed=known.missed if missed is None else missed,
            overlap=known.overlap if overlap is None else overlap,
            grace=timedelta(microseconds=known.grace) if grace is None else grace,
        )
        return await self._put(structs.replace(made, most=known.most) if missed is None else made)

    async def trigger(self, name: str) -> Job[Any]:
        """Enqueue what a schedule enqueues now, also of one that is paused; its ticks come as they would have.

        The job has an id of its own and no `scheduled_for`. While it is unfinished, `overlap` counts it. Where the
        task's options let no job be made, `made` of the handle says so; nothing is raised for that.

        Raises:
            UnknownScheduleError: there is none of that name.
            StorageError: the job may have been remembered or not.
        """
        return self._handle(*await trigger(await self._storage(), name, self._new_id()))

    async def remove(self, name: str) -> None:
        """Forget a schedule; the jobs it has made stay. One that code declares comes back when a worker starts.

        Raises:
            UnknownScheduleError: there is none of that name.
            StorageError: the storage cannot be asked.
        """
        await remove(await self._storage(), name)

    async def next(self, name: str, count: int = 1) -> tuple[datetime, ...]:
        """Return when the next ticks of a schedule are by the storage's clock, paused or not.

        Raises:
            UnknownScheduleError: there is none of that name.
            UsageError: the count is no whole number from 1 to 1,000.
            StorageError: the storage cannot be asked.
        """
        wanted = whole(count, field="count", least=1, most=1_000)
        return await coming(await self._storage(), name, wanted)

    def put_sync(
        self,
        name: str,
        call: EncodedCall[Any],
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        missed: MissedTicks = "latest",
        overlap: Overlap = "skip",
        grace: Duration | None = None,
    ) -> Schedule:
        """Do as `put`, without a loop."""
        made = self.put(name, call, cron=cron, every=every, tz=tz, missed=missed, overlap=overlap, grace=grace)
        return PORTAL.call(made, verb="put")

    def list_sync(self) -> tuple[Schedule, ...]:
        """Do as `list`, without a loop."""
        return PORTAL.call(self.list(), verb="list")

    def get_sync(self, name: str) -> Schedule:
        """Do as `get`, without a loop."""
        return PORTAL.call(self.get(name), verb="get")

    def pause_sync(self, name: str) -> Schedule:
        """Do as `pause`, without a loop."""
        return PORTAL.call(self.pause(name), verb="pause")

    def resume_sync(self, name: str) -> Schedule:
        """Do as `resume`, without a loop."""
        return PORTAL.call(self.resume(name), verb="resume")

    def update_sync(
        self,
        name: str,
        call: EncodedCall[Any] | None = None,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        missed: MissedTicks | None = None,
        overlap: Overlap | None = None,
        grace: Duration | None = None,
    ) -> Schedule:
        """Do as `update`, without a loop."""
        made = self.update(name, call, cron=cron, every=every, tz=tz, missed=missed, overlap=overlap, grace=grace)
        return PORTAL.call(made, verb="update")

    def trigger_sync(self, name: str) -> Job[Any]:
        """Do as `trigger`, without a loop."""
        return PORTAL.call(self.trigger(name), verb="trigger")

    def remove_sync(self, name: str) -> None:
        """Do as `remove`, without a loop."""
        PORTAL.call(self.remove(name), verb="remove")

    def next_sync(self, name: str, count: int = 1) -> tuple[datetime, ...]:
        """Do as `next`, without a loop."""
        return PORTAL.call(self.next(name, count), verb="next")

    async def _put(self, schedule: Schedule) -> Schedule:
        storage = await self._storage()
        await _put(storage, (await storage.survey([schedule.job.queue])).now, [schedule])
        return (await look_up(storage, schedule.name))[0]
