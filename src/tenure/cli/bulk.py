"""Bulk operations of the shell: counts, asks, starts the operation, and carries it out until it has ended."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tenure.cli.access import accessed
from tenure.cli.confirm import confirm
from tenure.cli.exits import FAILURE, OK
from tenure.cli.lookup import current_user
from tenure.cli.render import as_json, printable
from tenure.cli.session import CommandSession
from tenure.clock import SystemClock, entropy
from tenure.core.bulk import BulkAction, BulkPlan
from tenure.errors import StorageUnavailableError, UsageError
from tenure.ids import JobIds
from tenure.ops.access import StorageAccess
from tenure.ops.bulk import (
    BulkOperation,
    OperationView,
    PreviewView,
    find_operation,
    operation_act,
    operation_view,
    preview,
    stop_operation,
)
from tenure.ops.bulk_run import bulk_worker, operation_job

F = TypeVar("F", bound=Callable[..., Any])

LOOK = 0.2
"""Seconds between two looks at the progress."""

_DONE: dict[BulkAction, str] = {"cancel": "cancelled", "redrive": "redriven", "delete": "deleted"}


def where_options(command: F) -> F:
    """Add the options of a bulk operation to a command."""
    command = click.option(
        "--rate", metavar="RATE", help="With --where: how many jobs per time, such as 10/s; without it, all at once."
    )(command)
    return click.option(
        "--where",
        metavar="FILTER",
        help='All jobs that match, instead of ids: "state:failed task:mail.* ended:<1h". Counts and asks first.',
    )(command)


def is_bulk(ids: tuple[str, ...], queue: str | None, where: str | None, rate: str | None) -> bool:
    """Return True if a command is a bulk operation.

    Raises:
        UsageError: its arguments contradict each other, or name no jobs.
    """
    if where is None:
        if rate is not None:
            raise UsageError("--rate belongs to --where; leave it out, or give a filter")
        if not ids:
            raise UsageError("no job is named; give ids, or a filter with --where")
        return False
    if ids or queue is not None:
        raise UsageError("--where selects the jobs; leave out the ids and --queue, or write queue:NAME in the filter")
    return True


def operate(
    session: CommandSession, action: BulkAction, where: str, rate: str | None, *, reason: str | None, yes: bool
) -> int:
    """Count the matching jobs, ask, and change them; print the report."""
    plan = BulkPlan(action=action, filter=where, rate=rate)
    found = asyncio.run(_counted(session, plan))
    if not found.count:
        click.echo("no job matches", err=True)
        return OK
    jobs = "1 job" if found.count == 1 else f"{found.count:,} jobs"
    of_queues = ", ".join(f"{count:,} of {queue}" for queue, count in found.queues.items())
    confirm(printable(f"{action.capitalize()} {jobs} ({of_queues})?"), yes=yes)
    view = asyncio.run(_carried_out(session, plan, found.count, reason))
    if not as_json(session, view) and not session.quiet:
        more = f"; {view.refused + view.changed + view.gone:,} had changed" if view.met > view.done else ""
        click.echo(f"{view.done:,} of {view.count:,} jobs {_DONE[action]}{more}; operation {view.id}: {view.state}")
    return OK if view.state == "done" else FAILURE


async def _counted(session: CommandSession, plan: BulkPlan) -> PreviewView:
    async with accessed(session) as access:
        return await preview(access.storage, plan, await access.storage.survey(), None)


async def _carried_out(session: CommandSession, plan: BulkPlan, count: int, reason: str | None) -> OperationView:
    async with accessed(session) as access:
        storage = access.storage
        operation = BulkOperation(
            action=plan.action,
            filter=plan.filter,
            rate=plan.rate,
            count=count,
            actor=current_user(),
            role="shell",
            via="cli",
            at=(await storage.survey()).now,
            reason=reason,
        )
        op_id = JobIds(SystemClock(), entropy()).make()
        await storage.record_act(operation_act(operation, op_id))
        try:
            await storage.enqueue([operation_job(storage, access.timing, operation, op_id)])
        except StorageUnavailableError:
            click.echo(f"operation {op_id} may have started; look at it, or stop it, in the console", err=True)
            raise
        # No console may run. If one does, either of them carries it out.
        async with bulk_worker(storage, access.timing):
            try:
                return await _ended(access, op_id)
            except asyncio.CancelledError:
                await stop_operation(storage, op_id, by=operation.actor, reason=None)
                return await _ended(access, op_id)


async def _ended(access: StorageAccess, op_id: str) -> OperationView:
    while True:
        job = await find_operation(access.storage, op_id)
        if job is None:
            raise click.ClickException(f"operation {op_id} has been deleted")
        if job.finished is not None:
            return operation_view(job)
        await asyncio.sleep(LOOK)
