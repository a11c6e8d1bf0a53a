"""What a webhook may be declared as, which events it selects, and the messages about them."""

import json
from datetime import UTC, datetime

import pytest

from tenure import (
    Event,
    EventsTrimmed,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobRetried,
    JobStalled,
    LeaseLost,
    QueuePaused,
    ReaperFailed,
    Tenure,
    UsageError,
    Webhook,
    WorkerDied,
    WorkerFailed,
    WorkerHung,
)
from tenure.core.events import UnreadableEvent
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
        ({"events": [JobFailed, LeaseLost]}, "has LeaseLost, which is never recorded"),
        ({"events": [WorkerFailed]}, "has WorkerFailed, which is never recorded"),
        ({"events": [ReaperFailed]}, "has ReaperFailed, which is never recorded"),
        ({"events": [EventsTrimmed]}, "has EventsTrimmed, which is never recorded"),
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
    everything = Webhook("pay", URL, events=(Event,), secret_env="PAY")
    assert everything.selects(QueuePaused(queue="q"))
    assert not everything.selects(EventsTrimmed(oldest="7"))


def test_a_message_has_the_event_and_an_id_of_it() -> None:
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
        message_of(pay, failed(attempt=2)),
        message_of(pay, failed(at=datetime(2026, 5, 3, 10, 1, tzinfo=UTC))),
        message_of(pay, failed(id="2")),
    ]
    assert len({message.id, *(one.id for one in others)}) == 5


def test_the_id_of_a_message_does_not_depend_on_the_cursor() -> None:
    """On several partitions, the cursor has a place in each of them, and these differ from read to read."""
    webhook = Webhook("pay", URL, events=(JobFailed,), secret_env="PAY")

    assert message_of(webhook, failed(cursor="17.4")).id == message_of(webhook, failed(cursor="17.5")).id


@pytest.mark.parametrize(
    "event",
    [
        failed(error=RecordedError("ValueError", "no", "secret")),
        JobRetried(
            queue="q",
            id="1",
            task="t",
            attempt=1,
            next_attempt=2,
            delay=1.0,
            error=RecordedError("ValueError", "no", "secret"),
        ),
        JobStalled(queue="q", id="1", task="t", count=1, action="failed", reason="process_died", post_mortem="secret"),
        WorkerHung(owner="o", blocked_for=9.0, stack="secret"),
        UnreadableEvent(body="secret"),
    ],
)
def test_a_message_has_no_code_of_the_app(event: Event) -> None:
    body = message_of(Webhook("pay", URL, events=(Event,), secret_env="PAY"), event).body

    assert "secret" not in body
    if isinstance(event, JobFailed | JobRetried):
        assert json.loads(body)["data"]["error"] == {"type": "ValueError", "message": "no"}


def test_a_message_has_no_result_of_a_job() -> None:
    webhook = Webhook("pay", URL, events=(JobCompleted, QueuePaused), secret_env="PAY")
    done = JobCompleted(queue="q", id="1", task="t", attempt=1, result=b'"secret"', cursor="1", at=AT)

    assert "secret" not in message_of(webhook, done).body
    assert json.loads(message_of(webhook, QueuePaused(queue="q", cursor="2", at=AT)).body)["type"] == "queue_paused"


def test_the_representation_of_a_webhook_shows_its_options_only() -> None:
    shown = repr(Webhook("pay", URL, events=(JobFailed,), secret_env="PAY"))

    assert "secret_env='PAY'" in shown
    assert "receiver" not in shown
