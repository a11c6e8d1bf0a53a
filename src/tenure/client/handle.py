"""The caller's end of a job: ask for its state, wait for its result, cancel or redrive it."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from random import Random
from typing import Any, Generic, TypeVar

from msgspec import Struct, structs

from tenure.background_loop import PORTAL
from tenure.core.check import remark
from tenure.core.deduplication import Made
from tenure.core.duration import Duration, duration, micros
from tenure.core.events import AnyEvent, JobCompleted, JobExpired
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import JobDetail, JobRecord, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.errors import (
    JobCancelledError,
    JobExpiredError,
    JobFailedError,
    JobNotFoundError,
    JobStalledError,
    ResultTimeoutError,
    StorageError,
    StorageUnavailableError,
    ThrottledError,
    UsageError,
)
from tenure.storage.notification_retry import Hints
from tenure.storage.protocol import (
    CancelJob,
    RedriveJob,
    RescheduleJob,
    RetainJob,
    Revision,
    RevisionResult,
    Storage,
    job_topic,
)
from tenure.waiting import first

R_co = TypeVar("R_co", covariant=True)

_TOLD = 100
"""How many events of a vanished job are read at once."""

POLL = 1.0
"""Seconds between two looks at a job whose change nobody hinted at."""

PATIENCE = ExponentialDelay(0.05, 1.0)
"""Between two tries at a storage that is out of reach, or busy."""

OUTAGE = 60.0
"""Seconds for which such a storage is tried again where the caller has set no time."""


class JobAccess:
    """A job's way back to its app: to the opened storage and its hints, and from stored bytes to a result."""

    def __init__(
        self,
        storage: Callable[[], Awaitable[Storage]],
        convert: Callable[[bytes], Any],
        *,
        rng: Random,
        logger: logging.Logger,
    ) -> None:
        self.storage = storage
        self.convert = convert
        self._rng = rng
        self._logger = logger

    def hints(self, storage: Storage, ref: Ref) -> Hints:
        """Return what hints at a change of a job, from now on."""
        return Hints(storage, [job_topic(ref)], rng=self._rng, logger=self._logger)

    def rest(self, failures: int, error: StorageError) -> float:
        """Return for how many seconds to rest after so many failures in a row; the first is logged."""
        if failures == 1:
            self._logger.warning("cannot ask for a job's result, trying again: %s", error)
        return PATIENCE.rest(failures, self._rng)


class Job(Struct, Generic[R_co], eq=False, weakref=True):
    """One job, whose result is of the task's return type.

    `made`: what the enqueue did: it "created" this job; or the job was there, and it is a "duplicate", took the place
    of the call before ("replaced"), or was "gathered" with others; or it was "throttled", and this is the name of the
    key's latest job, which is not to be had by this handle. `refusal`: the error that says so, where it was throttled:
    what every question and request raises.
    """

    _ref: Ref
    _access: JobAccess
    made: Made = "created"
    refusal: ThrottledError | None = None

    @property
    def created(self) -> bool:
        """Whether the enqueue made this job; False if it was there already, or is another's."""
        return self.made == "created"

    @property
    def id(self) -> str:
        """The job's id, unique within its queue."""
        return self._ref.id

    @property
    def queue(self) -> str:
        """The job's queue."""
        return self._ref.queue

    @property
    def ref(self) -> Ref:
        """The job's full name."""
        return self._ref

    def __repr__(self) -> str:
        return f"Job(queue={self.queue!r}, id={self.id!r})"

    async def state(self) -> State:
        """Return where the job stands.

        Raises:
            JobNotFoundError: the storage knows no such job.
            ThrottledError: this call made no job.
            StorageError: the storage cannot be asked.
        """
        return (await self.info()).job.state

    async def info(self) -> JobDetail:
        """Return the job's record with its runs and its log.

        Raises:
            JobNotFoundError: the storage knows no such job.
            ThrottledError: this call made no job.
            StorageError: the storage cannot be asked.
        """
        storage = await self._opened()
        return self._found((await storage.get([self._ref]))[0])

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait until the job is over and return its result. `timeout` bounds the wait, not the job.

        A storage that is out of reach, or busy, is tried again until the time is over; for 60 s at most without one.

        Raises:
            JobFailedError: it failed for good; JobStalledError if it lost its worker too often.
            JobCancelledError: it was cancelled.
            JobExpiredError: its time to live ran out.
            JobNotFoundError: the storage knows no such job.
            StorageError: the storage cannot be asked.
            ResultTimeoutError: it was not over in time.
            ThrottledError: this call made no job.
            UsageError: it is completed, but what it returned does not fit the task's return type; or the timeout is no
                duration.
        """
        limit = None if timeout is None else duration(timeout, field="timeout", zero=True).total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                return await self._awaited(OUTAGE if limit is None else math.inf)
        # The time may have been too short for a single look, or over between two of them.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL):
                if (job := await self._over(await self._opened())) is not None:
                    return self._outcome(job)
        raise ResultTimeoutError(self.id, f"job {self.id} was not over within {limit:g} s; it goes on")

    async def events(self) -> AsyncGenerator[AnyEvent]:
        """Yield what has happened to the job, then what happens to it, in order, until it is over.

        `async for event in job.events()`. Where the log no longer reaches back to its beginning, an `EventsTrimmed`
        comes first; a redriven job's earlier ends are told, too. What comes unhinted is seen within a second.

        Raises:
            JobNotFoundError: the storage knows no such job, nor anything that happened to one.
            ThrottledError: this call made no job.
            StorageError: the storage cannot be asked; begin again, and the story begins again.
        """
        storage = await self._opened()
        hints = self._access.hints(storage, self._ref)
        cursor, told = None, False
        try:
            while True:
                # Asked before the events are, so that whatever ended it is among them.
                detail = (await storage.get([self._ref]))[0]
                page = await storage.events(cursor, limit=_TOLD, ref=self._ref)
                cursor = page.next
                for event in page.events:
                    told = True
                    yield self._readable(event)
                # Its state is the last word only when nothing more has come: an end may be followed by a redrive.
                if page.events:
                    continue
                if detail is None or detail.job.state in TERMINAL:
                    break
                await first(hints.next(), within=POLL)
        finally:
            hints.close()
        if detail is None and not told:
            raise self._unknown()

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> bool:
        """Cancel the job: at once if it is not running, else its run is asked to stop.

        Return False if it was over already.

        Raises:
            UsageError: `reason` or `by` is no text.
            JobNotFoundError: the storage knows no such job.
            ThrottledError: this call made no job.
            StorageError: the storage cannot be asked.
        """
        cancel = CancelJob(self._ref, remark(reason, field="reason"), remark(by, field="by"))
        return (await self._revise(cancel)).verdict != "refused"

    async def redrive(self, *, by: str | None = None) -> None:
        """Put a failed, cancelled or expired job back in line, with new budgets.

        Raises:
            UsageError: it is in none of these states, or another unfinished job holds its unique key, or `by` is no
                text.
            JobNotFoundError: the storage knows no such job.
            ThrottledError: this call made no job.
            StorageError: the storage cannot be asked.
        """
        revised = await self._revise(RedriveJob(self._ref, remark(by, field="by")))
        if revised.holder is not None:
            raise UsageError(
                f"job {self.id} is not redriven: job {revised.holder.id} holds its unique key; "
                "wait until that one is over, or cancel it"
            )
        if revised.verdict == "refused":
            raise UsageError(f"job {self.id} is {revised.state}; only failed, cancelled or expired jobs are redriven")

    async def reschedule(self, delay: Duration, *, by: str | None = None) -> None:
        """Let a job that has not started start `delay` from now; 0 lets it start as soon as there is room.

        A job that rests between two attempts is one, too. Its time to live goes on as before.

        Raises:
            UsageError: it is running or over, or `delay` is no duration, or `by` no text.
            JobNotFoundError: the storage knows no such job.
            ThrottledError: this call made no job.
            StorageError: the storage cannot be asked.
        """
        later = micros(duration(delay, field="delay", zero=True))
        revised = await self._revise(RescheduleJob(self._ref, delay=later, by=remark(by, field="by")))
        if revised.verdict == "refused":
            raise UsageError(f"job {self.id} is {revised.state}; only a job that is waiting or delayed is rescheduled")

    async def retain(self, ttl: Duration) -> None:
        """Keep the job, which is completed, and its result for so long from now, whatever was said before.

        Raises:
            UsageError: it is not completed, or `ttl` is no duration.
            JobNotFoundError: the storage knows no such job.
            ThrottledError: this call made no job.
            StorageError: the storage cannot be asked.
        """
        revised = await self._revise(RetainJob(self._ref, micros(duration(ttl, field="ttl"))))
        if revised.verdict == "refused":
            raise UsageError(f"job {self.id} is {revised.state}; only the result of a completed job is retained")

    def state_sync(self) -> State:
        """Do as `state`, without a loop."""
        return PORTAL.call(self.state(), verb="state")

    def info_sync(self) -> JobDetail:
        """Do as `info`, without a loop."""
        return PORTAL.call(self.info(), verb="info")

    def result_sync(self, *, timeout: Duration | None = None) -> R_co:
        """Do as `result`, without a loop."""
        return PORTAL.call(self.result(timeout=timeout), verb="result")

    def cancel_sync(self, reason: str | None = None, *, by: str | None = None) -> bool:
        """Do as `cancel`, without a loop."""
        return PORTAL.call(self.cancel(reason, by=by), verb="cancel")

    def redrive_sync(self, *, by: str | None = None) -> None:
        """Do as `redrive`, without a loop."""
        PORTAL.call(self.redrive(by=by), verb="redrive")

    def reschedule_sync(self, delay: Duration, *, by: str | None = None) -> None:
        """Do as `reschedule`, without a loop."""
        PORTAL.call(self.reschedule(delay, by=by), verb="reschedule")

    def retain_sync(self, ttl: Duration) -> None:
        """Do as `retain`, without a loop."""
        PORTAL.call(self.retain(ttl), verb="retain")

    async def _awaited(self, outage: float) -> R_co:
        """Wait until the job is over; a storage may be out of reach for so many seconds at a time."""
        clock = asyncio.get_running_loop().time
        hints: Hints | None = None
        failures, since = 0, clock()
        try:
            while True:
                try:
                    storage = await self._opened()
                    hints = hints or self._access.hints(storage, self._ref)
                    job = await self._over(storage)
                except StorageUnavailableError as error:
                    failures += 1
                    if clock() >= since + outage:
                        raise
                    await asyncio.sleep(self._access.rest(failures, error))
                    continue
                if job is not None:
                    return self._outcome(job)
                failures, since = 0, clock()
                # Hinted at or not: the record is the truth, so look again.
                await first(hints.next(), within=POLL)
        finally:
            if hints is not None:
                hints.close()

    async def _over(self, storage: Storage) -> JobRecord | None:
        """Return the job's record if it is over, None while it is not."""
        detail = (await storage.get([self._ref]))[0]
        if detail is None:
            raise await self._vanished(storage)
        return detail.job if detail.job.state in TERMINAL else None

    def _readable(self, event: AnyEvent) -> AnyEvent:
        """Return an event with its result as the handler returned it, or None where that cannot be read."""
        if not isinstance(event, JobCompleted) or event.result is None:
            return event
        try:
            return structs.replace(event, result=self._access.convert(event.result))
        except Exception:
            return structs.replace(event, result=None)

    def _outcome(self, job: JobRecord) -> R_co:
        if job.state is not State.COMPLETED:
            raise ended_badly(job)
        try:
            value: R_co = self._access.convert(job.result or b"")
        except Exception as error:
            raise UsageError(
                f"job {job.id} of task {job.task!r} is completed, but its result cannot be read back: {error}; "
                "mend the task's return type, or read it as plain data: app.job(id, queue=...)"
            ) from error
        return value

    async def _vanished(self, storage: Storage) -> JobExpiredError | JobNotFoundError:
        """Return why there is no record to await: where an expired job is discarded, its event is all that is left."""
        cursor, last = None, None
        while True:
            page = await storage.events(cursor, limit=_TOLD, ref=self._ref)
            last = page.events[-1] if page.events else last
            if page.next == cursor or len(page.events) < _TOLD:
                break
            cursor = page.next
        if isinstance(last, JobExpired):
            return JobExpiredError(self.id, f"job {self.id} expired before it started, and was discarded")
        return self._unknown()

    async def _revise(self, revision: Revision) -> RevisionResult:
        storage = await self._opened()
        revised = (await storage.revise([revision]))[0]
        if revised.verdict == "gone":
            raise self._unknown()
        return revised

    async def _opened(self) -> Storage:
        """Return the storage, for what is asked of it about this job: a call that made none has no say in another's."""
        if self.refusal is not None:
            raise self.refusal
        return await self._access.storage()

    def _found(self, detail: JobDetail | None) -> JobDetail:
        if detail is None:
            raise self._unknown()
        return detail

    def _unknown(self) -> JobNotFoundError:
        return JobNotFoundError(
            self.id, f"no job {self.id!r} in queue {self.queue!r}: never enqueued there, deleted, or past its retention"
        )


def ended_badly(job: JobRecord) -> Exception:
    """Return the error that tells whoever waits for it how this job ended without a result."""
    if job.state is State.CANCELLED:
        return JobCancelledError(
            job.id, f"job {job.id} was cancelled: {job.reason or 'no reason given'}", reason=job.reason
        )
    if job.state is State.EXPIRED:
        told = "expired before it started" if job.error is None else f"expired: {job.error.message}"
        return JobExpiredError(job.id, f"job {job.id} {told}")
    error = job.error
    told = "no error was recorded" if error is None else f"{error.type}: {error.message}"
    text = f"job {job.id} of task {job.task!r} failed ({job.reason}): {told}"
    if job.reason in ("stalled", "crashed"):
        return JobStalledError(job.id, text, count=job.stalls, reason=job.reason)
    return JobFailedError(
        job.id,
        text,
        reason=job.reason,
        error_type=error.type if error else None,
        traceback=error.traceback if error else None,
    )
