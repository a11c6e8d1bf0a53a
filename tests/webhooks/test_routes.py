"""The resources of webhooks in the console."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tenure import Retry, Tenure
from tenure.console import Console
from tenure.console.requests import ConsoleRequest
from tenure.console.users import Role, User
from tenure.core.internal import WEBHOOKS_QUEUE
from tenure.webhooks.messages import WebhookMessage
from tests.console.site import Reply, act_headers, call
from tests.webhooks.receivers import SECRET, answer, receiving
from tests.webhooks.test_deliveries import bound, deliveries, fail, serving, shop, until

BASE = "/api/v1/webhooks"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAY_SECRET", SECRET)


@dataclass
class Site:
    """The console of an app."""

    console: Console

    async def get(self, path: str = "") -> Reply:
        return await call(self.console, BASE + path)

    async def act(self, path: str, **body: Any) -> Reply:
        headers = [("host", "localhost"), *act_headers()]
        return await call(self.console, BASE + path, method="POST", headers=headers, body=[msgspec.json.encode(body)])


async def test_the_webhooks_of_the_app_are_listed_with_their_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as hooks, shop(hooks, where="queue:pay.*") as app:
        site = Site(Console(app))
        [listed] = (await site.get()).json["webhooks"]

        assert listed == (await site.get("/pay")).json
        assert listed == {
            "name": "pay",
            "url": f"http://127.0.0.1:{hooks.port}/in",
            "events": ["failed"],
            "where": "queue:pay.*",
            "allow_networks": ["127.0.0.0/8"],
            "task": "tenure.internal.webhooks.pay",
            "paused": False,
            "problem": None,
        }

        monkeypatch.delenv("PAY_SECRET")
        assert "PAY_SECRET of webhook 'pay' is not set" in (await site.get("/pay")).json["problem"]
        assert "PAY_SECRET" in (await site.act("/pay/test")).json["error"]
        assert (await site.get("/pax")).problem == "unknown-webhook"
        assert "did you mean 'pay'?" in (await site.get("/pax")).json["remedy"]


async def test_an_app_without_webhooks_lists_none() -> None:
    async with Tenure("memory://") as app:
        assert (await Site(Console(app)).get()).json == {"webhooks": []}


async def test_a_user_who_sees_some_queues_sees_no_webhooks() -> None:
    def narrowed(request: ConsoleRequest) -> User:
        return User("ann", "admin", queues=["pay"])

    async with receiving() as hooks, shop(hooks) as app:
        site = Site(Console(app, auth=narrowed))

        assert (await site.get()).json == {"webhooks": []}
        for reply in (await site.get("/pay"), await site.get("/pay/deliveries"), await site.act("/pay/pause")):
            assert reply.problem == "unknown-webhook"
    assert hooks.got == []


async def test_a_test_message_is_sent_at_once_even_if_the_webhook_is_paused() -> None:
    replies = iter([answer("204 No Content"), answer("500 Oh no")])
    async with receiving(lambda _: next(replies, None)) as hooks, shop(hooks) as app:
        site = Site(Console(app))
        assert (await site.act("/pay/pause", reason="maintenance")).json["paused"] is True
        done, refused, failed = [(await site.act("/pay/test")).json for _ in range(3)]

        assert (done["delivered"], done["status"], done["error"]) == (True, 204, None)
        assert done["took"] >= 0
        assert (refused["delivered"], refused["status"]) == (False, 500)
        assert refused["error"] == "the receiver answered 500 Oh no"
        assert (failed["delivered"], failed["status"]) == (False, None)
        assert "closed before the answer" in failed["error"]
        for got in hooks.got:
            got.verify()
        assert msgspec.json.decode(hooks.got[0].body)["type"] == "webhook.test"
        assert hooks.got[0].id == done["message"]

        audit = (await call(site.console, "/api/v1/audit?action=webhooks.test")).json["acts"]
        assert [act["verdict"] for act in audit] == ["not delivered", "not delivered", "done"]
        assert await deliveries(app) == []


async def test_deliveries_show_their_event_and_can_be_repeated() -> None:
    up = False
    few = Retry(max_attempts=1)
    async with (
        receiving(lambda _: answer("200 OK") if up else answer("500 Oh no")) as hooks,
        shop(hooks, retry=few) as app,
        serving(app),
    ):
        site = Site(Console(app))
        await fail(app)

        async def ended(state: str) -> Any:
            found = (await site.get(f"/pay/deliveries?state={state}")).json["deliveries"]
            return found[0] if found else None

        await until(lambda: ended("failed"))
        shown = await ended("failed")
        assert shown["error"] == {"type": "DeliveryFailedError", "message": "the receiver answered 500 Oh no"}
        assert (shown["queue"], shown["type"], shown["subject"]["queue"]) == (WEBHOOKS_QUEUE, "job.failed", "pay")
        assert (shown["id"], shown["attempt"], shown["max_attempts"]) == (hooks.got[0].id, 2, 1)
        assert shown["message"] == shown["id"]

        up = True
        again = await site.act("/pay/redeliver", id=shown["id"])
        assert again.json == {"queue": WEBHOOKS_QUEUE, "id": shown["id"]}
        await until(lambda: ended("completed"))

        # What was delivered is sent by another job, with the same id of the message.
        copy = await site.act("/pay/redeliver", id=shown["id"])
        assert copy.json["id"].startswith(f"{shown['id']}_")
        got = await hooks.wait_for(3)
        assert len({(one.id, one.body) for one in got}) == 1

        async def both() -> bool:
            return len((await site.get("/pay/deliveries?state=completed")).json["deliveries"]) == 2

        await until(both)
        page = (await site.get("/pay/deliveries?limit=1")).json
        assert page["next"] is not None
        rest = (await site.get(f"/pay/deliveries?limit=1&after={page['next']}")).json
        assert {one["id"] for one in page["deliveries"] + rest["deliveries"]} == {shown["id"], copy.json["id"]}
        assert (await site.get("/pay/deliveries?after=x")).problem == "invalid-cursor"
        assert (await site.act("/pay/redeliver", id="other")).problem == "unknown-job"


async def test_a_delivery_between_attempts_is_sent_now_and_a_waiting_one_is_left() -> None:
    replies = iter([answer("429 x", "retry-after: 3000")])
    async with receiving(lambda _: next(replies, answer("200 OK"))) as hooks, shop(hooks) as app:
        site = Site(Console(app))
        async with serving(app):
            await fail(app)
            await hooks.wait_for(1)

            async def delayed() -> Any:
                return (await site.get("/pay/deliveries?state=delayed")).json["deliveries"]

            await until(delayed)
            [shown] = await delayed()
            assert (await site.act("/pay/redeliver", id=shown["id"])).status == 200
            await hooks.wait_for(2)

            await site.act("/pay/pause")
            await fail(app)

            async def waiting() -> Any:
                return (await site.get("/pay/deliveries?state=waiting")).json["deliveries"]

            await until(waiting)
            [parked] = await waiting()
            refused = await site.act("/pay/redeliver", id=parked["id"])
            assert refused.problem == "wrong-state"
            assert refused.json["detail"] == f"delivery {parked['id']} waits because webhook pay is paused"
            assert refused.json["remedy"] == "resume the webhook"
            assert (await site.act("/pay/resume")).json["paused"] is False
            await hooks.wait_for(3)


async def test_a_redacted_field_is_left_out_of_the_arguments_of_a_delivery() -> None:
    async with receiving() as hooks, shop(hooks) as app:
        body = '{"type": "job.progressed", "data": {"value": {"password": {"is": "hidden"}, "step": 3}}}'
        await app.storage.enqueue([bound(app).job(WebhookMessage("msg_1", body))])
        path = f"/api/v1/jobs/{WEBHOOKS_QUEUE}/msg_1"

        shown = (await call(Console(app, redact=["password"]), path)).json["arguments"]
        assert shown["message"] == "msg_1"
        assert shown["body"]["data"]["value"] == {"password": "[redacted]", "step": 3}
        assert "opaque_bytes" in (await call(Console(app, payloads="never"), path)).json["arguments"]


@pytest.mark.parametrize(("role", "path"), [("read", "/…"), ("operate", "/in"), ("admin", "/in")])
async def test_a_url_is_shown_whole_to_users_who_may_operate(role: Role, path: str) -> None:
    async with receiving() as hooks, shop(hooks) as app:
        site = Site(Console(app, auth=lambda request: User("ann", role)))

        shown = (await site.get("/pay")).json
        assert shown["url"] == f"http://127.0.0.1:{hooks.port}{path}"
        assert (await site.get()).json["webhooks"] == [shown]


async def test_deliveries_are_not_among_the_jobs_unless_their_queue_is_named() -> None:
    async with receiving() as hooks, shop(hooks) as app:
        async with serving(app):
            await fail(app)
            await hooks.wait_for(1)
        site = Console(app)

        everything = (await call(site, "/api/v1/jobs")).json["jobs"]
        named = (await call(site, f"/api/v1/jobs?filter=queue:{WEBHOOKS_QUEUE}")).json["jobs"]
        assert {job["queue"] for job in everything} == {"pay"}
        assert [job["queue"] for job in named] == [WEBHOOKS_QUEUE]
        assert WEBHOOKS_QUEUE not in (await call(site, "/api/v1/queues")).body.decode()
