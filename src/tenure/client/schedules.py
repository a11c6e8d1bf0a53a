"""Schedules: calls that are enqueued at given times. The storage holds them, independent of the leading process."""

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
from tenure.client.job_template import EncodedCall
from tenure.client.task import AsyncTask, PlainTask, Task
from tenure.core.check import flag, named, no_others, of_kind, shown, whole
from tenure.core.cron import Cron, Every
from tenure.core.duration import Duration, instant, moment
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import NewJob
from tenure.core.schedule import Overlap, Schedule
from tenure.core.suggestion import did_you_mean
from tenure.core.ticks import begun, rhythm_of
from tenure.errors import StorageError, StorageUnavailableError, UnknownScheduleError, UsageError
from tenure.options import TaskSettings
from tenure.options.schedules import MissedTicks, grace_micros, missed_policy, valid_overlap
from tenure.storage.protocol import DUE_LIMIT, EnqueueResult, PauseSchedule, PutSchedule, RemoveSchedule, Storage

P = ParamSpec("P")
R = TypeVar("R")
TaskT = TypeVar("TaskT", bound=Task[Any, Any])

AT_ONCE = 5.0
"""Seconds that a start spends on storing schedules while a part of the storage is unreachable."""

PATIENCE = ExponentialDelay(0.5, 5.0)
"""Delay between two attempts to store the schedules that a start could not store."""

LONGEST_NAME = 200
"""The longest name of a schedule, in bytes; the ids of its jobs begin with the name."""


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
    limit: object = None,
    start: object = None,
    end: object = None,
    immediately: object = None,
) -> Schedule:
    """Return a schedule that has not begun, from the job that it enqueues and its times.

    Raises:
        UsageError: a field is invalid, or not exactly one of `cron` and `every` is given.
    """
    if (cron is None) == (every is None):
        raise UsageError('give either cron="0 4 * * *" or every="30s", one of them')
    if every is not None and tz is not None:
        raise UsageError(f"tz = {shown(tz)} has no effect on an interval; leave it out, or give cron instead of every")
    if job.run_at is not None:
        raise UsageError("run_at contradicts a schedule, whose ticks say when; leave it out, or give a delay")
    read = None if cron is None else Cron.parse(cron, "UTC" if tz is None else tz)
    policy, most = missed_policy(missed)
    starts = None if start is None else instant(start, field="start")
    ends = None if end is None else instant(end, field="end")
    if starts is not None and ends is not None and ends < starts:
        raise UsageError(f"end = {shown(end)} lies before start = {shown(start)}; the schedule would have no tick")
    return Schedule(
        name=scheduled_name(name),
        job=structs.replace(job, id=""),
        cron=None if read is None else read.text,
        tz="UTC" if read is None else read.zone.key,
        every=None if every is None else Every.parse(every).interval,
        missed=policy,
        most=most,
        overlap=valid_overlap(overlap),
        grace=grace_micros(grace),
        limit=None if limit is None else whole(limit, field="limit", least=1),
        start=starts,
        end=ends,
        immediately=bool(flag(immediately, field="immediately")),
    )


def only_options(options: Iterable[str], own: Iterable[str]) -> None:
    """Check that all options of a schedule decorator are its own or options of a task.

    Raises:
        UsageError: an option is unknown, or belongs to `@app.task`.
    """
    names = tuple(options)
    for name in ("collect", "version", "since"):
        if name in names:
            raise UsageError(f"{name} is an option of the task; put @app.task({name}=...) below the schedule")
    no_others(names, (*own, *TaskSettings.__annotations__))


def scheduled_name(name: object) -> str:
    """Return the name of a schedule.

    Raises:
        UsageError: the name is invalid, or takes more than 200 bytes.
    """
    read = named(name, field="name")
    if len(read.encode()) > LONGEST_NAME:
        raise UsageError(f"name = {shown(name)} has over {LONGEST_NAME} bytes; give the schedule a shorter name=")
    return read


async def put_all(storage: Storage, schedules: Collection[Schedule]) -> tuple[Schedule, ...]:
    """Store the schedules that code declares. Stored ones keep their last tick, their pause and their history.

    Return the schedules that could not be stored everywhere because a part of the storage is unreachable.

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
        unstored: list[Schedule] = []
        for queue, some in by_queue.items():
            try:
                # Each attempt at an unreachable part takes seconds.
                async with asyncio.timeout_at(until):
                    await _put(storage, (await storage.survey([queue])).now, some)
            except (StorageUnavailableError, TimeoutError):
                unstored += some
        return tuple(unstored)
    return ()


async def put_later(storage: Storage, schedules: Collection[Schedule], *, rng: Random, logger: logging.Logger) -> None:
    """Store the schedules that `put_all` returned, as soon as the storage is reachable."""
    failures = 0
    while schedules:
        failures += 1
        if failures == 1:
            names = ", ".join(schedule.name for schedule in schedules)
            logger.warning("cannot put the schedules %s, trying again: a part of the storage is unreachable", names)
        await asyncio.sleep(PATIENCE.rest(failures, rng))
        try:
            schedules = await put_all(storage, schedules)
        except StorageError as error:
            logger.error("the storage refuses schedules that code declares: %s", error)
            return


async def put_back(
    storage: Storage,
    schedules: Collection[Schedule],
    *,
    lost: asyncio.Event,
    rng: Random,
    logger: logging.Logger,
) -> None:
    """Store the declared schedules again if `lost` is set, and clear it. A failed attempt is repeated."""
    unstored: Collection[Schedule] = ()
    failures = 0
    while unstored or lost.is_set():
        if lost.is_set():
            lost.clear()
            unstored = schedules
        why = "a part of the storage is unreachable"
        try:
            unstored = await put_all(storage, unstored)
        except Exception as error:
            why = f"{error!r}"
        if unstored:
            failures += 1
            if failures == 1:
                logger.error("cannot put back schedules that code declares, trying again: %s", why)
            await asyncio.sleep(PATIENCE.rest(failures, rng))


async def _put(storage: Storage, now: int, schedules: Collection[Schedule]) -> None:
    changes = [PutSchedule(begun(schedule, now)) for schedule in schedules]
    for start in range(0, len(changes), DUE_LIMIT):
        await storage.plan(changes[start : start + DUE_LIMIT])


async def look_up(storage: Storage, name: object) -> tuple[Schedule, int]:
    """Return a schedule by its name, and the storage's current time.

    Raises:
        UnknownScheduleError: no schedule has that name.
        StorageError: the storage cannot be reached.
    """
    valid_name = scheduled_name(name)
    survey = await storage.survey()
    for schedule in survey.schedules:
        if schedule.name == valid_name:
            return schedule, survey.now
    known = sorted(schedule.name for schedule in survey.schedules)
    meant = did_you_mean(valid_name, known)
    listed = f"{f'{meant} Known' if meant else '; known'} are: {', '.join(known) or 'none'}"
    raise UnknownScheduleError(f"schedule {valid_name!r} is unknown{listed}")


async def pause(storage: Storage, name: object, *, paused: bool) -> Schedule:
    """Pause a schedule, or resume it with its next tick. Return the changed schedule.

    Raises:
        UnknownScheduleError: no schedule has that name.
        StorageError: the storage cannot be reached.
    """
    schedule, now = await look_up(storage, name)
    next_tick = None if paused else rhythm_of(schedule).next_after(now)
    await _change(storage, PauseSchedule(schedule.name, paused, next_tick))
    return (await look_up(storage, name))[0]


async def remove(storage: Storage, name: object) -> None:
    """Delete a schedule.

    Raises:
        UnknownScheduleError: no schedule has that name.
        StorageError: the storage cannot be reached.
    """
    await _change(storage, RemoveSchedule((await look_up(storage, name))[0].name))


async def trigger(storage: Storage, name: object, job_id: str) -> tuple[EnqueueResult, NewJob]:
    """Enqueue a schedule's job now, in addition to its ticks. Return the result of the enqueue, and the job.

    Raises:
        UnknownScheduleError: no schedule has that name.
        StorageError: the job may or may not have been stored.
    """
    schedule, _ = await look_up(storage, name)
    call = structs.replace(schedule.job, id=job_id, schedule=schedule.name)
    (receipt,) = await storage.enqueue([call])
    return receipt, call


async def coming(storage: Storage, name: object, count: int) -> tuple[datetime, ...]:
    """Return the times of a schedule's next ticks; a pause does not change them.

    Raises:
        UnknownScheduleError: no schedule has that name.
        StorageError: the storage cannot be reached.
    """
    schedule, now = await look_up(storage, name)
    return ticks_after(schedule, now, count)


def ticks_after(schedule: Schedule, now: int, count: int) -> tuple[datetime, ...]:
    """Return the times of a schedule's first ticks after an instant in microseconds."""
    rhythm, ticks = rhythm_of(schedule), list[datetime]()
    while len(ticks) < count and (tick := rhythm.next_after(now)) is not None:
        ticks.append(moment(tick))
        now = tick
    return tuple(ticks)


async def _change(storage: Storage, change: PauseSchedule | RemoveSchedule) -> None:
    (planned,) = await storage.plan([change])
    if planned.verdict == "gone":
        raise UnknownScheduleError(f"schedule {change.name!r} was removed meanwhile")


class ScheduleDecorator(Protocol):
    """The decorator that `@app.cron(...)` and `@app.every(...)` return, for functions and tasks."""

    @overload
    def __call__(self, task: TaskT, /) -> TaskT: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class Schedules:
    """The schedules of an app's storage, including those that code declares: `app.schedules`."""

    def __init__(
        self,
        storage: Callable[[], Awaitable[Storage]],
        *,
        new_id: Callable[[], str],
        handle: Callable[[EnqueueResult, NewJob], Job[Any]],
        grace: timedelta,
    ) -> None:
        """Set how to open the storage, how to make job ids and handles, and the default grace."""
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
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        immediately: bool = False,
    ) -> Schedule:
        """Make or replace the schedule of this name: `put("nightly", report.call("all"), cron="0 4 * * *")`.

        An existing schedule keeps its last tick, its pause and its history. If its ticks change, by `cron`, `every`,
        `start`, `end` or `limit`, it goes on from now, and its earlier ticks do not count as missed. Its runs so far
        count towards `limit`, and `immediately` has no effect on it. Each job gets an id of its own; an `id` option of
        the call is ignored. The other arguments are as for `app.cron`.

        Raises:
            UsageError: a field is invalid, or not exactly one of `cron` and `every` is given.
            StorageError: the schedule may or may not have been stored; it is safe to call again.
        """
        of_kind(call, EncodedCall, field="call", remedy="write task.call(...)")
        schedule = schedule_of(
            name,
            call.job,
            cron=cron,
            every=every,
            tz=tz,
            missed=missed,
            overlap=overlap,
            grace=self._grace if grace is None else grace,
            limit=limit,
            start=start,
            end=end,
            immediately=immediately,
        )
        return await self._put(schedule)

    async def list(self) -> tuple[Schedule, ...]:
        """Return all schedules, sorted by name.

        Raises:
            StorageError: the storage cannot be reached.
        """
        survey = await (await self._storage()).survey()
        return tuple(sorted(survey.schedules, key=lambda schedule: schedule.name))

    async def get(self, name: str) -> Schedule:
        """Return a schedule: its job, its times, and its last and next tick (microseconds since 1970 UTC).

        Raises:
            UnknownScheduleError: no schedule has that name.
            StorageError: the storage cannot be reached.
        """
        return (await look_up(await self._storage(), name))[0]

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule: its ticks make no jobs. Jobs that it has made go on.

        Raises:
            UnknownScheduleError: no schedule has that name.
            StorageError: the storage cannot be reached.
        """
        return await pause(await self._storage(), name, paused=True)

    async def resume(self, name: str) -> Schedule:
        """Resume a schedule with its next tick. Ticks during the pause do not count as missed.

        Raises:
            UnknownScheduleError: no schedule has that name.
            StorageError: the storage cannot be reached.
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
        """Change the given fields of a schedule and keep the rest.

        If code declares the schedule, the code overrides this change when a worker starts.

        Raises:
            UnknownScheduleError: no schedule has that name.
            UsageError: a field is invalid.
            StorageError: the schedule may or may not have been changed; it is safe to call again.
        """
        if call is not None:
            of_kind(call, EncodedCall, field="call", remedy="write task.call(...)")
        known, _ = await look_up(await self._storage(), name)
        if cron is None and every is None:
            cron = known.cron
            every = None if known.every is None else timedelta(microseconds=known.every)
        if cron is not None and tz is None:
            tz = known.tz
        schedule = schedule_of(
            known.name,
            known.job if call is None else call.job,
            cron=cron,
            every=every,
            tz=tz,
            missed=known.missed if missed is None else missed,
            overlap=known.overlap if overlap is None else overlap,
            grace=timedelta(microseconds=known.grace) if grace is None else grace,
            limit=known.limit,
            start=None if known.start is None else moment(known.start),
            end=None if known.end is None else moment(known.end),
            immediately=known.immediately,
        )
        return await self._put(structs.replace(schedule, most=known.most) if missed is None else schedule)

    async def trigger(self, name: str) -> Job[Any]:
        """Enqueue a schedule's job now, even if the schedule is paused. Its ticks do not change.

        The job has an id of its own and no `scheduled_for`. While it is unfinished, it counts for `overlap`. If the
        task's options allow no job, for example a throttle, the handle's `action` says so, and no error is raised.

        Raises:
            UnknownScheduleError: no schedule has that name.
            StorageError: the job may or may not have been stored.
        """
        return self._handle(*await trigger(await self._storage(), name, self._new_id()))

    async def remove(self, name: str) -> None:
        """Delete a schedule; its jobs stay. A schedule that code declares is stored again when a worker starts.

        Raises:
            UnknownScheduleError: no schedule has that name.
            StorageError: the storage cannot be reached.
        """
        await remove(await self._storage(), name)

    async def next(self, name: str, count: int = 1) -> tuple[datetime, ...]:
        """Return the times of a schedule's next `count` ticks, by the storage's clock; a pause does not change them.

        Raises:
            UnknownScheduleError: no schedule has that name.
            UsageError: `count` is not a whole number from 1 to 1,000.
            StorageError: the storage cannot be reached.
        """
        number = whole(count, field="count", least=1, most=1_000)
        return await coming(await self._storage(), name, number)

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
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        immediately: bool = False,
    ) -> Schedule:
        """Call `put` from code without a running event loop."""
        coroutine = self.put(
            name,
            call,
            cron=cron,
            every=every,
            tz=tz,
            missed=missed,
            overlap=overlap,
            grace=grace,
            limit=limit,
            start=start,
            end=end,
            immediately=immediately,
        )
        return PORTAL.call(coroutine, verb="put")

    def list_sync(self) -> tuple[Schedule, ...]:
        """Call `list` from code without a running event loop."""
        return PORTAL.call(self.list(), verb="list")

    def get_sync(self, name: str) -> Schedule:
        """Call `get` from code without a running event loop."""
        return PORTAL.call(self.get(name), verb="get")

    def pause_sync(self, name: str) -> Schedule:
        """Call `pause` from code without a running event loop."""
        return PORTAL.call(self.pause(name), verb="pause")

    def resume_sync(self, name: str) -> Schedule:
        """Call `resume` from code without a running event loop."""
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
        """Call `update` from code without a running event loop."""
        coroutine = self.update(name, call, cron=cron, every=every, tz=tz, missed=missed, overlap=overlap, grace=grace)
        return PORTAL.call(coroutine, verb="update")

    def trigger_sync(self, name: str) -> Job[Any]:
        """Call `trigger` from code without a running event loop."""
        return PORTAL.call(self.trigger(name), verb="trigger")

    def remove_sync(self, name: str) -> None:
        """Call `remove` from code without a running event loop."""
        PORTAL.call(self.remove(name), verb="remove")

    def next_sync(self, name: str, count: int = 1) -> tuple[datetime, ...]:
        """Call `next` from code without a running event loop."""
        return PORTAL.call(self.next(name, count), verb="next")

    async def _put(self, schedule: Schedule) -> Schedule:
        storage = await self._storage()
        await _put(storage, (await storage.survey([schedule.job.queue])).now, [schedule])
        return (await look_up(storage, schedule.name))[0]
