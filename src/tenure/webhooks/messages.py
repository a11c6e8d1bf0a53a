"""Makes the message about an event: its id and its body. The body is made once, and these bytes are signed and sent."""

import hashlib
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, structs

from tenure.core.events import Event, JobCompleted, JobEvent, name_of
from tenure.webhooks.declaration import Webhook

TEST = "webhook.test"
"""The type of a message that an operator sends to try a webhook."""


class WebhookMessage(Struct, frozen=True):
    """A message. `id`: the header webhook-id, the same for each attempt; `body`: JSON."""

    id: str
    body: str


class Envelope(Struct, frozen=True):
    """The body of a message, as Standard Webhooks recommends. `data`: the event as the event log has it."""

    type: str
    timestamp: datetime | None
    data: dict[str, Any]


def message_of(webhook: Webhook, event: Event) -> WebhookMessage:
    """Return the message about an event.

    Its id depends on the webhook and on the place of the event in the log, so a reader that repeats an event makes the
    same id again. The instant is part of it, because a log that lost its end uses cursors twice.
    """
    if isinstance(event, JobCompleted):
        # A result belongs to the app; who may read it is decided there.
        event = structs.replace(event, result=None)
    kind = name_of(event)
    job = f"{event.queue}\n{event.id}" if isinstance(event, JobEvent) else ""
    place = f"{webhook.name}\n{event.cursor}\n{event.at}\n{kind}\n{job}"
    return WebhookMessage(
        f"msg_{hashlib.sha256(place.encode()).hexdigest()[:32]}",
        _body(f"job.{kind}" if isinstance(event, JobEvent) else kind, event.at, msgspec.to_builtins(event)),
    )


def trial_message(webhook: Webhook, id_: str, at: datetime) -> WebhookMessage:
    """Return a message that tries a webhook and is about no event."""
    return WebhookMessage(f"msg_{id_}", _body(TEST, at, {"webhook": webhook.name}))


def envelope_of(body: str) -> Envelope | None:
    """Return the content of a body, None if it is not one of these."""
    try:
        return msgspec.json.decode(body, type=Envelope)
    except msgspec.MsgspecError:
        return None


def _body(kind: str, at: datetime | None, data: dict[str, Any]) -> str:
    return msgspec.json.encode(Envelope(kind, at, data)).decode()
