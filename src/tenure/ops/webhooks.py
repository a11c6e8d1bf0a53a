"""The webhooks of an app and their deliveries, for the console."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from msgspec import Struct

from tenure.clock import Clock, SystemClock
from tenure.core.document import decode_document
from tenure.core.duration import moment
from tenure.core.internal import WEBHOOKS_QUEUE
from tenure.core.job import JobRecord, Ref
from tenure.core.lifecycle import State
from tenure.errors import UsageError
from tenure.ops.job_list import MESSAGE_SHOWN, RowErrorView
from tenure.ops.views import Decode, RefView
from tenure.ops.webhook_service import BoundWebhook
from tenure.storage.protocol import Query, RedriveJob, RescheduleJob, Revision, Storage, Survey
from tenure.webhooks.declaration import Webhook
from tenure.webhooks.delivery import WebhookSender, refusal_of
from tenure.webhooks.messages import envelope_of, trial_message
from tenure.webhooks.request import RequestFailedError


class WebhookView(Struct, frozen=True, kw_only=True):
    """A webhook. `url`: for a user who may not operate it ends with `/…` in place of its path and query.

    `events`: the names of its events; `where`: its filter; `task`: the task of its deliveries.

    `paused`: its messages wait, because an operator or the receiver (by status 410) asked for that. `problem`: why this
    process delivers none of its messages.
    """

    name: str
    url: str
    events: tuple[str, ...]
    where: str
    allow_networks: tuple[str, ...]
    task: str
    paused: bool
    problem: str | None


class DeliveryView(Struct, frozen=True, kw_only=True):
    """A delivery: a job, identified by `queue` and `id`, that sends a message.

    `message`: the id of the message, which a second delivery of it has, too. `type`: of the message; `subject`: the
    job that its event is about. `run_at`: of a delayed delivery, its next attempt.
    """

    queue: str
    id: str
    message: str
    type: str | None
    subject: RefView | None
    state: State
    attempt: int
    max_attempts: int
    created: datetime
    run_at: datetime
    started: datetime | None
    finished: datetime | None
    error: RowErrorView | None


class WebhookTrialView(Struct, frozen=True, kw_only=True):
    """The result of a test message. `status`: of the answer, null if none came; `took`: in seconds."""

    message: str
    delivered: bool
    status: int | None
    took: float
    error: str | None


class NotRepeatableError(Exception):
    """A delivery waits, is under way or has changed meanwhile, so it is not repeated."""

    def __init__(self, why: str, remedy: str = "wait until it has ended, and look at it again") -> None:
        super().__init__(why)
        self.remedy = remedy


def webhook_view(webhook: Webhook, found: Survey, *, whole: bool) -> WebhookView:
    """Return the view of a webhook. `whole`: with the path and query of its URL, which may hold a token."""
    return WebhookView(
        name=webhook.name,
        url=webhook.url if whole else webhook.receiver.origin,
        events=webhook.kinds,
        where=webhook.where,
        allow_networks=webhook.allow_networks,
        task=webhook.task,
        paused=webhook.task in found.paused_tasks,
        problem=WebhookSender(webhook, SystemClock()).problem(),
    )


async def delivery_views(
    storage: Storage, bound: BoundWebhook, *, states: Sequence[State], limit: int, after: str | None, looks: int
) -> tuple[list[DeliveryView], str | None]:
    """Return one page of the deliveries of a webhook, newest first, and the cursor of the next page.

    Raises:
        ValueError: `after` is not a cursor.
    """
    page = await storage.find(
        Query(
            queues=(WEBHOOKS_QUEUE,),
            tasks=(bound.webhook.task,),
            states=tuple(states),
            limit=limit,
            after=after,
            looks=looks,
        )
    )
    return [_delivery_view(bound, job) for job in page.jobs], page.next


def _delivery_view(bound: BoundWebhook, job: JobRecord) -> DeliveryView:
    message = bound.message(job)
    envelope = envelope_of(message.body)
    queue, id_ = (None, None) if envelope is None else (envelope.data.get("queue"), envelope.data.get("id"))
    return DeliveryView(
        queue=job.queue,
        id=job.id,
        message=message.id,
        type=None if envelope is None else envelope.type,
        subject=RefView(queue=queue, id=id_) if isinstance(queue, str) and isinstance(id_, str) else None,
        state=job.state,
        attempt=job.attempt,
        max_attempts=job.policy.retry.max_attempts,
        created=moment(job.created),
        run_at=moment(job.run_at),
        started=None if job.started is None else moment(job.started),
        finished=None if job.finished is None else moment(job.finished),
        error=None if job.error is None else RowErrorView(job.error.type, job.error.message[:MESSAGE_SHOWN]),
    )


async def try_webhook(bound: BoundWebhook, clock: Clock, new_id: str) -> WebhookTrialView:
    """Send a test message at once, without a job, even if the webhook is paused; return the result."""
    began = clock.uptime()
    message = trial_message(bound.webhook, new_id, moment(clock.now()))
    status, why = None, None
    try:
        answer = await bound.sender.send(message.id, message.body)
        status, why = answer.status, refusal_of(answer)
    except (RequestFailedError, UsageError) as error:
        why = str(error)
    return WebhookTrialView(
        message=message.id, delivered=why is None, status=status, took=clock.uptime() - began, error=why
    )


async def delivery_of(storage: Storage, bound: BoundWebhook, id_: str) -> JobRecord | None:
    """Return a delivery of a webhook; None if it has none with this id."""
    [detail] = await storage.get([Ref(WEBHOOKS_QUEUE, id_)])
    return None if detail is None or detail.job.task != bound.webhook.task else detail.job


def delivery_decoder(decode: Decode) -> Decode:
    """Return a decoder of the arguments of deliveries that decodes the JSON in them, too.

    So a reader of its result finds the fields of the event by their names, and can leave values out.
    """

    def decoded(data: bytes) -> Any:
        value = decode(data)
        if not isinstance(value, dict):
            return value
        fields = cast("dict[str, Any]", value)
        body = fields.get("body")
        return {**fields, "body": decode_document(body)} if isinstance(body, str) else fields

    return decoded


async def deliver_again(storage: Storage, bound: BoundWebhook, job: JobRecord, *, by: str, new_id: str) -> RefView:
    """Deliver the message of a delivery once more, and return the job that does it.

    One that waits for its next attempt makes it now. One that has failed, was cancelled or has expired begins again.
    For one that was delivered, another job sends the same message.

    Raises:
        NotRepeatableError: it waits, is under way, or has changed meanwhile.
    """
    match job.state:
        case State.COMPLETED:
            message = bound.message(job)
            [receipt] = await storage.enqueue([bound.job(message, f"{message.id}_{new_id}")])
            return RefView(queue=receipt.ref.queue, id=receipt.ref.id)
        case State.FAILED | State.CANCELLED | State.EXPIRED:
            revision: Revision = RedriveJob(job.ref, by, ended=job.finished)
        case State.DELAYED:
            revision = RescheduleJob(job.ref, 0, None, None, by)
        case State.WAITING if bound.webhook.task in (await storage.survey()).paused_tasks:
            raise NotRepeatableError(
                f"delivery {job.id} waits because webhook {bound.webhook.name} is paused", "resume the webhook"
            )
        case State():
            raise NotRepeatableError(f"delivery {job.id} is {job.state.value} and goes on by itself")
    [result] = await storage.revise([revision])
    if result.verdict != "done":
        raise NotRepeatableError(f"delivery {job.id} has changed meanwhile: {result.verdict}")
    return RefView(queue=job.queue, id=job.id)
