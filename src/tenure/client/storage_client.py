"""The storage as an app's tasks use it: enqueues calls, hands out job handles, changes the settings of a task."""

import asyncio
import copy
import functools
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

from msgspec import Struct, structs

from tenure.background_loop import PORTAL, CallerThread
from tenure.client.batching import EnqueueBatcher
from tenure.client.codec import Codec
from tenure.client.handle import Job, JobAccess
from tenure.client.job_template import EncodedCall, refusal
from tenure.client.sending import SendLayers
from tenure.client.signature import Signature
from tenure.core.check import of_kind, remark, shown
from tenure.core.deduplication import merge_name
from tenure.core.job import JobRecord, NewJob, UniqueKey
from tenure.core.lifecycle import State
from tenure.errors import ResultTimeoutError, StorageError, UsageError
from tenure.handlers.context import running_job
from tenure.options import Rate
from tenure.options.headers import valid_headers
from tenure.options.rate import rate_key, rate_of
from tenure.outbox.outbox import Outbox
from tenure.storage.connections import TransactionalStorage, TxConnection, run_now
from tenure.storage.protocol import TASK_RATE, EnqueueResult, Query, Settings, Storage, Target
from tenure.storage.waiting import require_plain

R = TypeVar("R")


class TaskControls(Struct, frozen=True, kw_only=True):
    """What operators have set for a task in all queues.

    - `paused`: True if no job of the task starts.
    - `rate`: how often its jobs may start in each queue, in place of the rates in the code; None: no limit is set.
    - `overrides_rate`: True if `rate` replaces the rates in the code; then None means that the task has no limit.
    """

    paused: bool
    rate: Rate | None
    overrides_rate: bool


class StorageClient:
    """One app's access to its storage."""

    def __init__(
        self,
        storage: Storage | None,
        locate: Callable[[], Storage],
        codec: Codec,
        *,
        rng: Random,
        logger: logging.Logger,
        outbox: Outbox | None = None,
    ) -> None:
        """Set the storage, or how to create it on first use. `outbox`: takes the calls of transactions."""
        self._outbox = outbox
        self._storage = storage
        self._locate = locate
        self._codec = codec
        self._rng = rng
        self._logger = logger
        self._batcher = EnqueueBatcher()
        self.sending = SendLayers(logger)
        """The middleware around every enqueue."""
        self._accesses: dict[Signature | None, JobAccess] = {}
        self._check_wait: Callable[[JobRecord], None] | None = None

    @property
    def storage(self) -> Storage:
        """The storage of the jobs; created on first use, and opened by its users."""
        if self._storage is None:
            self._storage = self._locate()
        return self._storage

    @contextmanager
    def using(self, storage: Storage | None, check_wait: Callable[[JobRecord], None] | None = None) -> Generator[None]:
        """Use another storage within the context, if one is given, and another check of long waits."""
        before = self._storage, self._check_wait
        self._storage, self._check_wait = storage or self._storage, check_wait or self._check_wait
        try:
            yield
        finally:
            self._storage, self._check_wait = before

    def check_wait(self, job: JobRecord) -> None:
        """Raise if an unfinished job, for which a caller waits, cannot end; only tests know that."""
        if self._check_wait is not None:
            self._check_wait(job)

    def forget(self) -> None:
        """Create the storage again on the next use; the current one must not be open."""
        self._storage = None

    async def opened(self) -> Storage:
        """Return the storage, opened.

        Raises:
            StorageError: it cannot be opened, is not a Tenure storage, or has another schema version.
        """
        storage = self.storage
        await storage.open()
        return storage

    async def close(self) -> None:
        """Close the storage, if it exists, and the outbox; the next use opens them again."""
        if self._storage is not None:
            await self._storage.close()
        if self._outbox is not None:
            await self._outbox.close()

    async def submit(self, call: EncodedCall[R]) -> Job[R]:
        """Enqueue a call, in a round trip that it may share with other callers; every `enqueue` uses this method."""
        # The same as `opened`, without one more coroutine per call.
        storage = self.storage
        await storage.open()
        job = call.job
        if (current := running_job()) is not None and current.headers:
            job = _inheriting(job, current.headers)
        try:
            if self.sending:
                [receipt] = await self.sending.send([job], self._batched)
            else:
                receipt = await self._batcher.enqueue(storage, job)
        except StorageError as error:
            raise _with_ids(error, [call]) from error.__cause__
        return self._handle(call, receipt)

    async def _batched(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return [await self._batcher.enqueue(self.storage, job) for job in jobs]

    async def submit_many(self, calls: Iterable[EncodedCall[R]]) -> list[Job[R]]:
        """Enqueue calls in one round trip. A single call may share it with other callers.

        Raises:
            UsageError: an element is not a call.
            StorageError: see `Tenure.enqueue_many`.
        """
        calls = _calls(calls)
        if len(calls) < 2:
            return [await self.submit(call) for call in calls]
        storage = await self.opened()
        jobs: Sequence[NewJob] = [call.job for call in calls]
        if (current := running_job()) is not None and current.headers:
            jobs = [_inheriting(job, current.headers) for job in jobs]
        try:
            if self.sending:
                receipts = await self.sending.send(jobs, storage.enqueue)
            else:
                receipts = await storage.enqueue(jobs)
        except StorageError as error:
            raise _with_ids(error, calls) from error.__cause__
        return [self._handle(call, receipt) for call, receipt in zip(calls, receipts, strict=True)]

    async def submit_in(
        self, tx: TxConnection, calls: Iterable[EncodedCall[R]], caller: CallerThread | None = None
    ) -> list[Job[R]]:
        """Enqueue calls in a user's transaction. `caller`: the thread that uses the connection; None: this one.

        Raises:
            UsageError: the storage has no database, or see `TransactionalStorage.enqueue_in`.
        """
        calls = _calls(calls)
        database = self._outbox or self.storage
        if not isinstance(database, TransactionalStorage):
            raise UsageError(
                f"tx: the queue is in {database.url}, which is not the database of a transaction; name that database "
                "in Tenure(outbox=...), use a PostgreSQL or SQLite storage, or enqueue without tx after the commit"
            )
        if self._outbox is not None and not self.storage.flows:
            # The relay could only refuse them after the commit.
            require_plain(self.storage.url, (call.job for call in calls))
        await database.prepare_tx()

        def store_here(jobs: Sequence[NewJob]) -> list[EnqueueResult]:
            receipts = run_now(database.enqueue_in(tx, jobs))
            announce(receipts)
            return receipts

        def announce(receipts: Sequence[EnqueueResult]) -> None:
            if any(receipt.action == "pending" for receipt in receipts):
                tx.after_commit(lambda: PORTAL.start(database.absorb()))

        async def store(jobs: Sequence[NewJob]) -> list[EnqueueResult]:
            if caller is not None:
                return await caller.run(lambda: store_here(jobs))
            receipts = await database.enqueue_in(tx, jobs)
            announce(receipts)
            return receipts

        jobs: Sequence[NewJob] = [call.job for call in calls]
        if (current := running_job()) is not None and current.headers:
            jobs = [_inheriting(job, current.headers) for job in jobs]
        receipts = await (self.sending.send(jobs, store) if self.sending and jobs else store(jobs))
        if self._outbox is not None and self._outbox.check_is_due():
            PORTAL.start(self._outbox.check())
        return [self._handle(call, receipt) for call, receipt in zip(calls, receipts, strict=True)]

    def submit_in_sync(self, tx: TxConnection, calls: Iterable[EncodedCall[R]]) -> list[Job[R]]:
        """Call `submit_in` from code without a running event loop; this thread uses the connection.

        Raises:
            UsageError: the connection belongs to an event loop.
        """
        if tx.waits:
            raise UsageError("tx belongs to an event loop; use `await enqueue()` there")
        caller = CallerThread()
        return PORTAL.call(self.submit_in(tx, calls, caller), verb="enqueue", caller=caller)

    async def unique_job(self, call: EncodedCall[R]) -> Job[R] | None:
        """Return the unfinished job that holds the unique key of a call; for `Task.unique_job`."""
        key = call.job.merge
        if not isinstance(key, UniqueKey):
            raise UsageError(
                f"this call of task {call.job.task!r} has no unique key; give the task or the call unique=..."
            )
        # A query by key finds unfinished jobs only.
        states = (State.DELAYED, State.WAITING) if key.scope == "queued" else ()
        query = Query(queues=(call.job.queue,), states=states, merge=merge_name(key), limit=1)
        page = await (await self.opened()).find(query)
        return Job(page.jobs[0].ref, self.access(call.signature)) if page.jobs else None

    async def submit_and_wait(self, call: EncodedCall[R], wait: timedelta) -> R:
        """Enqueue a call and wait for its result; every `enqueue_and_wait` uses this method."""
        limit = wait.total_seconds()
        job_id = call.job.id
        try:
            async with asyncio.timeout(limit):
                job = call.accepted(await self.submit(call))
                job_id = job.id
                try:
                    value: R = await job.result()
                except StorageError as error:
                    raise _with_ids(error, [call]) from error.__cause__
                return value
        except TimeoutError:
            message = f"job {job_id} did not end within {limit:g} s; it continues if it was stored in time"
            raise ResultTimeoutError(job_id, message) from None

    def _handle(self, call: EncodedCall[R], receipt: EnqueueResult) -> Job[R]:
        signature = call.signature
        access = self._accesses.get(signature) or self.access(signature)
        action = receipt.action
        refused = refusal(receipt, call.job, skipped=call.skips) if action == "throttled" else None
        return Job(receipt.ref, access, action, refused)

    def access(self, signature: Signature | None) -> JobAccess:
        """Return the object by which job handles of this signature reach the storage."""
        access = self._accesses.get(signature)
        if access is None:
            codec = self._codec
            convert = codec.decode if signature is None else functools.partial(signature.result, codec)
            access = self._accesses[signature] = JobAccess(
                self.opened,
                convert,
                check_wait=self.check_wait,
                rng=self._rng,
                logger=self._logger,
                outbox=self._outbox,
            )
        return access

    def triggered(self, receipt: EnqueueResult, job: NewJob, signature: Signature | None) -> Job[Any]:
        """Return the handle of a schedule's job that was enqueued by hand; it holds the refusal of a throttled one."""
        return Job(
            receipt.ref, self.access(signature), action=receipt.action, refusal=refusal(receipt, job, skipped=True)
        )

    async def pause_task(self, name: str, *, paused: bool, by: str | None) -> None:
        """Pause or resume a task in every queue; for `Task.pause` and `Task.resume`."""
        storage = await self.opened()
        await storage.tune(Target("task", name), Settings(paused=paused), by=remark(by, field="by"))

    async def set_task_rate(self, name: str, rate: Rate | str | None, *, by: str | None) -> None:
        """Set how often jobs of a task may start, in each queue; for `Task.set_rate`."""
        storage = await self.opened()
        key = rate_key(rate, TASK_RATE + name)
        await storage.tune(Target("task", name), Settings(rate=key), by=remark(by, field="by"))

    async def task_controls(self, name: str) -> TaskControls:
        """Return what operators have set for a task; for `Task.controls`."""
        survey = await (await self.opened()).survey()
        key = survey.task_rates.get(name)
        return TaskControls(paused=name in survey.paused_tasks, rate=rate_of(key), overrides_rate=key is not None)


def _inheriting(job: NewJob, headers: Mapping[str, str]) -> NewJob:
    """Return a job with the headers of the job whose handler enqueues it; its own headers win.

    Raises:
        UsageError: these are too many or too long together.
    """
    return structs.replace(job, headers=valid_headers({**headers, **job.headers}))


def _calls(values: Iterable[EncodedCall[R]]) -> list[EncodedCall[R]]:
    try:
        iterator = iter(values)
    except TypeError:
        raise UsageError(
            f"calls = {shown(values)} must be a list or another iterable; write [task.call(1), task.call(2)]"
        ) from None
    calls = list(iterator)
    for call in calls:
        of_kind(call, EncodedCall, field="a call", remedy="write task.call(...) for each")
    return calls


def _with_ids(error: StorageError, calls: Sequence[EncodedCall[Any]]) -> StorageError:
    """Return a copy of an enqueue's error with the ids of its jobs; other callers may get the original error, too."""
    error_with_ids = copy.copy(error).with_traceback(error.__traceback__)
    error_with_ids.job_ids = tuple(call.job.id for call in calls)
    more = f" and {len(calls) - 3} more (all in job_ids)" if len(calls) > 3 else ""
    error_with_ids.add_note(
        f"The call used the id {', '.join(map(repr, error_with_ids.job_ids[:3]))}{more}; "
        "enqueueing again with the same id makes no second job."
    )
    return error_with_ids
