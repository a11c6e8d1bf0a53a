"""The class `Webhook`: which events go to which URL, and how. It is declared in code, so no secret is stored."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from tenure.core.check import of_kind, several, shown
from tenure.core.events import (
    Event,
    EventsTrimmed,
    JobEvent,
    LeaseLost,
    ReaperFailed,
    WorkerFailed,
    event_name,
)
from tenure.core.filter_text import JobConditions, Patterns, parse_filter
from tenure.core.internal import WEBHOOKS_QUEUE, is_internal_event
from tenure.core.job import RecordedError
from tenure.errors import UsageError
from tenure.events.registration import event_class
from tenure.options import Retry
from tenure.options.merging import fill
from tenure.options.retry import valid_retry
from tenure.webhooks.addresses import Network, Receiver, networks, receiver_of

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_EVENTS = "Webhook.events"
_NEVER_RECORDED = (LeaseLost, WorkerFailed, ReaperFailed, EventsTrimmed)
"""The event classes that a process reports to its own handlers only."""
_FIELDS = ("queue", "task", "id", "reason", "error")


@dataclass(frozen=True, init=False)
class Webhook:
    """Sends recorded events to a URL as signed messages (Standard Webhooks), each at least once.

    - `name`: its name, unique in the storage: "pay-alerts".
    - `url`: where the messages go. It must be https and lead to public addresses only; see `allow_networks`.
    - `events`: the event classes, such as `(JobFailed, JobStalled)`. Events that are recorded on request, such as
      `JobStarted`, must be recorded for the queue: `await app.queue(name).record(JobStarted)`.
    - `secret_env`: the environment variable with the secret: `whsec_` and 24 to 64 bytes in base64. During a rotation
      it holds two secrets, separated by a space, and each message has a signature of both.
    - `where`: only events that this filter selects: "queue:pay.* task:charge". It may have the fields queue, task, id,
      reason and error.
    - `allow_networks`: networks of your own to which it may send as well: ["10.1.0.0/16"]. To these http is allowed.
    - `retry`: how often a message is sent and when; by default 12 times in 21 hours, with pauses from 5 s to 6 h.

    Deliveries are jobs on an internal queue, which consoles and workers with `--internal` serve. Their own failures
    cause no message.

    Raises:
        UsageError: an option is invalid. The secret is read where the messages are sent, not here.
    """

    name: str
    url: str
    events: tuple[type[Event], ...]
    secret_env: str
    where: str
    allow_networks: tuple[str, ...]
    retry: Retry | None
    receiver: Receiver = field(repr=False, compare=False)
    """The parts of the URL."""
    opened: tuple[Network, ...] = field(repr=False, compare=False)
    """The networks that it opens."""
    conditions: JobConditions = field(repr=False, compare=False)
    """The conditions of the filter."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        events: Sequence[type[Event]],
        secret_env: str,
        where: str = "",
        allow_networks: Sequence[str] = (),
        retry: Retry | None = None,
    ) -> None:
        opened = networks(allow_networks, field="Webhook.allow_networks")
        receiver = receiver_of(url, opened, field="Webhook.url")
        fill(
            self,
            name=_name(name),
            url=url,
            events=_kinds(events),
            secret_env=_variable(secret_env),
            where=where,
            allow_networks=tuple(map(str, opened)),
            retry=None if retry is None else valid_retry(retry),
            receiver=receiver,
            opened=opened,
            conditions=_conditions(where),
        )

    @property
    def task(self) -> str:
        """The task of its deliveries, by which they can be found and paused."""
        return f"{WEBHOOKS_QUEUE}.{self.name}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of its events in the log."""
        return tuple(event_name(kind.__name__) for kind in self.events)

    def selects(self, event: Event) -> bool:
        """Return True if a message is sent about this event. About an event of an internal queue none is ever sent."""
        if not isinstance(event, self.events) or isinstance(event, _NEVER_RECORDED) or is_internal_event(event):
            return False
        where, error = self.conditions, getattr(event, "error", None)
        return (
            _matches(where.queues, getattr(event, "queue", None))
            and _matches(where.tasks, getattr(event, "task", None))
            and _matches(where.errors, error.type if isinstance(error, RecordedError) else None)
            and (not where.reasons or getattr(event, "reason", None) in where.reasons)
            and (where.id is None or (isinstance(event, JobEvent) and event.id == where.id))
        )


def webhooks_by_name(values: object) -> dict[str, Webhook]:
    """Return webhooks by name.

    Raises:
        UsageError: one of the values is not a webhook, or two have one name.
    """
    found: dict[str, Webhook] = {}
    for value in several(values, field="webhooks"):
        webhook = of_kind(
            value, Webhook, field="webhooks", remedy='write webhooks=[Webhook("pay", "https://...", ...)]'
        )
        if webhook.name in found:
            raise UsageError(f"two webhooks have the name {webhook.name!r}; give each a name of its own")
        found[webhook.name] = webhook
    return found


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise UsageError(
            f"Webhook.name = {shown(value)} must have 1 to 64 of the characters a-z, 0-9, '-', '_' and '.', and begin "
            "with a letter or a digit"
        )
    return value


def _variable(value: object) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        # It may be the secret itself, so the message does not show it.
        raise UsageError(
            "Webhook.secret_env is not the name of an environment variable; write "
            'secret_env="PAY_WEBHOOK_SECRET", not the secret itself'
        )
    return value


def _kinds(values: object) -> tuple[type[Event], ...]:
    kinds = tuple(event_class(kind) for kind in cast("tuple[type[Event], ...]", several(values, field=_EVENTS)))
    if not kinds:
        raise UsageError("Webhook.events is empty; name at least one event class, such as JobFailed")
    for kind in kinds:
        if issubclass(kind, _NEVER_RECORDED):
            raise UsageError(
                f"Webhook.events has {kind.__name__}, which is never recorded, so no message would be sent; handle "
                f"it in the process with @app.on({kind.__name__})"
            )
    return kinds


def _conditions(where: object) -> JobConditions:
    if not isinstance(where, str):
        raise UsageError(f'Webhook.where = {shown(where)} must be a filter, such as "queue:pay.*"')
    conditions = parse_filter(where)
    known = JobConditions(
        queues=conditions.queues,
        tasks=conditions.tasks,
        reasons=conditions.reasons,
        errors=conditions.errors,
        id=conditions.id,
    )
    if conditions != known:
        raise UsageError(
            f"Webhook.where = {shown(where)} has a field that events do not have; use only {', '.join(_FIELDS)}"
        )
    return conditions


def _matches(patterns: Patterns, value: object) -> bool:
    return not patterns or (isinstance(value, str) and any(pattern.matches(value) for pattern in patterns))
