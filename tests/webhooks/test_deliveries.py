"""Events become messages: once for each event, each until the receiver has it. Receivers are real servers."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tenure import (
    JobCancelled,
    JobEvent,
    JobFailed,
    JobRetried,
    Reject,
    Retry,
    Tenure,
    Timing,
    UsageError,
    Webhook,
)
from tenure.core.internal import WEBHOOKS_QUEUE
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure.ops.access import StorageAccess
from tenure.ops.internal_tasks import internal_worker
from tenure.ops.webhook_service import BoundWebhook, webhook_tasks
from tenure.storage.protocol import ActsQuery, EventReader, Query, Settings, Storage, Target
from tenure.webhooks.delivery import AT_ONCE, DELAYS, DeliveryFailedError, delivery_options
from tenure.webhooks.messages import WebhookMessage, message_of
from tests.webhooks.receivers import SECRET, Hooks, answer, receiving

FAST = Timing(lease="2s", beat="500ms", sweep="50ms", grace="500ms")
SOON = Retry(max_attempts=12, base="50ms", cap="100ms")


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAY_SECRET", SECRET)


@pytest.fixture(
    params=[
        *("memory", "sqlite"),
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/queue.db"
        case "redis":
            return str(request.getfixturevalue("redis_url"))
        case "postgres":
            return str(request.getfixturevalue("postgres_url"))
        case _:
            return "memory://"


def shop(hooks: Hooks, url: str = "memory://", **options: Any) -> Tenure:
    """Return an app whose task fails, with a webhook to a receiver."""
    values: dict[str, Any] = {
        "events": (JobFailed,),
        "secret_env": "PAY_SECRET",
        "allow_networks": ["127.0.0.0/8"],
        "retry": SOON,
        **options,
    }
    webhook = Webhook("pay", f"http://127.0.0.1:{hooks.port}/in", **values)
    app = Tenure(url, timing=FAST, webhooks=[webhook])

    @app.task(name="charge", queue="pay")
    async def charge(number: int) -> None:
        raise Reject(f"number {number}")

    return app


async def access_to(app: Tenure) -> StorageAccess:
    return StorageAccess(await app.opened(), app.codec.decode, app.timing, webhooks=app.webhooks)


@asynccontextmanager
async def serving(app: Tenure) -> AsyncGenerator[None]:
    """Serve the webhooks of an app, as a process that serves internal queues does."""
    await begin_to_read(await app.opened())
    async with internal_worker(lambda: access_to(app)):
        yield


def bound(app: Tenure) -> BoundWebhook:
    return BoundWebhook.of(app.webhooks["pay"], app.storage, app.timing)


async def begin_to_read(storage: Storage) -> None:
    """Let the reader of the webhook take its place in the log, before there are events."""
    await storage.events(limit=0, reader=EventReader("webhook:pay", "test"))


async def fail(app: Tenure, count: int = 1, **options: Any) -> None:
    """Let jobs fail."""
    task = app.find_task("charge")
    await app.enqueue_many(task.options(**options).call(number) for number in range(count))
    async with app.worker(queues=["pay"], burst=True) as worker:
        await worker.wait()


async def deliveries(app: Tenure) -> list[Any]:
    return list((await app.storage.find(Query(queues=(WEBHOOKS_QUEUE,)))).jobs)


async def until(holds: Callable[[], Any]) -> None:
    """Wait until an awaitable condition holds."""
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 - the storage is asked
            await asyncio.sleep(0.02)


async def test_each_event_arrives_once_with_a_signature(url: str) -> None:
    async with receiving() as hooks, shop(hooks, url) as app, serving(app):
        await fail(app, 3)
        got = await hooks.wait_for(3)

        for one in got:
            one.verify()
        bodies = [json.loads(one.body) for one in got]
        assert {body["type"] for body in bodies} == {"job.failed"}
        assert sorted(body["data"]["error"]["message"] for body in bodies) == [f"number {n}" for n in range(3)]

        async def all_completed() -> bool:
            return [job.state for job in await deliveries(app)] == [State.COMPLETED] * 3

        await until(all_completed)
        assert {job.id for job in await deliveries(app)} == {one.id for one in got}
        # Nothing was sent about the deliveries themselves, and none was repeated.
        assert len(hooks.got) == 3


async def test_a_message_is_sent_again_with_the_same_bytes_until_it_is_taken(url: str) -> None:
    replies = iter([None, answer("500 Oh no"), answer("302 Found", "location: /"), b"nonsense\r\n\r\n"])
    async with receiving(lambda _: next(replies, answer("200 OK"))) as hooks, shop(hooks, url) as app, serving(app):
        await fail(app)
        got = await hooks.wait_for(5)

        assert len({(one.id, one.body) for one in got}) == 1
        for one in got:
            one.verify()


async def test_events_that_are_not_selected_make_no_delivery() -> None:
    async with (
        receiving() as hooks,
        shop(hooks, where="queue:pay task:charge", events=(JobFailed, JobCancelled)) as app,
    ):

        @app.task(name="mail", queue="mail")
        async def mail() -> None:
            raise Reject("no")

        async with serving(app):
            await mail.enqueue()
            async with app.worker(queues=["mail"], burst=True) as worker:
                await worker.wait()
            await fail(app)
            await hooks.wait_for(1)

        assert [json.loads(one.body)["data"]["task"] for one in hooks.got] == ["charge"]
        assert len(await deliveries(app)) == 1


async def test_failed_deliveries_trigger_no_webhook() -> None:
    """Even one of all events of jobs: each failure would cause the next one."""
    no_more = Retry(max_attempts=1)
    async with receiving(lambda _: answer("500 x")) as hooks, shop(hooks, events=(JobEvent,), retry=no_more) as app:
        async with serving(app):
            await fail(app)

            async def all_ended() -> bool:
                jobs = await deliveries(app)
                return bool(jobs) and all(job.state is State.FAILED for job in jobs)

            await until(all_ended)
            # The reader passes the events of that delivery before it reads the ones of the next failure.
            await fail(app)

            async def two_ended() -> bool:
                jobs = await deliveries(app)
                return len({job.id for job in jobs}) >= 2 and all(job.state is State.FAILED for job in jobs)

            await until(two_ended)

        assert len(await deliveries(app)) == len(hooks.got) == 2
        assert all(json.loads(one.body)["data"]["queue"] == "pay" for one in hooks.got)


async def test_a_reader_that_repeats_a_page_makes_no_second_delivery(url: str) -> None:
    async with receiving() as hooks, shop(hooks, url) as app:
        await begin_to_read(await app.opened())
        await fail(app, 5)
        page = await app.storage.events("0")
        webhook = app.webhooks["pay"]
        jobs = [bound(app).job(message_of(webhook, event)) for event in page.events if webhook.selects(event)]
        assert [receipt.action for receipt in await app.storage.enqueue(jobs)] == ["created"] * 5

        async with serving(app):
            await hooks.wait_for(5)

            async def all_completed() -> bool:
                return all(job.state is State.COMPLETED for job in await deliveries(app))

            await until(all_completed)

        assert len(await deliveries(app)) == len(hooks.got) == 5


async def test_two_processes_share_the_events(url: str) -> None:
    async with receiving() as hooks, shop(hooks, url) as app, serving(app), serving(app):
        await fail(app, 20)
        await hooks.wait_for(20)

        async def all_completed() -> bool:
            return all(job.state is State.COMPLETED for job in await deliveries(app))

        await until(all_completed)
        assert len(await deliveries(app)) == 20


async def test_status_410_pauses_the_webhook_and_keeps_its_messages(url: str, caplog: pytest.LogCaptureFixture) -> None:
    gone = True
    async with (
        receiving(lambda _: answer("410 Gone") if gone else answer("204 No Content")) as hooks,
        shop(hooks, url) as app,
        serving(app),
    ):
        await fail(app)
        await hooks.wait_for(1)
        task = app.webhooks["pay"].task

        async def paused() -> bool:
            return task in (await app.storage.survey()).paused_tasks

        await until(paused)

        async def written() -> bool:
            return any(act.verdict == "done" for act in (await app.storage.acts(ActsQuery())).acts)

        await until(written)
        [act] = (await app.storage.acts(ActsQuery())).acts
        assert (act.actor, act.action, act.target, act.via) == ("webhook pay", "webhooks.pause", "pay", "webhook")
        assert act.reason == "the receiver answered 410 Gone"
        assert f"tenure queues resume --task {task}" in caplog.text
        await fail(app)

        async def two_wait() -> bool:
            return sorted(job.state for job in await deliveries(app)) == [State.WAITING] * 2

        await until(two_wait)
        assert len(hooks.got) == 1

        gone = False
        await app.storage.tune(Target("task", task), Settings(paused=False))
        await hooks.wait_for(3)
        assert len({one.id for one in hooks.got}) == 2


async def test_a_message_that_is_never_taken_becomes_a_dead_letter() -> None:
    few = Retry(max_attempts=3, base="10ms", cap="10ms")
    async with receiving(lambda _: answer("500 Oh no", body="trace")) as hooks, shop(hooks, retry=few) as app:
        async with serving(app):
            await fail(app)

            async def failed() -> bool:
                return [job.state for job in await deliveries(app)] == [State.FAILED]

            await until(failed)

        [job] = await deliveries(app)
        assert job.error.message == "the receiver answered 500 Oh no: trace"
        assert (job.reason, len(hooks.got)) == ("exhausted", 3)


async def test_retry_after_sets_the_next_attempt() -> None:
    slow = answer("429 Too Many Requests", "retry-after: 3000")
    async with receiving(lambda _: slow) as hooks, shop(hooks) as app, serving(app):
        await fail(app)

        async def delayed() -> bool:
            return [job.state for job in await deliveries(app)] == [State.DELAYED]

        await until(delayed)
        [job] = await deliveries(app)
        [detail] = await app.storage.get([Ref(WEBHOOKS_QUEUE, job.id)])
        assert detail is not None
        events = (await app.storage.events("0", ref=detail.job.ref)).events
        assert [event.delay for event in events if isinstance(event, JobRetried)] == [3000.0]


def retry_of(own: Retry | None = None) -> Callable[..., float]:
    """Return the delay in seconds after an attempt, by the retry options that a webhook makes of its own."""
    webhook = Webhook("pay", "https://x.example/", events=(JobFailed,), secret_env="X", retry=own)
    retry = delivery_options(webhook, Random(1)).retry
    assert retry is not None
    assert retry.delay is not None
    delay = retry.delay

    def seconds(attempt: int, asked: float | None = None) -> float:
        found = delay(attempt, DeliveryFailedError("x", asked))
        assert isinstance(found, timedelta)
        return found.total_seconds()

    return seconds


def test_the_default_attempts_are_12_from_5_s_to_6_h() -> None:
    delay = retry_of()

    assert attempts_of() == 12
    for attempt, least in enumerate(DELAYS, start=1):
        assert least <= delay(attempt) <= least * 1.1
    assert (DELAYS[0], DELAYS[-1]) == (5, 21_600)
    assert delay(1, 100_000.0) == 21_600
    assert 120 <= delay(3, 7.0) <= 132
    assert delay(1, 7.0) == 7


def test_the_own_retry_options_and_their_delay_are_used() -> None:
    own = Retry(max_attempts=4, delay=lambda attempt, error: attempt * 2)

    assert attempts_of(own) == 4
    assert retry_of(own)(3) == 6


@pytest.mark.parametrize(
    "own",
    [
        Retry(delay=lambda attempt, error: "2m"),
        Retry(delay=lambda attempt, error: timedelta(minutes=2)),
        Retry(backoff="fixed", base="2m", jitter=0.0),
    ],
)
def test_retry_after_lengthens_an_own_delay_and_never_shortens_it(own: Retry) -> None:
    delay = retry_of(own)

    assert (delay(1), delay(1, 0.0), delay(1, 7.0)) == (120, 120, 120)
    assert (delay(1, 300.0), delay(1, 100_000.0)) == (300, 21_600)


def test_an_own_delay_may_be_longer_than_a_receiver_may_ask_for() -> None:
    assert retry_of(Retry(delay=lambda attempt, error: "1d"))(1, 100_000.0) == 86_400


@pytest.mark.parametrize(
    "own", [Retry(max_attempts=20), Retry(never=ValueError), Retry(delay=lambda attempt, error: None)]
)
def test_an_own_retry_without_a_delay_has_the_delays_of_webhooks(own: Retry) -> None:
    delay = retry_of(own)

    assert attempts_of(own) == (own.max_attempts or 12)
    assert 120 <= delay(3) <= 132
    assert 21_600 <= delay(15) <= 23_760


def test_the_unset_numbers_of_an_own_delay_are_those_of_webhooks() -> None:
    doubled, fixed = retry_of(Retry(backoff="exponential", jitter=0.0)), retry_of(Retry(backoff="fixed"))

    assert (doubled(1), doubled(2), doubled(20)) == (5, 10, 21_600)
    assert 4.5 <= fixed(7) <= 5.5


def attempts_of(own: Retry | None = None) -> int | None:
    webhook = Webhook("pay", "https://x.example/", events=(JobFailed,), secret_env="X", retry=own)
    retry = delivery_options(webhook, Random(1)).retry
    assert retry is not None
    return retry.max_attempts


async def test_receivers_that_hang_leave_slots_to_operations() -> None:
    """Three webhooks send four messages each at once, and a worker has ten slots more."""
    ended, hanging = asyncio.Event(), Hooks()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.connections += 1
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    names = ("pay", "mail", "chat")
    async with server:
        hanging.port = server.sockets[0].getsockname()[1]
        hooks = [
            Webhook(
                *(name, f"http://127.0.0.1:{hanging.port}/"),
                events=(JobFailed,),
                secret_env="PAY_SECRET",
                allow_networks=["127.0.0.0/8"],
            )
            for name in names
        ]
        async with Tenure("memory://", timing=FAST, webhooks=hooks) as app:
            for name in names:
                job_of = BoundWebhook.of(app.webhooks[name], app.storage, app.timing).job
                await app.storage.enqueue(
                    [job_of(WebhookMessage(f"msg_{name}_{number}", "{}")) for number in range(AT_ONCE)]
                )

            async def all_hang() -> bool:
                return hanging.connections >= len(names) * AT_ONCE

            async with internal_worker(lambda: access_to(app)):
                try:
                    await until(all_hang)
                    [worker] = (await app.storage.survey([WEBHOOKS_QUEUE])).workers
                    assert worker.concurrency == 10 + len(names) * AT_ONCE
                finally:
                    ended.set()


async def test_a_process_without_the_secret_leaves_the_messages_to_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PAY_SECRET")
    async with receiving() as hooks, shop(hooks) as app:
        assert webhook_tasks(await access_to(app)) == []
        assert "the environment variable PAY_SECRET of webhook 'pay' is not set" in caplog.text


async def test_a_user_cannot_enqueue_on_the_internal_queue() -> None:
    app = Tenure("memory://")
    with pytest.raises(UsageError, match="reserved"):

        @app.task(queue=WEBHOOKS_QUEUE)
        async def mine() -> None: ...
