"""The handlers of all acts on single things. Each act is written into the audit log before it happens, and after."""

import hashlib
import math
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from tenure.client.schedules import pause, remove, trigger
from tenure.client.workers import valid_concurrency
from tenure.clock import SECOND, SystemClock, entropy
from tenure.console import reads
from tenure.console.bodies import (
    ConcurrencyBody,
    EnqueueBody,
    JobBody,
    QueuePatch,
    ReasonBody,
    RedeliverBody,
    RedriveBody,
    RescheduleBody,
    RetainBody,
    TaskPatch,
)
from tenure.console.lookups import known_of, queue_of, ref_of, schedule_of, survey_of, webhook_of, worker_of
from tenure.console.patches import (
    change_text,
    expected_settings,
    in_field,
    is_repeated,
    queue_change,
    queue_tag,
    settings_changed,
    task_change,
    task_settings,
    task_tag,
    verb_of,
)
from tenure.console.problems import (
    ProblemError,
    ProblemName,
    ProblemPart,
    from_message,
    not_audited,
    unknown_job,
    unknown_name,
)
from tenure.console.records import RemovedSchedule, TaskStatusView
from tenure.console.routes import ApiCall, NoQuery
from tenure.core.check import named, remark, shown
from tenure.core.duration import Duration, duration, instant, micros
from tenure.core.internal import is_internal
from tenure.core.job import NewJob
from tenure.core.order import boost_of, is_strict
from tenure.core.suggestion import did_you_mean
from tenure.errors import StorageError, UsageError
from tenure.ids import JobIds
from tenure.ops.audit import AuditedAct, audited, verdict_of
from tenure.ops.enqueueing import NamedCall, enqueue_job, job_of
from tenure.ops.jobs import detail_of
from tenure.ops.names import unknown_targets
from tenure.ops.revisions import REFUSALS, revised_view
from tenure.ops.views import (
    QueueSettingsView,
    RefView,
    RevisedView,
    ScheduleView,
    TriggeredView,
    schedule_view,
    triggered_view,
)
from tenure.ops.webhooks import (
    NotRepeatableError,
    WebhookTrialView,
    WebhookView,
    deliver_again,
    delivery_of,
    try_webhook,
)
from tenure.ops.workers import OrderedView, give_order
from tenure.options.tasks import CallOptions, valid_priority
from tenure.storage.protocol import (
    CancelJob,
    DeleteJob,
    EnqueueResult,
    RedriveJob,
    RescheduleJob,
    RetainJob,
    Revision,
    Settings,
    Survey,
    Target,
)

LONGEST_KEY = 255
"""The greatest length of an Idempotency-Key, in characters."""

_CLOCK = SystemClock()
make_id = JobIds(_CLOCK, entropy()).make


@asynccontextmanager
async def _acting(
    call: ApiCall, action: str, target: str, body: ReasonBody, change: str | None = None
) -> AsyncGenerator[AuditedAct]:
    """Write an act into the audit log before and after the block.

    Raises:
        ProblemError: it cannot be written; then the block does not run.
    """
    user = call.user
    act = audited(
        call.access.storage,
        actor=user.name,
        role=user.role,
        via="api",
        action=action,
        target=target,
        change=change,
        reason=remark(body.reason, field="reason"),
    )
    async with AsyncExitStack() as stack:
        try:
            under_way = await stack.enter_async_context(act)
        except (StorageError, OSError) as error:
            raise not_audited(error) from error
        yield under_way


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def cancel_job(call: ApiCall, body: JobBody) -> RevisedView:
    """Cancel a job: at once if it is not running; otherwise its run is asked to stop."""
    reason = remark(body.reason, field="reason")
    return await _revise(call, body, "jobs.cancel", CancelJob(ref_of(call), reason, call.user.name, _ended(body)))


async def redrive_job(call: ApiCall, body: RedriveBody) -> RevisedView:
    """Put a failed, cancelled or expired job back into its queue, with new budgets."""
    delay = _micros(body.delay, "delay", zero=True)
    revision = RedriveJob(ref_of(call), call.user.name, delay=delay, ended=_ended(body))
    return await _revise(call, body, "jobs.redrive", revision)


async def reschedule_job(call: ApiCall, body: RescheduleBody) -> RevisedView:
    """Let a waiting or delayed job start at another time, or with another priority."""
    ref, boost, priority = ref_of(call), None, body.priority
    if body.delay is None and priority is None:
        raise ProblemError("invalid-body", "the body changes nothing", "give delay, priority or both")
    delay = None if body.delay is None else _micros(body.delay, "delay", zero=True)
    if priority is not None:
        with in_field("priority"):
            priority = valid_priority(priority)
        job = (await detail_of(call.access.storage, ref)).job
        boost = boost_of(priority, strict=is_strict(job.priority, job.boost))
    revision = RescheduleJob(ref, delay, priority, boost, call.user.name, _ended(body))
    return await _revise(call, body, "jobs.reschedule", revision)


async def retain_job(call: ApiCall, body: RetainBody) -> RevisedView:
    """Keep a completed job and its result for a time from now, instead of its former retention."""
    return await _revise(
        call, body, "jobs.retain", RetainJob(ref_of(call), _micros(body.ttl, "ttl"), ended=_ended(body))
    )


async def delete_job(call: ApiCall, body: JobBody) -> RevisedView:
    """Delete a job that is not running, with its runs and its log. A waiting job never runs."""
    return await _revise(call, body, "jobs.delete", DeleteJob(ref_of(call), call.user.name, ended=_ended(body)))


async def _revise(call: ApiCall, body: JobBody, action: str, revision: Revision) -> RevisedView:
    ref = revision.ref
    if is_internal(ref.queue):
        # The routes of operations and webhooks check rights and audit such acts as what they are.
        why = (
            f"queue {ref.queue!r} is internal; act on operations with /api/v1/ops, on deliveries with /api/v1/webhooks"
        )
        raise from_message("internal-queue", why, errors=[ProblemPart("/path/queue", why)])
    async with _acting(call, action, f"{ref.queue}/{ref.id}", body, change_text(body)) as act:
        [result] = await call.access.storage.revise([revision])
        act.verdict = verdict_of(result)
    subject = f"job {ref.id} of queue {ref.queue}"
    match result.verdict:
        case "changed":
            why = f"{subject} is {result.state}, and its end is not the one that `ended` names"
            parts = [ProblemPart("/body/ended", why)]
            raise ProblemError("changed", why, "look at the job again, and repeat the act if it is right", errors=parts)
        case "gone":
            raise unknown_job(f"{subject} does not exist: never enqueued there, deleted, or past its retention")
        case "refused" if result.holder is not None:
            why = f"{subject} is not redriven: job {result.holder.id} holds its unique key"
            raise ProblemError("key-held", why, "wait until that job ends, or cancel it")
        case "refused":
            raise from_message("wrong-state", f"{subject} {REFUSALS[type(revision)].format(result.state)}")
        case _:
            return revised_view(result)


def _ended(body: JobBody) -> int | None:
    """Return the end of the job that the caller has seen; 0: it had none; None: the caller does not say."""
    if body.ended is msgspec.UNSET:
        return None
    return 0 if body.ended is None else instant(body.ended, field="ended")


def _micros(value: Duration, field: str, *, zero: bool = False) -> int:
    with in_field(field):
        return micros(duration(value, field=field, zero=zero))


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def enqueue(call: ApiCall, body: EnqueueBody) -> TriggeredView:
    """Enqueue a call of a task by its name and its arguments."""
    key = idempotent_id(call, "jobs")
    if key is not None and body.id is not None:
        raise _invalid("id", "the id is given, and Idempotency-Key too; give one of them")
    with in_field("task"):
        named(body.task, field="task")
    found = await survey_of(call)
    await _require_task(call, found, body.task, force=body.force)
    try:
        job = job_of(call.access, NamedCall(body.task, body.arguments, _options(body)), found, key or make_id())
    except UsageError as error:
        # A message begins with the name of the option.
        begins = {"queue =": "queue", "id =": "id", "delay =": "delay", "priority =": "priority"}
        begins |= {"tags ": "tags", "a tag ": "tags"}
        field = next((name for text, name in begins.items() if str(error).startswith(text)), "arguments")
        with in_field(field):
            raise
    _require_queue(call, found, job.queue, force=body.force)
    async with _acting(call, "jobs.enqueue", f"{job.queue}/{job.id}", body) as act:
        receipt = await enqueue_job(call.access, job)
        act.verdict = receipt.action
    if key is not None and receipt.action == "duplicate" and receipt.ref.id == key:
        await _require_same(call, job)
    return _triggered(receipt)


def _options(body: EnqueueBody) -> CallOptions:
    options: CallOptions = {}
    if body.queue is not None:
        options["queue"] = body.queue
    if body.id is not None:
        options["id"] = body.id
    if body.delay is not None:
        options["delay"] = body.delay
    if body.priority is not None:
        options["priority"] = body.priority
    if body.tags:
        options["tags"] = body.tags
    return options


async def _require_task(call: ApiCall, found: Survey, task: str, *, force: bool) -> None:
    """Check that something uses a task, as far as the user may know."""
    known = known_of(call, found).tasks
    if task in known:
        return
    if call.narrowed:
        # The app's own tasks that are not known here belong to queues that this user does not see.
        published = await call.access.storage.published([task])
        hidden = task in (call.access.tasks or {}) or any(not call.user.sees(one.queue) for one in published)
        unknown = not force or hidden
    else:
        unknown = not force and bool(
            await unknown_targets(call.access.storage, call.access.known(found), [Target("task", task)])
        )
    if unknown:
        raise _unknown("unknown-task", "task", task, sorted(known))


def _require_queue(call: ApiCall, found: Survey, queue: str, *, force: bool) -> None:
    """Check that the user may see the queue of a new job, and that something uses it."""
    known = known_of(call, found).queues
    if not call.user.sees(queue) or (queue not in known and not force):
        raise _unknown("unknown-queue", "queue", queue, sorted(known))


def _unknown(name: ProblemName, kind: str, value: str, known: list[str]) -> ProblemError:
    meant = did_you_mean(value, known)
    message = f"{kind} {shown(value)} is unknown{f'{meant} Or' if meant else ';'} send force: true if it is new"
    return from_message(name, message, errors=[ProblemPart(f"/body/{kind}", message)])


def idempotent_id(call: ApiCall, place: str) -> str | None:
    """Return the id of the job that a request with an Idempotency-Key makes; None: it has no key.

    The id is made of the user and the place of the call as well, so equal keys of others make other jobs.
    """
    values = call.request.headers("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not 0 < len(values[0]) <= LONGEST_KEY:
        why = f"Idempotency-Key must be one text of 1 to {LONGEST_KEY} characters"
        raise from_message(
            "invalid-parameter",
            f"{why}; send a random one with each new call",
            errors=[ProblemPart("/header/idempotency-key", why)],
        )
    text = "\0".join((call.user.name, place, values[0]))
    digest = hashlib.sha256(text.encode()).hexdigest()
    # A UUID of version 8 (RFC 9562), whose content is up to its maker.
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


async def _require_same(call: ApiCall, job: NewJob) -> None:
    """Check that the job that an earlier request with this Idempotency-Key has made is one of this call."""
    [detail] = await call.access.storage.get([job.ref])
    # A job with such a key may have got other arguments since, by a later call.
    if detail is None or job.merge is not None:
        return
    same = detail.job.task == job.task and _is_same(call, detail.job.payload, job.payload)
    if not same:
        why = f"job {job.id} of queue {job.queue} was made with this Idempotency-Key by another call"
        raise ProblemError(
            "key-reused",
            why,
            "send a new key with each new call",
            errors=[ProblemPart("/header/idempotency-key", why)],
        )


def _is_same(call: ApiCall, one: bytes, other: bytes) -> bool:
    """Return True if two payloads have the same arguments, as far as this console can read them."""
    if one == other:
        return True
    try:
        # A codec that encrypts returns other bytes each time.
        return bool(call.access.decode(one) == call.access.decode(other))
    except Exception:
        return True


def _triggered(receipt: EnqueueResult) -> TriggeredView:
    if receipt.action == "throttled":
        seconds = math.ceil((receipt.retry_in or 0) / SECOND)
        raise ProblemError(
            "throttled",
            f"no job was created: the task is throttled, its latest job is {receipt.ref.id} of {receipt.ref.queue}",
            f"try again in {seconds} s",
            headers=[(b"retry-after", str(seconds).encode())],
        )
    return triggered_view(receipt)


# ── queues and tasks ──────────────────────────────────────────────────────────────────────────────────────────────────


async def change_queue(call: ApiCall, body: QueuePatch) -> QueueSettingsView:
    """Change the settings of a queue: pause, rate, stall settings, retention, recorded events."""
    change = queue_change(body)
    found, _ = await queue_of(call)
    tag = queue_tag(found)
    if not is_repeated(call.request, tag, found.settings, change):
        expected = expected_settings(call.request, tag, found.settings)
        await _tune(call, body, Target("queue", found.queue), change, expected)
    return await reads.queue(call, NoQuery())


async def change_task(call: ApiCall, body: TaskPatch) -> TaskStatusView:
    """Pause or resume a task in all queues, or limit how often its jobs start."""
    _require_all_queues(call, "the settings of a task apply to all queues")
    name = call.path["task"]
    found = await survey_of(call)
    known = known_of(call, found).tasks
    if name not in known:
        raise unknown_name("unknown-task", "task", name, sorted(known))
    change, before = task_change(name, body), task_settings(found, name)
    tag = task_tag(before)
    if not is_repeated(call.request, tag, before, change):
        await _tune(call, body, Target("task", name), change, expected_settings(call.request, tag, before))
    return await reads.task(call, NoQuery())


async def _tune(
    call: ApiCall, body: QueuePatch | TaskPatch, target: Target, change: Settings, expected: Settings | None
) -> None:
    """Change settings. `expected`: only if those that change are these."""
    action = f"{target.kind}s.{verb_of(change)}"
    async with _acting(call, action, target.name, body, change_text(body)) as act:
        storage = call.access.storage
        settings = await storage.tune(target, change, by=call.user.name, expected=expected)
        wanted = settings if expected is None else expected.under(change)
        done = settings.agrees(wanted, change)
        act.verdict = "done" if done else "changed"
    if not done:
        tag = task_tag(settings) if target.kind == "task" else queue_tag((await queue_of(call))[0])
        raise settings_changed(tag)


def _require_all_queues(call: ApiCall, why: str) -> None:
    if call.narrowed:
        raise ProblemError("forbidden", f"{why}, and this user sees some", "ask a user who sees all queues")


# ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def quiet_worker(call: ApiCall, body: ReasonBody) -> OrderedView:
    """Let a worker claim no more jobs. Its runs continue, and it does not exit."""
    return await _order(call, body, "workers.quiet", Settings(quiet=True))


async def resume_worker(call: ApiCall, body: ReasonBody) -> OrderedView:
    """Let a worker claim jobs again."""
    return await _order(call, body, "workers.resume", Settings(quiet=False))


async def stop_worker(call: ApiCall, body: ReasonBody) -> OrderedView:
    """Let a worker drain and exit, as SIGTERM does."""
    return await _order(call, body, "workers.stop", Settings(stop=True))


async def set_concurrency(call: ApiCall, body: ConcurrencyBody) -> OrderedView:
    """Set how many jobs a worker runs at once, until it exits."""
    with in_field("concurrency"):
        order = Settings(concurrency=valid_concurrency(body.concurrency))
    return await _order(call, body, "workers.concurrency", order, f"concurrency={body.concurrency or 'own'}")


async def _order(
    call: ApiCall, body: ReasonBody, action: str, order: Settings, change: str | None = None
) -> OrderedView:
    _, worker = await worker_of(call)
    if call.narrowed:
        every = (await call.access.storage.survey()).workers
        served = next((found.queues for found in every if found.owner.id == worker.owner.id), None)
        if served is None or not all(map(call.user.sees, served)):
            _require_all_queues(call, "the worker serves other queues, too")
    async with _acting(call, action, worker.owner.id, body, change):
        return await give_order(call.access.storage, worker.owner, order, by=call.user.name)


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def pause_schedule(call: ApiCall, body: ReasonBody) -> ScheduleView:
    """Pause a schedule: its ticks enqueue no jobs. Existing jobs continue."""
    return await _pause(call, body, paused=True)


async def resume_schedule(call: ApiCall, body: ReasonBody) -> ScheduleView:
    """Resume a schedule with its next tick; skipped ticks do not count as missed."""
    return await _pause(call, body, paused=False)


async def _pause(call: ApiCall, body: ReasonBody, *, paused: bool) -> ScheduleView:
    found, _ = await schedule_of(call)
    async with _acting(call, f"schedules.{'pause' if paused else 'resume'}", found.name, body):
        return schedule_view(await pause(call.access.storage, found.name, paused=paused), call.decode)


async def trigger_schedule(call: ApiCall, body: ReasonBody) -> TriggeredView:
    """Enqueue the job of a schedule now, even if it is paused; its ticks do not change."""
    found, _ = await schedule_of(call)
    new_id = idempotent_id(call, f"schedules/{found.name}") or make_id()
    async with _acting(call, "schedules.trigger", found.name, body) as act:
        receipt, _ = await trigger(call.access.storage, found.name, new_id)
        act.verdict = receipt.action
    return _triggered(receipt)


async def remove_schedule(call: ApiCall, body: ReasonBody) -> RemovedSchedule:
    """Remove a schedule; its jobs stay. One that is declared in code returns when a worker starts."""
    found, _ = await schedule_of(call)
    async with _acting(call, "schedules.remove", found.name, body):
        await remove(call.access.storage, found.name)
    return RemovedSchedule(name=found.name)


# ── webhooks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_webhook(call: ApiCall, body: ReasonBody) -> WebhookTrialView:
    """Send a test message to a webhook at once, even if it is paused, and show the answer."""
    bound = webhook_of(call)
    async with _acting(call, "webhooks.test", bound.webhook.name, body) as act:
        trial = await try_webhook(bound, _CLOCK, make_id())
        act.verdict = "done" if trial.delivered else "not delivered"
    return trial


async def redeliver(call: ApiCall, body: RedeliverBody) -> RefView:
    """Send the message of a delivery again: now, if it waits for its next attempt or has ended."""
    bound = webhook_of(call)
    with in_field("id"):
        named(body.id, field="id")
    storage, name = call.access.storage, bound.webhook.name
    new_id = idempotent_id(call, f"webhooks/{name}") or make_id()
    async with _acting(call, "webhooks.redeliver", f"{name}/{body.id}", body) as act:
        job = await delivery_of(storage, bound, body.id)
        try:
            if job is not None:
                return await deliver_again(storage, bound, job, by=call.user.name, new_id=new_id)
            act.verdict = "gone"
            problem = unknown_job(f"webhook {name} has no delivery {body.id}: never made, or past its retention")
        except NotRepeatableError as error:
            act.verdict = "refused"
            problem = ProblemError("wrong-state", str(error), error.remedy)
    raise problem


async def pause_webhook(call: ApiCall, body: ReasonBody) -> WebhookView:
    """Pause a webhook: its messages wait. They expire after 7 days."""
    return await _pause_webhook(call, body, paused=True)


async def resume_webhook(call: ApiCall, body: ReasonBody) -> WebhookView:
    """Resume a webhook that an operator has paused, or its receiver by status 410: the messages that wait are sent."""
    return await _pause_webhook(call, body, paused=False)


async def _pause_webhook(call: ApiCall, body: ReasonBody, *, paused: bool) -> WebhookView:
    webhook = webhook_of(call).webhook
    async with _acting(call, f"webhooks.{'pause' if paused else 'resume'}", webhook.name, body):
        await call.access.storage.tune(Target("task", webhook.task), Settings(paused=paused), by=call.user.name)
    return await reads.webhook(call, NoQuery())


def _invalid(field: str, message: str) -> ProblemError:
    return from_message("invalid-body", message, errors=[ProblemPart(f"/body/{field}", message)])
