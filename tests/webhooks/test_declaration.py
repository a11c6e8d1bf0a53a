"""What a webhook may be declared as, which events it selects, and the messages about them."""

import json
from datetime import UTC, datetime

import pytest

from tenure import (
    Event,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobStalled,
    QueuePaused,
    Tenure,
    UsageError,
    Webhook,
    WorkerDied,
)
from tenure.core.internal import WEBHOOKS_QUEUE
from tenure.core.job import RecordedError
from tenure.webhooks.messages import message_of

AT = datetime(2026, 5, 3, 10, 0, tzinfo=UTC)
URL = "https://example.com/"


def failed(queue: str = "pay.eu", task: str = "charge", **fields: object) -> JobFailed:
    error = RecordedError("ValueError", "no", "")
    values = {"id": "1", "attempt": 3, "reason": "exhausted", "error": error, "cursor": "7", "at": AT, **fields}
    return JobFailed(queue=queue, task=task, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "a b"}, "Webhook.name = 'a b' must have"),
        ({"name": ""}, "Webhook.name = '' must have"),
        ({"name": 1}, "Webhook.name = 1 must have"),
        ({"url": "http://example.com/"}, "is not encrypted"),
        ({"url": 5}, "is not a URL"),
        ({"events": ()}, "events is empty"),
        ({"events": JobFailed}, "must be several"),
        ({"events": ["failed"]}, "is not an event class"),
        ({"secret_env": "whsec_abc="}, "is not the name of an environment variable; write"),
        ({"where": "state:failed"}, "has a field that events do not have"),
        ({"where": "tag:vip"}, "has a field that events do not have"),
        ({"where": "queue:"}, "has no value here"),
        ({"where": None}, "must be a filter"),
        ({"allow_networks": "10.0.0.0/8"}, "is a single text"),
        ({"retry": 5}, "must be a Retry"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, object], why: str) -> None:
    values = {"name": "pay", "url": URL, "events": (JobFailed,), "secret_env": "PAY", **options}

    with pytest.raises(UsageError, match=why):
        Webhook(**values)  # type: ignore[arg-type]


def test_an_app_refuses_two_webhooks_of_one_name_and_other_values() -> None:
    webhook = Webhook("pay", URL, events=(JobFailed,), secret_env="PAY")

    with pytest.raises(UsageError, match="two webhooks have the name 'pay'"):
        Tenure("memory://", webhooks=[webhook, webhook])
    with pytest.raises(UsageError, match="must be a Webhook"):
        Tenure("memory://", webhooks=["pay"])  # type: ignore[list-item]
    assert Tenure("memory://", webhooks=[webhook]).webhooks == {"pay": webhook}


@pytest.mark.parametrize(
    ("where", "event", "selected"),
    [
        ("", failed(), True),
        ("", JobStalled(queue="q", id="1", task="t", count=1, action="recovered", reason="process_died"), True),
        ("", JobCompleted(queue="q", id="1", task="t", attempt=1), False),
        ("queue:pay.*", failed(), True),
        ("queue:mail,pay.eu task:charge", failed(), True),
        ("queue:pay", failed(), False),
        ("task:char*", failed(), True),
        ("task:other", failed(), False),
        ("reason:timeout", failed(), False),
        ("reason:exhausted error:Value*", failed(), True),
        ("error:KeyError", failed(), False),
        ("error:KeyError", failed(error=None), False),
        ("id:1", failed(), True),
        ("id:2", failed(), False),
        ("queue:pay.*", QueuePaused(queue="pay.eu"), True),
        ("queue:pay.*", WorkerDied(owner="o", host="h", pid=1), False),
        ("", WorkerDied(owner="o", host="h", pid=1), True),
        ("", failed(queue=WEBHOOKS_QUEUE), False),
        (f"queue:{WEBHOOKS_QUEUE}", failed(queue=WEBHOOKS_QUEUE), False),
    ],
)
def test_a_webhook_selects_events_by_class_and_filter(where: str, event: Event, selected: bool) -> None:
    kinds = (JobFailed, JobStalled, QueuePaused, WorkerDied)
    webhook = Webhook("pay", URL, events=kinds, secret_env="PAY", where=where)

    assert webhook.selects(event) is selected


def test_a_base_class_selects_all_events_of_jobs() -> None:
    webhook = Webhook("pay", URL, events=(JobEvent,), secret_env="PAY")

    assert webhook.selects(failed())
    assert not webhook.selects(QueuePaused(queue="q"))


def test_a_message_has_the_event_and_an_id_of_its_place() -> None:
    pay, other = (Webhook(name, URL, events=(JobFailed,), secret_env="PAY") for name in ("pay", "other"))
    message = message_of(pay, failed())
    body = json.loads(message.body)

    assert body["type"] == "job.failed"
    assert body["timestamp"] == "2026-05-03T10:00:00Z"
    assert body["data"]["event"] == "failed"
    assert (body["data"]["queue"], body["data"]["id"], body["data"]["reason"]) == ("pay.eu", "1", "exhausted")
    assert body["data"]["error"]["message"] == "no"
    assert message == message_of(pay, failed())
    others = [
        message_of(other, failed()),
        message_of(pay, failed(cursor="8")),
        message_of(pay, failed(at=datetime(2026, 5, 3, 10, 1, tzinfo=UTC))),
        message_of(pay, failed(id="2")),
    ]
    assert len({message.id, *(one.id for one in others)}) == 5


def test_a_message_has_no_result_of_a_job() -> None:
    webhook = Webhook("pay", URL, events=(JobCompleted, QueuePaused), secret_env="PAY")
    done = JobCompleted(queue="q", id="1", task="t", attempt=1, result=b'"secret"', cursor="1", at=AT)

    assert "secret" not in message_of(webhook, done).body
    assert json.loads(message_of(webhook, QueuePaused(queue="q", cursor="2", at=AT)).body)["type"] == "queue_paused"


def test_the_representation_of_a_webhook_shows_its_options_only() -> None:
    shown = repr(Webhook("pay", URL, events=(JobFailed,), secret_env="PAY"))

    assert "secret_env='PAY'" in shown
    assert "receiver" not in shown
