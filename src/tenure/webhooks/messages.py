"""Makes the message about an event: its id and its body. The body is made once, and these bytes are signed and sent."""

import hashlib
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, structs

from tenure.core.events import Event, JobEvent, name_of, to_log
from tenure.webhooks.declaration import Webhook

TEST = "webhook.test"
"""The type of a message that an operator sends to try a webhook."""

_LEFT_OUT = ("result", "traceback", "stack", "post_mortem", "body")
"""Fields of events and of their errors that hold values or code of the app, or a text that this version cannot read."""


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

    Its id depends on the webhook and on the event without its cursor, so a reader that repeats an event makes the same
    id again. On several partitions a cursor has a place in each of them, and these differ from read to read.
    """
    kind = name_of(event)
    content = to_log(structs.replace(event, cursor=None))
    digest = hashlib.sha256(webhook.name.encode() + b"\n" + content).hexdigest()
    data = {name: value for name, value in msgspec.to_builtins(event).items() if name not in _LEFT_OUT}
    if isinstance(data.get("error"), dict):
        data["error"] = {name: value for name, value in data["error"].items() if name not in _LEFT_OUT}
    return WebhookMessage(
        f"msg_{digest[:32]}", _body(f"job.{kind}" if isinstance(event, JobEvent) else kind, event.at, data)
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
