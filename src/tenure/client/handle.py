"""The job handle: reads a job's state, waits for its result, follows its events, cancels or redrives it."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from random import Random
from typing import Any, Generic, TypeVar

from msgspec import MsgspecError, Struct, structs

from tenure.background_loop import PORTAL
from tenure.client.job_events import ChangesOfRecord
from tenure.client.job_info import JobWithRuns, history
from tenure.client.job_search import find_record
from tenure.core.check import flag, remark
from tenure.core.deduplication import EnqueueAction
from tenure.core.document import decode_document
from tenure.core.duration import Duration, duration, micros
from tenure.core.events import AnyEvent, JobCompleted, JobExpired, JobThrottled
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import JobDetail, JobRecord, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.order import boost_of, is_strict
from tenure.errors import (
    JobActiveError,
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
from tenure.options.tasks import valid_priority
from tenure.outbox.outbox import Outbox
from tenure.storage.moving import HoldsCalls
from tenure.storage.notification_retry import Hints
from tenure.storage.protocol import (
    CancelJob,
    DeleteJob,
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

EVENTS_PAGE = 100
"""How many events of one job are read per request."""

POLL = 1.0
"""Seconds between two reads of a job while no notification arrives."""

RELAY_POLL = 0.2
"""Seconds between two reads of a call that waits in the outbox."""

FOLLOW_POLL = 0.5
"""Seconds between two reads of a job whose events are followed: its progress may change twice a second."""

PATIENCE = ExponentialDelay(0.05, 1.0)
"""Delay between two attempts while the storage is unreachable or busy."""

OUTAGE = 60.0
"""Seconds for which an unreachable storage is retried if the caller has set no timeout."""


class JobAccess:
    """Connects a job handle to its app: opens the storage, subscribes to notifications, decodes stored results."""

    def __init__(
        self,
        storage: Callable[[], Awaitable[Storage]],
        convert: Callable[[bytes], Any],
        *,
        check_wait: Callable[[JobRecord], None],
        rng: Random,
        logger: logging.Logger,
        outbox: Outbox | None = None,
    ) -> None:
        self.outbox = outbox
        """Where calls of transactions wait before they become jobs."""
        self.storage = storage
        self.convert = convert
        self.check_wait = check_wait
        """Called with an unfinished job, for which a caller has waited for `POLL` seconds; raises if it cannot end."""
        self._rng = rng
        self._logger = logger

    def hints(self, storage: Storage, ref: Ref) -> Hints:
        """Subscribe to notifications of the job's changes, from now on."""
        return Hints(storage, [job_topic(ref)], rng=self._rng, logger=self._logger)

    def retry_delay(self, failures: int, error: StorageError) -> float:
        """Return how many seconds to wait after the given number of consecutive failures. Log the first one."""
        if failures == 1:
            self._logger.warning("cannot read a job's result, trying again: %s", error)
        return PATIENCE.rest(failures, self._rng)


class Job(Struct, Generic[R_co], eq=False, weakref=True):
    """The handle of one job, whose result has the task's return type.

    `action` says what the enqueue did:

    - "created": it made this job.
    - "duplicate": a job with this id or unique key existed already. The handle is that job's.
    - "replaced": a debounced job existed already, and this call took the place of the earlier one.
    - "collected": a collecting job existed already, and this call joined its batch.
    - "pending": the call is part of an open transaction, `options(tx=...)`, on PostgreSQL or with an outbox. After the
      commit, and with an outbox after the relay, the handle is that of the job which the call has made or was merged
      into; if it was throttled, or no job can be made of it, methods raise the error.
    - "throttled": it made no job. The handle names the latest job of the key but gives no access to it.

    `refusal`: the `ThrottledError` of a throttled call, the `UsageError` of a call in an outbox of which no job can be
    made, else None. Every method that asks the storage raises it.
    """

    _ref: Ref
    _access: JobAccess
    action: EnqueueAction = "created"
    refusal: UsageError | None = None
    _in_outbox: bool = False
    """True if the handle was made from an id whose call may wait in the outbox."""

    @property
    def created(self) -> bool:
        """True if the enqueue made this job; False if the job existed already or the call was throttled."""
        return self.action == "created"

    @property
    def id(self) -> str:
        """The job's id, unique within its queue."""
        return self._ref.id

    @property
    def queue(self) -> str:
        """The job's queue.

        Raises:
            UsageError: the handle is from `app.job(id)`, and no method has looked the job up yet.
        """
        return self.ref.queue

    @property
    def ref(self) -> Ref:
        """The job's queue and id.

        Raises:
            UsageError: the handle is from `app.job(id)`, and no method has looked the job up yet.
        """
        if not self._ref.queue:
            raise UsageError(
                f"the queue of job {self.id!r} is not known yet; await job.locate() first, or give it: "
                "app.job(id, queue=...)"
            )
        return self._ref

    def __repr__(self) -> str:
        return f"Job(queue={self._ref.queue!r}, id={self.id!r})" if self._ref.queue else f"Job(id={self.id!r})"

    async def locate(self) -> Ref:
        """Return the job's queue and id. A handle from `app.job(id)` looks its queue up once, in all queues.

        Every method that needs the storage does this by itself.

        Raises:
            JobNotFoundError: no queue has a job with this id.
            AmbiguousJobError: several queues have one; use `app.job(id, queue=...)`.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be reached.
        """
        if not self._ref.queue:
            await self._opened()
        return self._ref

    async def state(self) -> State:
        """Return the job's current state.

        Raises:
            JobNotFoundError: the storage has no such job.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be read.
        """
        return (await self.info()).job.state

    async def info(self) -> JobWithRuns:
        """Return the job with its runs and its log lines; instants are datetimes in UTC, durations are timedeltas.

        Raises:
            JobNotFoundError: the storage has no such job.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be reached.
        """
        storage = await self._opened()
        return history(await self._existing(storage))

    async def data(self) -> dict[str, Any]:
        """Return the job's data, which its handler keeps in `current_job().data`; empty if there are none.

        Raises:
            JobNotFoundError: the storage has no such job.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be reached.
            UsageError: another program has damaged the stored data.
        """
        storage = await self._opened()
        stored = (await self._existing(storage)).job.data
        try:
            return {} if stored is None else decode_document(stored)
        except MsgspecError as error:
            raise UsageError(f"the data of job {self.id} cannot be read: {error}") from None

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait until the job has ended and return its result.

        `timeout` (seconds, timedelta, or "30s") limits the wait, not the job; None waits without limit. While the
        storage is unreachable or busy, the read is retried until the timeout; without a timeout, for 60 s at most.

        Raises:
            JobFailedError: the job failed for good; it is a JobStalledError if the job lost its worker too often.
            JobCancelledError: the job was cancelled.
            JobExpiredError: the job's time to live ran out.
            JobNotFoundError: the storage has no such job, and the outbox no such call.
            StorageError: the storage cannot be read.
            ResultTimeoutError: the job has not ended in time; it goes on.
            ThrottledError: the call was throttled and made no job.
            UsageError: the job is completed, but its result does not fit the task's return type; or `timeout` is not
                a duration.
        """
        limit = None if timeout is None else duration(timeout, field="timeout", zero=True).total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                return await self._wait(OUTAGE if limit is None else math.inf)
        # The timeout may be too short for one read, or may end between two reads: read once more.
        with contextlib.suppress(TimeoutError, _NotRelayedError):
            async with asyncio.timeout(POLL):
                if (job := await self._record(await self._opened())).state in TERMINAL:
                    return self._outcome(job)
        raise ResultTimeoutError(self.id, f"job {self.id} did not end within {limit:g} s; it continues")

    async def events(self) -> AsyncGenerator[AnyEvent]:
        """Yield the job's past events, then each new event, in order, until the job has ended.

        Use it as `async for event in job.events()`. If the event log no longer has the job's first events, an
        `EventsTrimmed` comes first. The events of a redriven job include its earlier ends. If a notification is lost,
        an event is seen within 0.5 s.

        If the queue does not record `JobStarted` and `JobProgressed` (`app.queue(name).record`), they are made from the
        job's record, with a `cursor` of None. The record is read twice a second and has only the latest progress, so
        faster changes are skipped.

        Raises:
            JobNotFoundError: the storage has neither the job nor any event of it.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be read. A new call starts again at the first event.
        """
        storage = await self._opened()
        hints = self._access.hints(storage, self._ref)
        cursor, seen_any, changes = None, False, ChangesOfRecord()
        clock = asyncio.get_running_loop().time
        news = clock()
        try:
            while True:
                # Read the job before its events, so that the event that ended it is among them.
                detail = (await storage.get([self._ref]))[0]
                page = await storage.events(cursor, limit=EVENTS_PAGE, ref=self._ref)
                cursor = page.next
                if page.events:
                    seen_any = True
                    # Read the job again: an event may belong to a run that began after the first read.
                    now = (await storage.get([self._ref]))[0]
                    for event in changes.merge(page.events, now):
                        yield self._readable(event)
                    news = clock()
                    # The state is final only if no new events came: a redrive may follow an end.
                    continue
                if detail is not None:
                    for event in changes.latest(detail):
                        yield event
                if detail is None or detail.job.state in TERMINAL:
                    break
                if clock() >= news + POLL:
                    self._access.check_wait(detail.job)
                await first(hints.next(), within=FOLLOW_POLL)
        finally:
            hints.close()
        if detail is None and not seen_any:
            raise await self._not_found(storage)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> bool:
        """Cancel the job: at once if it is not running, else ask its run to stop.

        Return False if the job had ended already. `by` names the person who cancels, for the record.

        Raises:
            UsageError: `reason` or `by` is not a string.
            JobNotFoundError: the storage has no such job.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be reached.
        """
        cancel = CancelJob(self._ref, remark(reason, field="reason"), remark(by, field="by"))
        return (await self._revise(cancel)).verdict != "refused"

    async def redrive(self, *, by: str | None = None) -> None:
        """Put a failed, cancelled or expired job back into its queue, with new budgets of attempts and stalls.

        Raises:
            UsageError: the job is in another state, or another unfinished job holds its unique key, or `by` is not a
                string.
            JobNotFoundError: the storage has no such job.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be reached.
        """
        revised = await self._revise(RedriveJob(self._ref, remark(by, field="by")))
        if revised.holder is not None:
            raise UsageError(
                f"job {self.id} is not redriven: job {revised.holder.id} holds its unique key; "
                "wait until that job ends, or cancel it"
            )
        if revised.verdict == "refused":
            raise UsageError(f"job {self.id} is {revised.state}; only failed, cancelled or expired jobs are redriven")

    async def reschedule(self, delay: Duration, *, by: str | None = None) -> None:
        """Let a job that is waiting or delayed start `delay` from now; with 0, as soon as a worker is free.

        This includes a job that waits for its next attempt. The job's time to live does not change.

        Raises:
            UsageError: the job is running or has ended, `delay` is not a duration, or `by` is not a string.
            JobNotFoundError: the storage has no such job.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be reached.
        """
        later = micros(duration(delay, field="delay", zero=True))
        revised = await self._revise(RescheduleJob(self._ref, delay=later, by=remark(by, field="by")))
        if revised.verdict == "refused":
            raise UsageError(f"job {self.id} is {revised.state}; only a job that is waiting or delayed is rescheduled")

    async def set_priority(self, priority: int, *, strict: bool | None = None, by: str | None = None) -> None:
        """Change the priority of a job that is waiting or delayed, as if it had been enqueued with it.

        The job keeps the time at which it joined its queue, its keys, and its place under a full key or rate. `strict`:
        as the option of a task; if it is not given, the job stays strict or not, and one of priority 0 is not.

        Raises:
            UsageError: the job is running or has ended, `priority` is not a whole number from -500 to 500, or `by` is
                not a string.
            JobNotFoundError: the storage has no such job.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be reached.
        """
        new, operator = valid_priority(priority), remark(by, field="by")
        if flag(strict, field="strict") is None:
            job = (await self._existing(await self._opened())).job
            strict = is_strict(job.priority, job.boost)
        boost = boost_of(new, strict=bool(strict))
        revised = await self._revise(RescheduleJob(self._ref, priority=new, boost=boost, by=operator))
        if revised.verdict == "refused":
            raise UsageError(
                f"job {self.id} is {revised.state}; only the priority of a job that is waiting or delayed changes"
            )

    async def retain(self, ttl: Duration) -> None:
        """Keep a completed job and its result for `ttl` from now, instead of its former retention.

        Raises:
            UsageError: the job is not completed, or `ttl` is not a duration.
            JobNotFoundError: the storage has no such job.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be reached.
        """
        revised = await self._revise(RetainJob(self._ref, micros(duration(ttl, field="ttl"))))
        if revised.verdict == "refused":
            raise UsageError(f"job {self.id} is {revised.state}; only the result of a completed job is retained")

    async def delete(self, *, by: str | None = None) -> None:
        """Delete the job with its runs, its log and its result. A waiting job never runs.

        Raises:
            JobActiveError: the job is running; cancel it first.
            UsageError: `by` is not a string.
            JobNotFoundError: the storage has no such job.
            ThrottledError: the call was throttled and made no job.
            StorageError: the storage cannot be reached.
        """
        if (await self._revise(DeleteJob(self._ref, remark(by, field="by")))).verdict == "refused":
            raise JobActiveError(((self.queue, self.id),))

    def locate_sync(self) -> Ref:
        """Call `locate` from code without a running event loop."""
        return PORTAL.call(self.locate(), verb="locate")

    def state_sync(self) -> State:
        """Call `state` from code without a running event loop."""
        return PORTAL.call(self.state(), verb="state")

    def info_sync(self) -> JobWithRuns:
        """Call `info` from code without a running event loop."""
        return PORTAL.call(self.info(), verb="info")

    def data_sync(self) -> dict[str, Any]:
        """Call `data` from code without a running event loop."""
        return PORTAL.call(self.data(), verb="data")

    def result_sync(self, *, timeout: Duration | None = None) -> R_co:
        """Call `result` from code without a running event loop."""
        return PORTAL.call(self.result(timeout=timeout), verb="result")

    def cancel_sync(self, reason: str | None = None, *, by: str | None = None) -> bool:
        """Call `cancel` from code without a running event loop."""
        return PORTAL.call(self.cancel(reason, by=by), verb="cancel")

    def redrive_sync(self, *, by: str | None = None) -> None:
        """Call `redrive` from code without a running event loop."""
        PORTAL.call(self.redrive(by=by), verb="redrive")

    def reschedule_sync(self, delay: Duration, *, by: str | None = None) -> None:
        """Call `reschedule` from code without a running event loop."""
        PORTAL.call(self.reschedule(delay, by=by), verb="reschedule")

    def set_priority_sync(self, priority: int, *, strict: bool | None = None, by: str | None = None) -> None:
        """Call `set_priority` from code without a running event loop."""
        PORTAL.call(self.set_priority(priority, strict=strict, by=by), verb="set_priority")

    def retain_sync(self, ttl: Duration) -> None:
        """Call `retain` from code without a running event loop."""
        PORTAL.call(self.retain(ttl), verb="retain")

    def delete_sync(self, *, by: str | None = None) -> None:
        """Call `delete` from code without a running event loop."""
        PORTAL.call(self.delete(by=by), verb="delete")

    async def _wait(self, outage: float) -> R_co:
        """Wait until the job has ended. Raise if the storage is unreachable for `outage` seconds in a row."""
        clock = asyncio.get_running_loop().time
        hints: Hints | None = None
        failures, began = 0, clock()
        since = began
        try:
            while True:
                try:
                    storage = await self._opened()
                    hints = hints or self._access.hints(storage, self._ref)
                    job = await self._record(storage)
                except StorageUnavailableError as error:
                    failures += 1
                    if clock() >= since + outage:
                        raise
                    await asyncio.sleep(self._access.retry_delay(failures, error))
                    continue
                except _NotRelayedError:
                    failures, since = 0, clock()
                    await asyncio.sleep(RELAY_POLL)
                    continue
                if job.state in TERMINAL:
                    return self._outcome(job)
                failures, since = 0, clock()
                if since >= began + POLL:
                    self._access.check_wait(job)
                # With or without a notification, read the record again: only the record is authoritative.
                await first(hints.next(), within=POLL)
        finally:
            if hints is not None:
                hints.close()

    async def _record(self, storage: Storage) -> JobRecord:
        detail = (await storage.get([self._ref]))[0]
        if detail is None:
            raise await self._missing_error(storage)
        return detail.job

    def _readable(self, event: AnyEvent) -> AnyEvent:
        """Return the event with its result decoded, or with None if the result cannot be decoded."""
        if not isinstance(event, JobCompleted) or event.result is None:
            return event
        try:
            return structs.replace(event, result=self._access.convert(event.result))
        except Exception:
            return structs.replace(event, result=None)

    def _outcome(self, job: JobRecord) -> R_co:
        if job.state is not State.COMPLETED:
            raise error_of(job)
        try:
            value: R_co = self._access.convert(job.result or b"")
        except Exception as error:
            raise UsageError(
                f"job {job.id} of task {job.task!r} is completed, but its result cannot be read back: {error}; "
                "fix the task's return type, or read it as plain data: app.job(id, queue=...)"
            ) from error
        return value

    async def _missing_error(
        self, storage: Storage
    ) -> JobExpiredError | JobNotFoundError | ThrottledError | UsageError:
        """Return the error for a job without a record. A discarded expired job leaves only its event."""
        cursor, last = None, None
        while True:
            page = await storage.events(cursor, limit=EVENTS_PAGE, ref=self._ref)
            last = page.events[-1] if page.events else last
            if page.next == cursor or len(page.events) < EVENTS_PAGE:
                break
            cursor = page.next
        # A call that made this job, or found it, was not throttled. The event is of a later call with the same id.
        if isinstance(last, JobThrottled) and (self.action == "pending" or self._in_outbox):
            key = last.key.partition(":")[2]
            return ThrottledError(last.task, key or None, last.retry_in, skipped=True)
        if isinstance(last, JobExpired):
            return JobExpiredError(self.id, f"job {self.id} expired before it started, and was discarded")
        return await self._not_found(storage)

    async def _revise(self, revision: Revision) -> RevisionResult:
        storage = await self._opened()
        # The revision was made before the queue was known.
        revised = (await storage.revise([structs.replace(revision, ref=self._ref)]))[0]
        if revised.verdict == "gone":
            raise await self._not_found(storage)
        return revised

    async def _opened(self) -> Storage:
        """Return the storage, or raise the refusal: a throttled call must not read or change another call's job.

        After this call the queue of the job is known.
        """
        if self.refusal is not None:
            raise self.refusal
        storage = await self._access.storage()
        if not self._ref.queue:
            self._ref = Ref((await find_record(storage, self.id)).queue, self.id)
        elif self.action == "pending" or self._in_outbox:
            await self._resolve(storage)
        return storage

    async def _resolve(self, storage: Storage) -> None:
        """Find the job that a call of a transaction has made or was merged into."""
        detail = (await storage.get([self._ref]))[0]
        if detail is None and self._access.outbox is not None:
            match await self._access.outbox.find(self._ref):
                case "waiting":
                    raise _NotRelayedError(self.id, f"job {self.id} is not made yet: its call waits in the outbox")
                case Ref() as ref:
                    self._ref = ref
                    return
                case UsageError() as refusal:
                    self.refusal = refusal
                    raise refusal
                case None:
                    # It may have been relayed since.
                    detail = (await storage.get([self._ref]))[0]
        if detail is not None:
            self._ref = detail.job.ref
        elif isinstance(error := await self._missing_error(storage), UsageError):
            self.refusal = error
            raise error

    async def _existing(self, storage: Storage) -> JobDetail:
        if (detail := (await storage.get([self._ref]))[0]) is None:
            raise await self._not_found(storage)
        return detail

    async def _not_found(self, storage: Storage) -> JobNotFoundError | UsageError:
        if isinstance(storage, HoldsCalls) and (why := await storage.refused(self._ref)) is not None:
            return UsageError(f"no job was made of call {self.id}: {why}; run `tenure doctor` for what to do")
        return JobNotFoundError(
            self.id, f"no job {self.id!r} in queue {self.queue!r}: never enqueued there, deleted, or past its retention"
        )


class _NotRelayedError(JobNotFoundError):
    """The call is committed and waits in the outbox."""


def error_of(job: JobRecord) -> Exception:
    """Return the error that `Job.result` raises for a job that ended without a result."""
    if job.state is State.CANCELLED:
        return JobCancelledError(
            job.id, f"job {job.id} was cancelled: {job.reason or 'no reason given'}", reason=job.reason
        )
    if job.state is State.EXPIRED:
        cause = "expired before it started" if job.error is None else f"expired: {job.error.message}"
        return JobExpiredError(job.id, f"job {job.id} {cause}")
    error = job.error
    cause = "no error was recorded" if error is None else f"{error.type}: {error.message}"
    text = f"job {job.id} of task {job.task!r} failed ({job.reason}): {cause}"
    if job.reason in ("stalled", "crashed"):
        return JobStalledError(job.id, text, count=job.stalls, reason=job.reason)
    return JobFailedError(
        job.id,
        text,
        reason=job.reason,
        error_type=error.type if error else None,
        traceback=error.traceback if error else None,
    )
