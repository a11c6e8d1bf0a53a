"""The handlers of bulk operations: dry run, start, stop and list."""

from msgspec import Struct

from tenure.clock import SECOND
from tenure.console.bodies import OperationBody, ReasonBody
from tenure.console.patches import in_field
from tenure.console.problems import ProblemError, ProblemPart, bad_parameter, from_message, not_audited
from tenure.console.records import OperationsQuery
from tenure.console.routes import ApiCall
from tenure.console.writes import idempotent_id
from tenure.core.bulk import BulkAction, BulkPlan, confirmation, window
from tenure.core.check import remark, shown
from tenure.core.filter_text import FilterTextError
from tenure.core.job import JobRecord
from tenure.errors import StorageError, UsageError
from tenure.ops.audit import audited, verdict_of
from tenure.ops.bulk import (
    BULK_TASK,
    BulkOperation,
    NotConfirmedError,
    OperationsView,
    OperationView,
    RefusedView,
    Sees,
    TooManyJobsError,
    confirm_key,
    find_by_key,
    find_operation,
    interval_of,
    matching,
    operation_act,
    operation_id,
    operation_of,
    operation_view,
    operations_view,
    preview,
    require_confirmed,
    stop_operation,
)
from tenure.ops.bulk_run import operation_job
from tenure.ops.job_list import JobRowView

COUNTED_WITHIN = 60.0
"""Seconds that a dry run may take."""


class BulkView(Struct, frozen=True, kw_only=True):
    """The result of a dry run, or the operation that was started.

    Of a dry run: `count` jobs would be changed, by queue, task and state; `refused` match, too, and would stay; 3
    `samples`; `confirm` starts the operation within 10 minutes. `window`: seconds from the request to the start, in
    which a stop undoes the operation.
    """

    dry_run: bool
    action: BulkAction
    filter: str
    cap: int | None
    rate: str | None
    count: int
    queues: dict[str, int]
    tasks: dict[str, int]
    states: dict[str, int]
    refused: list[RefusedView]
    samples: list[JobRowView]
    window: float
    confirm: str | None
    operation: OperationView | None


def is_accepted(found: BulkView) -> bool:
    """Return True if an operation was started."""
    return found.operation is not None


async def operate(call: ApiCall, body: OperationBody) -> BulkView:
    """Change all jobs that a filter selects: count them in a dry run first, then start with the `confirm` of that."""
    if body.action == "delete" and not call.user.may("admin"):
        raise ProblemError(
            "forbidden",
            f"{call.user.name!r} has the role {call.user.role}, and a delete needs admin",
            "ask a user with the role admin",
        )
    plan = BulkPlan(action=body.action, filter=body.filter, cap=body.cap, rate=body.rate)
    with in_field("rate"):
        interval_of(plan)
    try:
        return await (_dry_run(call, plan) if body.dry_run else _start(call, plan, body))
    except FilterTextError as error:
        parts = [ProblemPart("/body/filter", str(error), error.position)]
        raise from_message("invalid-filter", str(error), errors=parts) from error
    except TooManyJobsError as error:
        parts = [ProblemPart("/body/filter", str(error))]
        raise from_message("too-many-jobs", f"{error}, or give a cap", errors=parts) from error
    except NotConfirmedError as error:
        raise from_message("unconfirmed", str(error), errors=[ProblemPart("/body/confirm", str(error))]) from error


async def _dry_run(call: ApiCall, plan: BulkPlan) -> BulkView:
    storage = call.access.storage
    survey = await storage.survey()
    found = await preview(storage, plan, survey, _sees(call))
    token = confirmation(await confirm_key(storage), call.user.name, plan, count=found.count, at=survey.now)
    return BulkView(
        dry_run=True,
        action=plan.action,
        filter=plan.filter,
        cap=plan.cap,
        rate=plan.rate,
        count=found.count,
        queues=found.queues,
        tasks=found.tasks,
        states=found.states,
        refused=found.refused,
        samples=found.samples,
        window=found.window,
        confirm=token.text,
        operation=None,
    )


async def _start(call: ApiCall, plan: BulkPlan, body: OperationBody) -> BulkView:
    storage, user = call.access.storage, call.user
    survey = await storage.survey()
    matching(plan, survey, _sees(call))
    key = idempotent_id(call, "ops")
    known = await _known(call, plan, body, key)
    if known is None:
        count = require_confirmed(await confirm_key(storage), user.name, plan, body.confirm, survey.now)
        operation = BulkOperation(
            action=plan.action,
            filter=plan.filter,
            cap=plan.cap,
            rate=plan.rate,
            count=count,
            actor=user.name,
            role=user.role,
            via="api",
            at=survey.now,
            queues=None if user.queues is None else tuple(pattern.text for pattern in user.queues),
            reason=remark(body.reason, field="reason"),
        )
        # Each confirmation starts one operation, with any Idempotency-Key.
        known = await _enqueued(call, operation, operation_id(body.confirm), key)
    # Where no lifespan is served, this process begins to serve operations here.
    call.serve()
    view = operation_view(known)
    return BulkView(
        dry_run=False,
        action=plan.action,
        filter=plan.filter,
        cap=plan.cap,
        rate=plan.rate,
        count=view.count,
        queues={},
        tasks={},
        states={},
        refused=[],
        samples=[],
        window=window(plan.action, view.count) / SECOND,
        confirm=None,
        operation=view,
    )


async def _enqueued(call: ApiCall, operation: BulkOperation, op_id: str, key: str | None) -> JobRecord:
    """Enqueue the job of an operation, after the audit record of the operation is written."""
    storage = call.access.storage
    try:
        await storage.record_act(operation_act(operation, op_id))
    except (StorageError, OSError) as error:
        raise not_audited(error) from error
    # If this fails, the record stays without a verdict: a repeated request has the same id and may succeed.
    await storage.enqueue([operation_job(storage, call.access.timing, operation, op_id, key=key)])
    found = await find_operation(storage, op_id)
    if found is None:
        raise _unknown(op_id)
    return found


async def _known(call: ApiCall, plan: BulkPlan, body: OperationBody, key: str | None) -> JobRecord | None:
    """Return the job of the operation that an earlier one of these requests has started, or None.

    Raises:
        ProblemError: the operation that has this Idempotency-Key is another one.
        NotConfirmedError: the confirmation is not a token.
    """
    storage = call.access.storage
    job = None if key is None else await find_by_key(storage, key)
    if job is None and body.confirm is not None:
        job = await find_operation(storage, operation_id(body.confirm))
        return job if job is not None and _is_same(job, plan) and operation_of(job).actor == call.user.name else None
    if job is not None and not _is_same(job, plan):
        why = f"operation {job.id} was started with this Idempotency-Key, and is another one"
        raise ProblemError(
            "key-reused",
            why,
            "send a new key with each new operation",
            errors=[ProblemPart("/header/idempotency-key", why)],
        )
    return job


def _is_same(job: JobRecord, plan: BulkPlan) -> bool:
    known = operation_of(job)
    return (known.action, known.filter, known.cap, known.rate) == (plan.action, plan.filter, plan.cap, plan.rate)


async def stop(call: ApiCall, body: ReasonBody) -> OperationView:
    """Stop a bulk operation: within its window nothing has happened, later it ends between two chunks."""
    job, storage = await _operation(call), call.access.storage
    reason = remark(body.reason, field="reason")
    async with audited(
        storage,
        actor=call.user.name,
        role=call.user.role,
        via="api",
        action="ops.stop",
        target=job.id,
        op=job.id,
        reason=reason,
    ) as act:
        result = await stop_operation(storage, job.id, by=call.user.name, reason=reason)
        act.verdict = verdict_of(result)
    if result.verdict == "refused":
        raise ProblemError("wrong-state", f"operation {job.id} has ended already", "look at its report")
    return operation_view(await _operation(call))


async def operations(call: ApiCall, query: OperationsQuery) -> OperationsView:
    """List the bulk operations, newest first, each with its progress."""
    try:
        return await operations_view(
            call.access.storage,
            limit=query.limit,
            after=query.after,
            shows=lambda operation: _shows(call, operation),
        )
    except ValueError as error:
        raise bad_parameter("invalid-cursor", "after", str(error)) from error


async def operation(call: ApiCall, query: Struct) -> OperationView:
    """Show one bulk operation with its progress or its report."""
    return operation_view(await _operation(call))


async def _operation(call: ApiCall) -> JobRecord:
    """Return the job of the operation in the path, as far as its user may see it."""
    op_id = call.path["operation"]
    try:
        found = await find_operation(call.access.storage, op_id)
    except UsageError:
        found = None
    if found is None or found.task != BULK_TASK or not _shows(call, operation_of(found)):
        raise _unknown(op_id)
    return found


def _shows(call: ApiCall, operation: BulkOperation) -> bool:
    """Return True if the user may see an operation. One who sees some queues sees the operations of his own."""
    # A user of the shell with the same name is another one.
    return not call.narrowed or (operation.via == "api" and operation.actor == call.user.name)


def _sees(call: ApiCall) -> Sees | None:
    return call.user.sees if call.narrowed else None


def _unknown(op_id: str) -> ProblemError:
    why = f"operation {shown(op_id)} is unknown"
    return ProblemError("unknown-operation", why, "/api/v1/ops lists all", errors=[ProblemPart("/path/operation", why)])
