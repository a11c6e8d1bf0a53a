"""The runner of bulk operations: finds the jobs of the next chunk, changes them, and notes how far it is.

After a kill it goes on from the last noted place, which is up to half a second old. So it may come to jobs that it has
changed already: a job that has ended or run again since is refused, and a job that was put back ended after `at`.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from tenure.client.codec import JsonCodec
from tenure.clock import SECOND
from tenure.core.bulk import count_changed, pace_of, window
from tenure.core.internal import OPS_QUEUE
from tenure.core.job import JobRecord, NewJob, Ref
from tenure.errors import StorageError
from tenure.events.bus import Handlers
from tenure.handlers.context import JobContext, current_job
from tenure.ops.audit import audited
from tenure.ops.bulk import (
    BULK_TASK,
    LOOKS,
    BulkEnd,
    BulkOperation,
    BulkProgress,
    BulkReport,
    identity_of,
    interval_of,
    is_included,
    operation_act,
    revision_of,
    sees_of,
    to_change,
)
from tenure.ops.internal import DRAIN, InternalHandler, InternalTask
from tenure.ops.job_list import selected_jobs
from tenure.options import Retry, Stall, TaskOptions, Timing
from tenure.options.tasks import CallOptions
from tenure.runtime import Runtime
from tenure.storage.protocol import ActsQuery, Storage
from tenure.worker.worker import Worker

logger = logging.getLogger("tenure.internal")

CHUNK_ACTION = "ops.chunk"
"""The action of the audit records of chunks; their target is the id of the operation."""

ACTS_READ = 500


def _handler(storage: Storage) -> InternalHandler:
    async def bulk(operation: dict[str, Any]) -> dict[str, Any]:
        """Carry out a bulk operation."""
        return await _Run(storage, msgspec.convert(operation, BulkOperation), current_job()).report()

    return bulk


BULK = InternalTask(
    BULK_TASK,
    OPS_QUEUE,
    # It goes on after crashes and outages: an operator stops it, not a limit.
    TaskOptions(retry=Retry(max_attempts=100, cap="1m"), stall=Stall(max_count=10_000), result_ttl="30d"),
    _handler,
)
"""The task of bulk operations."""


def operation_job(
    storage: Storage, timing: Timing, operation: BulkOperation, op_id: str, *, key: str | None = None
) -> NewJob:
    """Return the job of an operation, which starts when the window is over. `key`: by which `find_by_key` finds it."""
    delay = window(operation.action, operation.count) / SECOND
    options = CallOptions(id=op_id, delay=delay) if delay else CallOptions(id=op_id)
    if key is not None:
        options["tags"] = [key]
    return BULK.job(storage, timing, msgspec.to_builtins(operation), options=options)


def bulk_worker(storage: Storage, timing: Timing) -> Worker:
    """Return a worker for operations alone, which has not started: for a command that waits for one."""
    runtime = Runtime(
        app=BULK_TASK,
        storage=storage,
        tasks={BULK_TASK: BULK.bound(storage, timing)},
        codec=JsonCodec(),
        event_handlers=Handlers(),
        timing=timing,
        logger=logger,
    )
    return Worker(runtime, queues=(OPS_QUEUE,), drain=DRAIN)


class _Run:
    """One run of an operation."""

    def __init__(self, storage: Storage, operation: BulkOperation, job: JobContext) -> None:
        self._storage = storage
        self._operation = operation
        self._job = job
        self._progress = msgspec.convert(job.data.get("progress", {}), BulkProgress)

    async def report(self) -> dict[str, Any]:
        """Carry out the operation, and return its report.

        Raises:
            StorageError: the storage cannot be reached; another attempt goes on.
            asyncio.CancelledError: the worker stops; another run goes on.
        """
        identity = await identity_of(self._storage)
        if self._job.data.get("storage", identity) != identity:
            # The job was moved here: the cursor is one of another storage.
            self._progress.after = None
        self._job.data["storage"] = identity
        if self._job.redelivered:
            await self._count_done()
        try:
            ended = await self._chunks()
        except asyncio.CancelledError:
            if not await self._stopped():
                raise
            ended = "stopped"
        report = BulkReport(ended=ended, **structs.asdict(self._progress))
        try:
            await self._storage.record_act(
                operation_act(self._operation, self._job.id, verdict=ended, done=self._progress.done)
            )
        except (StorageError, OSError) as error:
            logger.warning("the audit log does not say how operation %s ended: %s", self._job.id, error)
        found: dict[str, Any] = msgspec.to_builtins(report)
        return found

    async def _chunks(self) -> BulkEnd:
        operation, progress = self._operation, self._progress
        pace = pace_of(interval_of(operation))
        selected = to_change(operation, await self._storage.survey(), sees_of(operation.queues))
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            left = pace.size
            if operation.cap is not None:
                # Of the jobs of lost chunks each may have been changed.
                left = min(left, operation.cap - max(progress.met, progress.done + progress.unknown))
            if left <= 0:
                return "done" if progress.met >= (operation.cap or 0) else "incomplete"
            found = await selected_jobs(self._storage, selected, limit=left, after=progress.after, looks=LOOKS)
            jobs = [job for job in found.jobs if is_included(operation, job)]
            if count_changed(progress.met + len(jobs), operation.count):
                return "count-changed"
            if jobs:
                await _whole(self._change(jobs, found.next))
            progress.after = found.next
            if found.next is None:
                return "done"
            if jobs and pace.every:
                await asyncio.sleep(max(0.0, pace.every / SECOND - (loop.time() - began)))

    async def _change(self, jobs: Sequence[JobRecord], after: str | None) -> None:
        """Change the jobs of one chunk, and note it."""
        operation, progress = self._operation, self._progress
        async with audited(
            self._storage,
            actor=operation.actor,
            role=operation.role,
            via=operation.via,
            action=CHUNK_ACTION,
            target=self._job.id,
            change=operation.action,
            filter=operation.filter,
            count=len(jobs),
            op=self._job.id,
        ) as act:
            results = await self._storage.revise(
                [revision_of(operation.action, job, operation.actor, operation.reason) for job in jobs]
            )
            verdicts = Counter(result.verdict for result in results)
            act.count = verdicts["done"] + verdicts["asked"]
        progress.after = after
        progress.met += len(jobs)
        progress.done += act.count
        progress.refused += verdicts["refused"]
        progress.changed += verdicts["changed"]
        progress.gone += verdicts["gone"]
        self._job.data["progress"] = msgspec.to_builtins(progress)

    async def _count_done(self) -> None:
        """Count again what earlier runs have done: the noted progress may be older than their last chunks."""
        done = unknown = 0
        query = ActsQuery(action=CHUNK_ACTION, target=self._job.id, limit=ACTS_READ)
        while True:
            page = await self._storage.acts(query)
            for act in page.acts:
                if act.verdict == "done":
                    done += act.count or 0
                elif act.verdict is None or not act.verdict.startswith("failed"):
                    # A chunk that failed changed nothing, and its jobs are met again.
                    unknown += act.count or 0
            if page.next is None:
                break
            query = structs.replace(query, after=page.next)
        progress = self._progress
        # The audit log does not move with the job.
        progress.done, progress.unknown = max(progress.done, done), unknown
        progress.met = max(progress.met, progress.done)

    async def _stopped(self) -> bool:
        """Return True if an operator has stopped this operation, and not its worker."""
        with contextlib.suppress(StorageError, OSError):
            [detail] = await self._storage.get([Ref(OPS_QUEUE, self._job.id)])
            return detail is not None and detail.job.cancel_at is not None
        return False


async def _whole(step: Any) -> None:
    """Await a step to its end, even if this task is cancelled meanwhile."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("the last chunk before the stop failed: %r", error)
        raise
