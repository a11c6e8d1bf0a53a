"""Bulk operations: the dry run, the start, the stop and the list. `bulk_run.py` carries them out, chunk by chunk.

dry run ──confirm──► start ──► window ──► chunks ──► done
                                 └── stop: nothing happened      each chunk ── stop: the report names what was done
"""

import hmac
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from random import SystemRandom
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from tenure.client.codec import JsonCodec
from tenure.client.signature import Signature
from tenure.clock import SECOND, SystemClock
from tenure.core.audit import OperatorAct, Via, fitted
from tenure.core.bulk import BULK_STATES, BulkAction, BulkPlan, Confirmation, confirmation, window
from tenure.core.duration import moment
from tenure.core.filter_text import FilterTextError, exact_names, parse_filter, pattern_of
from tenure.core.internal import INTERNAL, OPS_QUEUE, is_internal
from tenure.core.job import JobRecord, Owner, Ref
from tenure.core.lifecycle import State
from tenure.errors import UsageError
from tenure.ids import owner_id
from tenure.ops.job_list import JobRowView, Selection, job_row, selected_jobs, selection
from tenure.ops.revisions import REFUSALS
from tenure.options.rate import valid_rate
from tenure.storage.protocol import (
    CancelJob,
    DeleteJob,
    Query,
    RedriveJob,
    RenewRequest,
    Revision,
    RevisionResult,
    Storage,
    Survey,
)

BULK_TASK = f"{INTERNAL}bulk"
"""The name of the task that carries out operations."""

COUNTED_WITHIN = 45.0
"""Seconds that the count of a dry run may take."""

SAMPLES = 3
PAGE = 500
LOOKS = 5_000
"""About how many jobs one call of the storage looks at."""

Sees = Callable[[str], bool]


class BulkOperation(BulkPlan, frozen=True, kw_only=True):
    """A confirmed operation, as the argument of its job.

    `count`: how many jobs its dry run counted. `queues`: the patterns of the queues that its user may see; None: all.
    `at`: when it was asked for, on the storage's clock: jobs that were enqueued, or that ended and are to be redriven
    or deleted, after this instant are left alone.
    """

    count: int
    actor: str
    role: str
    via: Via
    at: int
    queues: tuple[str, ...] | None = None
    reason: str | None = None


class BulkProgress(Struct, kw_only=True):
    """How far an operation is. `after`: the cursor of the next chunk.

    `met`: jobs that it has come to. `done`: changed, or asked to stop. `refused`: their state or a unique key did not
    allow it. `changed`: they ended or ran again meanwhile. `gone`: they were deleted meanwhile. `unknown`: jobs of
    chunks whose result was lost in a crash; each was changed once at most.
    """

    after: str | None = None
    met: int = 0
    done: int = 0
    refused: int = 0
    changed: int = 0
    gone: int = 0
    unknown: int = 0


BulkEnd = Literal["done", "incomplete", "stopped", "count-changed"]
"""How an operation ended. `incomplete`: jobs of lost chunks, which may be unchanged, have used up its cap."""


class BulkReport(BulkProgress, kw_only=True):
    """The result of the job of an operation."""

    ended: BulkEnd


class TooManyJobsError(UsageError):
    """The jobs of a dry run could not be counted in time."""


class NotConfirmedError(UsageError):
    """An operation has no valid confirmation."""


# ── the jobs of an operation ──────────────────────────────────────────────────────────────────────────────────────────


def interval_of(plan: BulkPlan) -> int | None:
    """Return the microseconds between two jobs; None: no rate.

    Raises:
        UsageError: the rate is invalid.
    """
    return None if plan.rate is None else valid_rate(plan.rate).interval


def matching(plan: BulkPlan, survey: Survey, sees: Sees | None) -> Selection:
    """Return the selection of all jobs that a plan's filter selects, whether the action applies to them or not.

    Raises:
        UsageError: the filter is invalid, or names an internal queue.
    """
    where = parse_filter(plan.filter)
    for name in exact_names(where.queues):
        if is_internal(name):
            raise FilterTextError(1, f"queue {name!r} is internal; bulk operations leave it alone")
    return selection(where, survey, sees=sees)


def to_change(operation: BulkOperation, survey: Survey, sees: Sees | None) -> Selection:
    """Return the selection of the jobs that an operation changes."""
    found = matching(operation, structs.replace(survey, now=operation.at), sees)
    if found.query is None:
        return found
    applies = BULK_STATES[operation.action]
    states = tuple(state for state in found.query.states or sorted(applies) if state in applies)
    if not states:
        return Selection(None)
    query = structs.replace(
        found.query, states=states, created_before=_earlier(found.query.created_before, operation.at + 1)
    )
    if operation.action == "redrive":
        # A job that fails again must not be redriven a second time.
        query = structs.replace(query, ended_before=_earlier(query.ended_before, operation.at + 1))
    return structs.replace(found, query=query)


def is_included(operation: BulkOperation, job: JobRecord) -> bool:
    """Return True if an operation changes a job of its selection: no query of a storage has these conditions."""
    match operation.action:
        case "cancel":
            return not is_asked_to_stop(job)
        case "delete":
            # The dry run said of a job that was active then that it stays.
            return job.finished is None or job.finished <= operation.at
        case "redrive":
            return True


def is_asked_to_stop(job: JobRecord) -> bool:
    """Return True if a job is cancelled already and its run has not ended yet."""
    return job.state is State.ACTIVE and job.cancel_at is not None


def _earlier(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def revision_of(action: BulkAction, job: JobRecord, by: str, reason: str | None) -> Revision:
    """Return the change of one job, which is refused if the job has ended or was redriven since it was read.

    A start is not seen: a job that was waiting when it was read and runs now is asked to stop by a cancel. A delete
    refuses it, because it is active.
    """
    ended = job.finished or 0
    match action:
        case "cancel":
            return CancelJob(job.ref, reason, by, ended)
        case "redrive":
            return RedriveJob(job.ref, by, ended=ended)
        case "delete":
            return DeleteJob(job.ref, by, ended)


_KINDS: dict[BulkAction, type[Revision]] = {"cancel": CancelJob, "redrive": RedriveJob, "delete": DeleteJob}


def sees_of(queues: tuple[str, ...] | None) -> Sees | None:
    """Return a function that says whether the user of an operation sees a queue; None: all queues."""
    if queues is None:
        return None
    patterns = [pattern_of(queue) for queue in queues]
    return lambda queue: not is_internal(queue) and any(pattern.matches(queue) for pattern in patterns)


# ── the dry run ───────────────────────────────────────────────────────────────────────────────────────────────────────


class RefusedView(Struct, frozen=True, kw_only=True):
    """Jobs in one state that match and would stay as they are, and why."""

    state: State
    count: int
    why: str


class PreviewView(Struct, frozen=True, kw_only=True):
    """What an operation would do: how many jobs it would change, by queue, task and state; and 3 of them.

    `window`: seconds between the request and the start, in which a stop undoes it.
    """

    count: int
    queues: dict[str, int]
    tasks: dict[str, int]
    states: dict[str, int]
    refused: list[RefusedView]
    samples: list[JobRowView]
    window: float


async def preview(storage: Storage, plan: BulkPlan, survey: Survey, sees: Sees | None) -> PreviewView:
    """Count the jobs of a plan, and change nothing.

    Raises:
        UsageError: the filter or the rate is invalid.
        TooManyJobsError: the count takes too long.
    """
    interval_of(plan)
    selected, clock = matching(plan, survey, sees), SystemClock()
    until = clock.uptime() + COUNTED_WITHIN
    queues, tasks, states, refused = Counter[str](), Counter[str](), Counter[str](), Counter[State]()
    samples: list[JobRowView] = []
    count, after, applies = 0, None, BULK_STATES[plan.action]
    while True:
        page = await selected_jobs(storage, selected, limit=PAGE, after=after, looks=LOOKS)
        for job in page.jobs:
            if job.state not in applies:
                refused[job.state] += 1
            elif plan.action == "cancel" and is_asked_to_stop(job):
                continue
            elif plan.cap is None or count < plan.cap:
                count += 1
                queues[job.queue] += 1
                tasks[job.task] += 1
                states[job.state.value] += 1
                if len(samples) < SAMPLES:
                    samples.append(job_row(job))
        after = page.next
        if after is None or count == plan.cap:
            break
        if clock.uptime() > until:
            raise TooManyJobsError(
                f"more than {count:,} jobs match, and counting them takes too long; narrow the filter"
            )
    why = REFUSALS[_KINDS[plan.action]]
    return PreviewView(
        count=count,
        queues=dict(queues.most_common()),
        tasks=dict(tasks.most_common()),
        states=dict(states.most_common()),
        refused=[
            RefusedView(state=state, count=jobs, why=f"it {why.format(state.value)}")
            for state, jobs in refused.most_common()
        ],
        samples=samples,
        window=window(plan.action, count) / SECOND,
    )


_OWN_KEY = SystemRandom().randbytes(32)


async def confirm_key(storage: Storage) -> bytes:
    """Return the key of confirmations, which all processes that share the storage derive from its identity.

    Raises:
        StorageError: the storage cannot be reached.
    """
    if not storage.shared:
        return _OWN_KEY
    return (await identity_of(storage)).encode()[-64:] or _OWN_KEY


async def identity_of(storage: Storage) -> str:
    """Return the identity of a storage, which `tenure move` does not copy.

    Raises:
        StorageError: the storage cannot be reached.
    """
    answer = await storage.renew(RenewRequest(Owner(owner_id(SystemRandom())), seen=()))
    return "".join(state.identity for state in answer.partitions)


def operation_id(confirm: str | None) -> str:
    """Return the id of the operation that a confirmation starts: each starts one.

    Raises:
        NotConfirmedError: it is missing, or is not a token.
    """
    return f"op-{_given(confirm).mac}"


def _given(text: str | None) -> Confirmation:
    if text is None:
        raise NotConfirmedError("confirm is missing; make a dry run first, with dry_run: true, and send its confirm")
    try:
        return Confirmation.read(text)
    except UsageError as error:
        raise NotConfirmedError(str(error)) from None


def require_confirmed(key: bytes, actor: str, plan: BulkPlan, text: str | None, now: int) -> int:
    """Return the count of the dry run that a user has confirmed.

    Raises:
        NotConfirmedError: the token is missing, too old, or of another user or plan.
    """
    given = _given(text)
    expected = confirmation(key, actor, plan, count=given.count, at=given.at)
    if not hmac.compare_digest(given.mac, expected.mac):
        raise NotConfirmedError(
            "confirm is a token of another dry run: the action, the filter, the cap, the rate, or the user is another "
            "one; make a new dry run"
        )
    if given.is_expired(now):
        raise NotConfirmedError("confirm is older than 10 minutes; make a new dry run")
    return given.count


# ── the job of an operation ───────────────────────────────────────────────────────────────────────────────────────────


def bulk_signature(operation: dict[str, Any]) -> dict[str, Any]:
    """Stand for the handler of operations where only its signature is needed."""
    return operation


_SIGNATURE = Signature(BULK_TASK, bulk_signature)


def operation_of(job: JobRecord) -> BulkOperation:
    """Return the operation of a job."""
    (argument,), _ = _SIGNATURE.decode(JsonCodec(), job.payload)
    return msgspec.convert(argument, BulkOperation)


def progress_of(job: JobRecord) -> BulkProgress:
    """Return how far the operation of a job is."""
    if job.result is not None:
        return msgspec.json.decode(job.result, type=BulkReport)
    data: dict[str, Any] = {} if job.data is None else msgspec.json.decode(job.data)
    return msgspec.convert(data.get("progress", {}), BulkProgress)


def operation_act(
    operation: BulkOperation, op_id: str, *, verdict: str | None = None, done: int | None = None
) -> OperatorAct:
    """Return the audit record of an operation. Its last write has the verdict."""
    return fitted(
        OperatorAct(
            id=op_id,
            actor=operation.actor,
            role=operation.role,
            via=operation.via,
            action=f"ops.{operation.action}",
            target=op_id,
            change=None if operation.rate is None else f"rate={operation.rate}",
            filter=operation.filter,
            count=operation.count if done is None else done,
            op=op_id,
            reason=operation.reason,
            verdict=verdict,
        )
    )


OperationState = Literal["waiting", "running", "stopping", "done", "incomplete", "stopped", "count-changed", "failed"]


class OperationView(Struct, frozen=True, kw_only=True):
    """A bulk operation. `count`: the jobs that its dry run counted; the other numbers are those of `BulkProgress`.

    `starts`: the end of the window in which a stop undoes it. `stopped` without `started`: nothing happened.
    `count-changed`: it ended because it met more than 1.1 times `count` + 10 jobs. `incomplete`: it ended at its cap,
    which counts the `unknown` jobs, so fewer may have changed. `error`: of the last failed attempt.
    """

    id: str
    action: BulkAction
    filter: str
    cap: int | None
    rate: str | None
    count: int
    state: OperationState
    actor: str
    reason: str | None
    created: datetime
    starts: datetime
    started: datetime | None
    finished: datetime | None
    met: int
    done: int
    refused: int
    changed: int
    gone: int
    unknown: int
    error: str | None


def operation_view(job: JobRecord) -> OperationView:
    """Return the view of an operation."""
    operation, progress = operation_of(job), progress_of(job)
    return OperationView(
        id=job.id,
        action=operation.action,
        filter=operation.filter,
        cap=operation.cap,
        rate=operation.rate,
        count=operation.count,
        state=_state(job, progress),
        actor=operation.actor,
        reason=operation.reason,
        created=moment(job.created),
        starts=moment(job.created + window(operation.action, operation.count)),
        started=None if job.started is None else moment(job.started),
        finished=None if job.finished is None else moment(job.finished),
        met=progress.met,
        done=progress.done,
        refused=progress.refused,
        changed=progress.changed,
        gone=progress.gone,
        unknown=progress.unknown,
        error=None if job.error is None else f"{job.error.type}: {job.error.message}",
    )


def _state(job: JobRecord, progress: BulkProgress) -> OperationState:
    match job.state:
        case State.ACTIVE:
            return "running" if job.cancel_at is None else "stopping"
        case State.COMPLETED:
            return progress.ended if isinstance(progress, BulkReport) else "done"
        case State.CANCELLED:
            return "stopped"
        case State.FAILED | State.EXPIRED:
            return "failed"
        case _:
            return "waiting"


class OperationsView(Struct, frozen=True, kw_only=True):
    """One page of bulk operations, newest first, and the cursor of the next page (None: this is the last page).

    `served`: a console, or a worker with --internal, carries operations out.
    """

    operations: list[OperationView]
    next: str | None
    served: bool


async def operations_view(
    storage: Storage, *, limit: int, after: str | None, shows: Callable[[BulkOperation], bool]
) -> OperationsView:
    """Return one page of operations. A page may have fewer than `limit` before the last one.

    Raises:
        ValueError: the storage did not return this cursor.
    """
    page = await storage.find(Query(queues=(OPS_QUEUE,), limit=limit, after=after))
    workers = (await storage.survey((OPS_QUEUE,))).workers
    return OperationsView(
        operations=[operation_view(job) for job in page.jobs if shows(operation_of(job))],
        next=page.next,
        served=any(OPS_QUEUE in worker.queues and not worker.died for worker in workers),
    )


async def find_operation(storage: Storage, op_id: str) -> JobRecord | None:
    """Return the job of an operation, None if it is unknown."""
    [detail] = await storage.get([Ref(OPS_QUEUE, op_id)])
    return None if detail is None else detail.job


async def find_by_key(storage: Storage, key: str) -> JobRecord | None:
    """Return the job of the operation that a request with this Idempotency-Key has started, or None."""
    page = await storage.find(Query(queues=(OPS_QUEUE,), tags=(key,), limit=1))
    return page.jobs[0] if page.jobs else None


async def stop_operation(storage: Storage, op_id: str, *, by: str, reason: str | None) -> RevisionResult:
    """Stop an operation: at once if it has not started, otherwise between two chunks."""
    [result] = await storage.revise([CancelJob(Ref(OPS_QUEUE, op_id), reason, by)])
    if result.verdict == "done" and (job := await find_operation(storage, op_id)) is not None:
        # No run of it will write how it ended.
        await storage.record_act(operation_act(operation_of(job), op_id, verdict="stopped", done=progress_of(job).done))
    return result
