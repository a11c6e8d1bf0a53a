"""Runs of bulk operations after lost ones: what they count, and who recovers them when no reaper runs."""

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from tenure import Tenure, Timing
from tenure.core.audit import OperatorAct
from tenure.core.internal import OPS_QUEUE
from tenure.core.job import Owner, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted
from tenure.core.settlement import settlement
from tenure.ops.access import StorageAccess
from tenure.ops.bulk import BulkOperation, OperationView, find_operation, operation_view
from tenure.ops.bulk_run import bulk_worker, operation_job
from tenure.ops.internal_tasks import internal_worker
from tenure.storage.protocol import ActsQuery, ClaimRequest, LeaseRenewal, RenewRequest

DEAD = Owner("0123456789abcdef", "gone", "host", 1)
FLEET = Owner("f" * 16, "down", "host", 2)
OP = "one"


async def nothing() -> None:
    """Do nothing."""


async def first_run(app: Tenure, **fields: Any) -> Any:
    """Start an operation, and claim it for a process that then does nothing; return the lease."""
    storage = app.storage
    now = (await storage.survey()).now
    values: dict[str, Any] = {"count": 3, "actor": "ann", "role": "admin", "via": "api", "at": now, **fields}
    operation = BulkOperation(**values)
    await storage.enqueue([operation_job(storage, app.timing, operation, OP)])
    (lease,) = (await storage.exchange(DEAD, (), ClaimRequest((OPS_QUEUE,), 1))).leases
    return lease


async def ended(app: Tenure) -> OperationView:
    while True:
        job = await find_operation(app.storage, OP)
        assert job is not None
        if job.finished is not None:
            return operation_view(job)
        await asyncio.sleep(0.02)


async def second_run(app: Tenure, *chunks: tuple[int, str | None]) -> OperationView:
    """Run an operation whose first run has left records of these chunks."""
    for number, (count, verdict) in enumerate(chunks):
        act = OperatorAct(
            id=f"chunk {number}",
            actor="ann",
            role="admin",
            via="api",
            action="ops.chunk",
            target=OP,
            count=count,
            op=OP,
            verdict=verdict,
        )
        await app.storage.record_act(act)
    lease = await first_run(app, action="cancel", cap=2)
    await app.storage.exchange(DEAD, [settlement(lease, Interrupted("shutdown", begun=True), Random(1))])
    async with bulk_worker(app.storage, app.timing):
        return await ended(app)


@pytest.mark.parametrize(
    ("chunks", "state", "done", "unknown"),
    [
        ([(2, "failed: no room")], "done", 2, 0),
        ([(2, "failed: no room"), (1, "done")], "done", 2, 0),
        ([(2, None)], "incomplete", 0, 2),
        ([(2, "unknown: no answer")], "incomplete", 0, 2),
        ([(1, None)], "incomplete", 1, 1),
    ],
)
async def test_only_chunks_that_may_have_changed_jobs_use_up_the_cap(
    chunks: list[tuple[int, str | None]], state: str, done: int, unknown: int
) -> None:
    async with Tenure("memory://") as app:
        task = app.task(nothing)
        await app.enqueue_many(task.call() for _ in range(3))
        found = await second_run(app, *chunks)
        [act] = (await app.storage.acts(ActsQuery(action="ops.cancel"))).acts

    assert (found.state, found.done, found.unknown) == (state, done, unknown)
    assert act.verdict == state


async def test_an_operation_that_was_moved_begins_without_its_cursor() -> None:
    async with Tenure("memory://") as app:
        task = app.task(nothing)
        await app.enqueue_many(task.call() for _ in range(3))
        lease = await first_run(app, action="cancel", filter="")
        data = {"storage": "the source", "progress": {"after": "a cursor of the source", "met": 1, "done": 1}}
        renewal = LeaseRenewal(lease.ref, lease.fence, data=msgspec.json.encode(data), data_number=1)
        await app.storage.renew(RenewRequest(DEAD, (renewal,)))
        await app.storage.exchange(DEAD, [settlement(lease, Interrupted("shutdown", begun=True), Random(1))])
        async with bulk_worker(app.storage, app.timing):
            found = await ended(app)

    assert (found.state, found.met, found.done) == ("done", 4, 4)


@pytest.mark.thorough
async def test_lost_internal_jobs_are_recovered_without_a_sweep_of_the_fleet() -> None:
    timing = Timing(lease="1s", beat="0.1s", sweep="0.1s", grace="0.1s")
    async with Tenure("memory://", timing=timing) as app:
        task = app.task(queue="mail")(nothing)
        await task.enqueue()
        (fleet,) = (await app.storage.exchange(FLEET, (), ClaimRequest(("mail",), 1))).leases
        await first_run(app, action="cancel", filter="task:none")

        async def access() -> StorageAccess:
            return StorageAccess(app.storage, app.codec.decode, app.timing)

        async with internal_worker(access):
            found = await ended(app)
        [detail] = await app.storage.get([Ref("mail", fleet.ref.id)])
        survey = await app.storage.survey()

    assert (found.state, found.met) == ("done", 0)
    assert detail is not None
    assert (detail.job.state, detail.job.stalls) == (State.ACTIVE, 0)
    assert survey.swept_ago is None
