"""The webhooks of an app in one process: the tasks that deliver their messages, and the readers that make the jobs."""

import logging
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Self

from msgspec import structs

from tenure.client.codec import JsonCodec
from tenure.client.task import Task
from tenure.clock import Clock, SystemClock, entropy
from tenure.core.internal import WEBHOOKS_QUEUE
from tenure.core.job import JobRecord, NewJob
from tenure.ops.access import StorageAccess
from tenure.ops.audit import audited
from tenure.ops.internal import Agent, InternalTask
from tenure.options import Timing
from tenure.storage.protocol import Settings, Storage, Target
from tenure.webhooks.declaration import Webhook
from tenure.webhooks.delivery import WebhookSender, delivery_handler, delivery_options
from tenure.webhooks.messages import WebhookMessage
from tenure.webhooks.reader import WebhookReader

logger = logging.getLogger("tenure.webhooks")


def webhook_task(sender: WebhookSender, *, rng: Random | None = None) -> InternalTask:
    """Return the task that delivers the messages of a webhook."""
    webhook = sender.webhook
    return InternalTask(
        webhook.task,
        WEBHOOKS_QUEUE,
        delivery_options(webhook, rng or entropy()),
        lambda storage: delivery_handler(sender, partial(_pause_gone, storage)),
    )


async def _pause_gone(storage: Storage, webhook: Webhook, why: str) -> None:
    """Pause a webhook whose receiver wants no more messages, and say so in the log and in the audit log.

    Raises:
        StorageError: the audit log cannot be written; then the webhook is not paused.
    """
    by = f"webhook {webhook.name}"
    async with audited(
        storage, actor=by, role="receiver", via="webhook", action="webhooks.pause", target=webhook.name, reason=why
    ):
        await storage.tune(Target("task", webhook.task), Settings(paused=True), by=by)
    logger.warning(
        "webhook %s is paused, because %s; its messages wait up to 7 days: mend the receiver, then resume the "
        "webhook in the console or with: tenure queues resume --task %s",
        *(webhook.name, why, webhook.task),
    )


@dataclass(frozen=True)
class BoundWebhook:
    """A webhook and a storage: makes its delivery jobs and reads them."""

    sender: WebhookSender
    task: Task[..., Any]

    @classmethod
    def of(cls, webhook: Webhook, storage: Storage, timing: Timing, *, clock: Clock | None = None) -> Self:
        """Bind a webhook to a storage."""
        sender = WebhookSender(webhook, clock or SystemClock())
        return cls(sender, webhook_task(sender).bound(storage, timing))

    @property
    def webhook(self) -> Webhook:
        """Its declaration."""
        return self.sender.webhook

    def job(self, message: WebhookMessage, id_: str | None = None) -> NewJob:
        """Return the job that delivers a message. Its id is that of the message, unless another one is given.

        Raises:
            UsageError: the message is too large.
        """
        job = self.task.options(id=id_ or message.id).call(message.id, message.body).job
        return structs.replace(job, queue=WEBHOOKS_QUEUE)

    def message(self, job: JobRecord) -> WebhookMessage:
        """Return the message that a job delivers."""
        args, kwargs = self.task.decode(JsonCodec(), job)
        return WebhookMessage(*args, **kwargs)


def webhook_tasks(access: StorageAccess) -> list[InternalTask]:
    """Return the tasks of the webhooks whose messages this process can sign; log an error about each other webhook.

    The messages of the others wait for a process that can.
    """
    tasks: list[InternalTask] = []
    for webhook in access.webhooks.values():
        sender = WebhookSender(webhook, SystemClock())
        problem = sender.problem()
        if problem is None:
            tasks.append(webhook_task(sender))
        else:
            logger.error("this process sends no messages of webhook %s: %s", webhook.name, problem)
    return tasks


def webhook_readers(access: StorageAccess) -> list[Agent]:
    """Return for each webhook what makes its delivery jobs."""

    def reader(webhook: Webhook) -> Agent:
        storage = access.storage
        job_of = BoundWebhook.of(webhook, storage, access.timing).job
        return lambda owner: WebhookReader(webhook, job_of, storage, caller=owner, rng=entropy(), logger=logger).run()

    return [reader(webhook) for webhook in access.webhooks.values()]
