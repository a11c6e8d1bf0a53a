"""The acts of the admin API, on each storage, over a real socket."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tenure import Tenure, Throttle
from tenure.console import Token, Tokens, User
from tenure.console.act_table import ACTS as ALL_ACTS
from tenure.console.routes import Route
from tenure.core.audit import OperatorAct
from tenure.core.events import QueuePaused
from tenure.core.job import JobRecord, Owner, Ref
from tenure.core.lifecycle import State
from tenure.errors import StorageFullError
from tenure.storage.protocol import EVENTS_END, ActsQuery, RenewRequest, Settings, Target, WorkerInfo
from tests.console.conftest import EVERY_STORAGE, HOLDER, Shop, served
from tests.console.site import Reply, get, path_to

pytestmark = pytest.mark.thorough

SECRET = "0123456789abcdef"

ACTS = [route for route in ALL_ACTS if not route.path.startswith("/ops")]
"""The acts on single things."""


async def job(shop: Shop, name: str, queue: str = "mail") -> JobRecord:
    (detail,) = await shop.app.storage.get([Ref(queue, shop.jobs.get(name, name))])
    assert detail is not None
    return detail.job


def act_on(shop: Shop, name: str, verb: str, queue: str = "mail") -> str:
    """Return the path of an act on a job of the shop."""
    return path_to("jobs", queue, shop.jobs.get(name, name), verb)


async def acts(shop: Shop, *, target: str | None = None, action: str | None = None) -> list[OperatorAct]:
    return list((await shop.app.storage.acts(ActsQuery(target=target, action=action))).acts)


async def shown(shop: Shop, name: str, queue: str = "mail") -> Any:
    return (await shop.get(path_to("jobs", queue, shop.jobs.get(name, name)))).json


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@EVERY_STORAGE
async def test_a_job_is_cancelled_redriven_and_deleted(shop: Shop) -> None:
    cancelled = await shop.act(act_on(shop, "waiting", "cancel"), {"reason": "wrong address"})

    assert cancelled.json == {
        "queue": "mail",
        "id": shop.jobs["waiting"],
        "verdict": "done",
        "was": "waiting",
        "holder": None,
    }
    assert (await job(shop, "waiting")).cancel_reason == "wrong address"
    assert (await job(shop, "waiting")).cancel_by == "local"

    redriven = await shop.act(act_on(shop, "waiting", "redrive"), {"delay": "1h"})

    assert (redriven.status, redriven.json["was"]) == (200, "cancelled")
    assert (await job(shop, "waiting")).state is State.DELAYED

    deleted = await shop.act(act_on(shop, "waiting", "delete"))

    assert (deleted.status, deleted.json["verdict"]) == (200, "done")
    assert (await shop.get(path_to("jobs", "mail", shop.jobs["waiting"]))).status == 404
    target = f"mail/{shop.jobs['waiting']}"
    assert [(act.action, act.change, act.reason, act.verdict) for act in await acts(shop, target=target)] == [
        ("jobs.delete", None, None, "done"),
        ("jobs.redrive", "delay=1h", None, "done"),
        ("jobs.cancel", None, "wrong address", "done"),
    ]


@EVERY_STORAGE
async def test_the_run_of_an_active_job_is_asked_to_stop(shop: Shop) -> None:
    asked = await shop.act(act_on(shop, "active", "cancel", "pay/eu"))

    assert (asked.status, asked.json["verdict"], asked.json["was"]) == (200, "asked", "active")
    assert (await job(shop, "active", "pay/eu")).cancel_at is not None
    assert [act.verdict for act in await acts(shop, target=f"pay/eu/{shop.jobs['active']}")] == ["asked"]


@EVERY_STORAGE
async def test_a_job_is_rescheduled_and_its_priority_changes(shop: Shop) -> None:
    at_once = await shop.act(act_on(shop, "delayed", "reschedule"), {"delay": 0, "priority": 5})

    assert at_once.status == 200, at_once.json
    record = await job(shop, "delayed")
    assert (record.state, record.priority) == (State.WAITING, 5)
    assert (await acts(shop, action="jobs.reschedule"))[0].change == "delay=0.0 priority=5"


@EVERY_STORAGE
async def test_a_result_is_kept_longer(shop: Shop) -> None:
    before = await job(shop, "sent")
    kept = await shop.act(
        act_on(shop, "sent", "retain"), {"ttl": "9d", "ended": (await shown(shop, "sent"))["finished"]}
    )

    assert kept.status == 200, kept.json
    after = await job(shop, "sent")
    assert (after.kept_until or 0) - (before.finished or 0) > 8 * 86_400 * 1_000_000


@EVERY_STORAGE
@pytest.mark.parametrize(
    ("name", "verb", "body", "says"),
    [
        ("sent", "cancel", None, "is completed already"),
        ("sent", "redrive", None, "is completed; only failed, cancelled or expired jobs are redriven"),
        ("active", "delete", None, "is active; cancel it first"),
        ("failed", "reschedule", {"delay": 1}, "is failed; only a job that is waiting or delayed is rescheduled"),
        ("failed", "retain", {"ttl": 1}, "is failed; only the result of a completed job is retained"),
    ],
)
async def test_a_state_that_does_not_allow_an_act_is_a_problem(
    shop: Shop, name: str, verb: str, body: object, says: str
) -> None:
    queue = "pay/eu" if name == "active" else "mail"
    before = await job(shop, name, queue)
    reply = await shop.act(act_on(shop, name, verb, queue), body)

    assert (reply.status, reply.problem) == (409, "wrong-state")
    assert says in "; ".join(filter(None, (reply.json["detail"], reply.json.get("remedy"))))
    assert await job(shop, name, queue) == before
    assert (await acts(shop, action=f"jobs.{verb}"))[0].verdict == f"refused: the job is {before.state.value}"


@EVERY_STORAGE
async def test_an_act_on_a_job_that_does_not_exist_is_a_problem(shop: Shop) -> None:
    for verb, body in (("cancel", {}), ("redrive", {}), ("delete", {}), ("retain", {"ttl": 1})):
        assert (await shop.act(act_on(shop, "nope", verb), body)).problem == "unknown-job"
    assert (await shop.act(act_on(shop, "nope", "reschedule"), {"priority": 1})).problem == "unknown-job"
    assert (await shop.act(act_on(shop, "nope", "reschedule"), {"delay": 1})).problem == "unknown-job"


@EVERY_STORAGE
async def test_a_job_that_ended_again_since_it_was_seen_is_not_changed(shop: Shop) -> None:
    seen = (await shown(shop, "failed"))["finished"]
    assert seen is not None

    assert (await shop.act(act_on(shop, "failed", "redrive"), {"ended": seen})).status == 200
    # It waits again, so an act on the failure that was seen does nothing.
    for verb, body in (("redrive", {}), ("cancel", {}), ("delete", {}), ("reschedule", {"delay": 9})):
        reply = await shop.act(act_on(shop, "failed", verb), {**body, "ended": seen})
        assert (reply.status, reply.problem) == (409, "changed"), verb
        assert reply.json["errors"][0]["pointer"] == "/body/ended"

    worker = shop.app.worker(queues=["mail"], burst=True)
    await worker.start()
    await worker.wait()
    failed_again = await job(shop, "failed")
    reply = await shop.act(act_on(shop, "failed", "redrive"), {"ended": seen})

    assert reply.problem == "changed"
    assert await job(shop, "failed") == failed_again
    assert failed_again.state is State.FAILED
    assert [act.verdict for act in await acts(shop, action="jobs.redrive")] == ["changed", "changed", "done"]


@EVERY_STORAGE
async def test_the_guard_null_means_that_the_job_had_not_ended(shop: Shop) -> None:
    assert (await shop.act(act_on(shop, "failed", "delete"), {"ended": None})).problem == "changed"
    assert (await shop.act(act_on(shop, "waiting", "cancel"), {"ended": None})).status == 200
    # A job without a guard is cancelled or deleted as it is.
    assert (await shop.act(act_on(shop, "failed", "delete"))).status == 200


async def test_a_redrive_names_the_job_that_holds_the_unique_key(shop: Shop) -> None:
    broken = shop.app.find_task("mail.break")
    first = await broken.options(unique="u").enqueue(7)
    await first.cancel()
    second = await broken.options(unique="u", delay="1h").enqueue(7)
    reply = await shop.act(act_on(shop, first.id, "redrive"))

    assert reply.problem == "key-held"
    assert f"job {second.id} holds its unique key" in reply.json["detail"]


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@EVERY_STORAGE
async def test_a_call_is_checked_by_the_task_of_the_app(shop: Shop) -> None:
    call = {"task": "charge", "arguments": {"account": 5}, "delay": "2h", "priority": 3, "tags": ["by-hand"]}
    made = await shop.act(path_to("jobs"), call)

    assert (made.status, made.json["queue"], made.json["action"]) == (200, "pay/eu", "created")
    record = await job(shop, made.json["id"], "pay/eu")
    assert (record.task, record.priority, record.tags) == ("charge", 3, ("by-hand",))
    assert [key.name for key in record.keys] == ["account:5"]
    assert (await shown(shop, record.id, "pay/eu"))["arguments"] == {"account": 5}
    (act,) = await acts(shop, action="jobs.enqueue")
    assert (act.target, act.verdict) == (f"pay/eu/{record.id}", "created")
    # The log keeps no arguments: they may be secret.
    assert "account" not in (act.change or "")

    in_order = await shop.act(path_to("jobs"), {"task": "charge", "arguments": [6], "id": "mine"})
    again = await shop.act(path_to("jobs"), {"task": "charge", "arguments": [6], "id": "mine"})

    assert (in_order.json["id"], in_order.json["action"]) == ("mine", "created")
    assert (again.json["id"], again.json["action"]) == ("mine", "duplicate")


@pytest.mark.parametrize(
    ("body", "name", "pointer", "says"),
    [
        ({"task": "chrge"}, "unknown-task", "/body/task", "did you mean 'charge'?"),
        ({"task": "charge"}, "invalid-body", "/body/arguments", "the argument 'account' is missing"),
        ({"task": "charge", "arguments": {"accont": 1}}, "invalid-body", "/body/arguments", "no argument 'accont'"),
        ({"task": "charge", "arguments": {"account": "x"}}, "invalid-body", "/body/arguments", "charge"),
        (
            {"task": "charge", "arguments": [1], "priority": 900},
            "invalid-body",
            "/body/priority",
            "must be 500 or less",
        ),
        ({"task": "charge", "arguments": [1], "delay": "1x"}, "invalid-body", "/body/delay", "is not a duration"),
        ({"task": "charge", "arguments": [1], "queue": ""}, "invalid-body", "/body/queue", "must be a text"),
        ({"task": "charge", "arguments": [1], "id": "\0"}, "invalid-body", "/body/id", "without NUL"),
        ({"task": "charge", "arguments": [1], "tags": [""]}, "invalid-body", "/body/tags", "a tag = '' must be a text"),
        ({"task": "charge", "arguments": [1], "queue": "mial"}, "unknown-queue", "/body/queue", "did you mean 'mail'?"),
        ({"task": "x" * 2000, "force": True}, "invalid-body", "/body/task", "1 to 1,024 bytes"),
    ],
)
async def test_a_wrong_call_names_the_field(shop: Shop, body: object, name: str, pointer: str, says: str) -> None:
    reply = await shop.act(path_to("jobs"), body)

    assert reply.problem == name, reply.json
    assert [part["pointer"] for part in reply.json["errors"]] == [pointer]
    assert says in f"{reply.json['detail']}; {reply.json.get('remedy', '')}"
    assert await acts(shop, action="jobs.enqueue") == []


@EVERY_STORAGE
async def test_a_repeated_call_with_one_key_is_one_job(shop: Shop) -> None:
    key = [("Idempotency-Key", "of-this-click")]
    call = {"task": "charge", "arguments": {"account": 5}}
    first, second = [await shop.act(path_to("jobs"), call, headers=key) for _ in range(2)]

    assert (first.json["action"], second.json["action"]) == ("created", "duplicate")
    assert first.json["id"] == second.json["id"]

    other = await shop.act(path_to("jobs"), {"task": "charge", "arguments": {"account": 6}}, headers=key)
    another_key = await shop.act(path_to("jobs"), call, headers=[("Idempotency-Key", "another")])

    assert other.problem == "key-reused"
    assert another_key.json["action"] == "created"

    first, second = [await shop.act(path_to("schedules", "hourly", "trigger"), headers=key) for _ in range(2)]

    assert (first.json["action"], second.json["action"]) == ("created", "duplicate")
    assert first.json["id"] == second.json["id"] != other.json.get("id")


async def test_a_key_that_is_invalid_is_refused(shop: Shop) -> None:
    call = {"task": "charge", "arguments": {"account": 5}}
    for keys in (["a", "b"], [""], ["x" * 256]):
        reply = await shop.act(path_to("jobs"), call, headers=[("Idempotency-Key", key) for key in keys])
        assert (reply.problem, reply.json["errors"][0]["pointer"]) == ("invalid-parameter", "/header/idempotency-key")
    both = await shop.act(path_to("jobs"), {**call, "id": "mine"}, headers=[("Idempotency-Key", "a")])
    assert (both.problem, both.json["errors"][0]["pointer"]) == ("invalid-body", "/body/id")


async def test_equal_keys_of_two_users_are_two_jobs(shop: Shop) -> None:
    users = {"ann": "ann-0123456789abcdef", "bob": "bob-0123456789abcdef"}
    async with served(shop.app, auth=Tokens(*(f"{name}:operate:{secret}" for name, secret in users.items()))) as port:
        ids = set[str]()
        for secret in users.values():
            reply = await ask(
                port,
                path_to("jobs"),
                {"task": "charge", "arguments": [5]},
                secret=secret,
                headers=[("idempotency-key", "same")],
            )
            ids.add(reply.json["id"])
    assert len(ids) == 2


@pytest.mark.parametrize("shop", ["memory"], indirect=True)
async def test_a_throttled_call_says_when_to_try_again(shop: Shop) -> None:
    @shop.app.task(name="rare", queue="mail", throttle=Throttle(max=1, window="1h"))
    async def rare() -> None: ...

    assert (await shop.act(path_to("jobs"), {"task": "rare"})).json["action"] == "created"
    reply = await shop.act(path_to("jobs"), {"task": "rare"})

    assert (reply.status, reply.problem) == (429, "throttled")
    assert 3500 < int(reply.header("retry-after") or 0) <= 3600


async def test_the_sending_middleware_of_the_app_is_applied(shop: Shop) -> None:
    @shop.app.sending
    async def traced(call: Any, proceed: Callable[[], Awaitable[Any]]) -> Any:
        call.headers["trace"] = "abc"
        return await proceed()

    made = await shop.act(path_to("jobs"), {"task": "charge", "arguments": [5]})

    assert dict((await job(shop, made.json["id"], "pay/eu")).headers) == {"trace": "abc"}


# ── queues and tasks ──────────────────────────────────────────────────────────────────────────────────────────────────


@EVERY_STORAGE
async def test_the_settings_of_a_queue_change(shop: Shop) -> None:
    queue = path_to("queues", "mail")
    paused = await shop.act(queue, {"paused": True, "reason": "the relay is down"}, method="PATCH")

    assert (paused.status, paused.json["paused"]) == (200, True)
    events = (await shop.app.storage.events(None, limit=500)).events
    assert [event.by for event in events if isinstance(event, QueuePaused)] == ["local"]

    changed = await shop.act(
        queue,
        {
            "paused": False,
            "rate": "100/m",
            "stall": {"lease": "8s", "max_stalls": 3, "renewed": False},
            "retention": {"failed": {"age": "9d", "count": 7}},
            "record": ["started"],
        },
        method="PATCH",
    )

    assert changed.status == 200, changed.json
    view = (await shop.get(queue)).json
    assert view["rate"] == {"every": 0.6, "burst": 1}
    assert view["stall"] == {"lease": 8.0, "max_stalls": 3, "start_grace": None, "renewed": False}
    assert view["retention"]["failed"] == {"age": 9 * 86_400.0, "count": 7}
    assert view["retention"]["completed"] == {"age": 3600.0, "count": 10_000}
    assert view["record"] == ["started"]
    # A rate can be given as the API shows it, and null ends it.
    assert (await shop.act(queue, {"rate": {"every": 2, "burst": 3}}, method="PATCH")).json["rate"]["burst"] == 3
    assert (await shop.act(queue, {"rate": None}, method="PATCH")).json["rate"] is None
    assert (await shop.act(queue, {"lift": "*"}, method="PATCH")).status == 200
    assert [(act.action, act.change) for act in await acts(shop, target="mail")] == [
        ("queues.lift", "lift=*"),
        ("queues.rate", "rate=null"),
        ("queues.rate", 'rate={"every":2.0,"burst":3}'),
        (
            "queues.set",
            "paused=false rate=100/m "
            'stall={"lease":"8s","max_stalls":3,"start_grace":null,"renewed":false} '
            'retention={"completed":null,"failed":{"age":"9d","count":7},"cancelled":null,"expired":null} '
            'record=["started"]',
        ),
        ("queues.pause", "paused=true"),
    ]


@EVERY_STORAGE
@pytest.mark.parametrize("path", [path_to("queues", "mail"), path_to("tasks", "charge")])
async def test_settings_that_changed_since_they_were_read_stay(shop: Shop, path: str) -> None:
    tag = (await shop.get(path)).header("etag") or ""

    async def patch(body: object, match: str) -> Reply:
        return await shop.act(path, body, method="PATCH", headers=[("If-Match", match)])

    first = await patch({"rate": "5/s"}, tag)

    assert first.status == 200, first.json
    assert first.header("etag") not in (None, tag)
    assert first.header("etag") == (await shop.get(path)).header("etag")

    late = await patch({"paused": True}, tag)

    assert (late.status, late.problem) == (412, "settings-changed")
    assert late.header("etag") == first.header("etag")
    assert (await shop.get(path)).json["paused"] is False
    assert (await patch({"paused": True}, f'"other", {first.header("etag")}')).status == 200
    assert (await patch({"paused": False}, "*")).status == 200


@EVERY_STORAGE
@pytest.mark.parametrize("path", [path_to("queues", "mail"), path_to("tasks", "charge")])
async def test_a_repeated_change_of_settings_gets_the_first_answer(shop: Shop, path: str) -> None:
    async def patch(body: object, tag: str) -> Reply:
        headers = [("If-Match", tag), ("Idempotency-Key", "of this change")]
        return await shop.act(path, body, method="PATCH", headers=headers)

    target = path.rpartition("/")[2]
    changes: list[dict[str, Any]] = [{"rate": "5/s", "paused": True}, {"rate": None}, {"paused": False}]
    for number, change in enumerate(changes, 1):
        tag = (await shop.get(path)).header("etag") or ""
        first, again = await patch(change, tag), await patch(change, tag)

        assert (first.status, again.status) == (200, 200), again.json
        assert again.header("etag") == first.header("etag")
        assert [again.json[field] for field in change] == [first.json[field] for field in change]

        # If it is not in force any more, the caller has not seen what is.
        assert (await shop.act(path, {"rate": f"{number}/h", "paused": True}, method="PATCH")).status == 200
        if "rate" in change:
            assert (await patch(change, tag)).problem == "settings-changed"
        assert len(await acts(shop, target=target)) == 2 * number


@EVERY_STORAGE
async def test_a_repeated_lift_is_not_taken_for_done(shop: Shop) -> None:
    path = path_to("queues", "mail")
    tag = (await shop.get(path)).header("etag") or ""
    body = {"paused": True, "lift": "*"}
    replies = [await shop.act(path, body, method="PATCH", headers=[("If-Match", tag)]) for _ in range(2)]

    assert [reply.status for reply in replies] == [200, 412]


@EVERY_STORAGE
async def test_a_change_between_the_reading_and_the_act_is_seen(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = shop.app.storage
    record_act = storage.record_act
    for path, target in ((path_to("queues", "mail"), Target("queue", "mail")), (path_to("tasks", "charge"), TASK)):
        tag = (await shop.get(path)).header("etag") or ""

        async def other_first(act: OperatorAct, *, target: Target = target, **options: Any) -> OperatorAct:
            monkeypatch.setattr(storage, "record_act", record_act)
            await storage.tune(target, Settings(paused=True), by="another")
            return await record_act(act, **options)

        monkeypatch.setattr(storage, "record_act", other_first)
        reply = await shop.act(path, {"paused": False}, method="PATCH", headers=[("If-Match", tag)])

        # The caller wants what it has read, but this is not in force any more.
        assert reply.problem == "settings-changed", reply.json
        assert (await shop.get(path)).json["paused"] is True
        assert (await acts(shop, target=target.name))[0].verdict == "changed"


TASK = Target("task", "charge")


@EVERY_STORAGE
async def test_a_task_is_paused_and_limited_in_all_queues(shop: Shop) -> None:
    path = path_to("tasks", "charge")
    paused = await shop.act(path, {"paused": True, "rate": "2/s"}, method="PATCH")

    assert (paused.json["paused"], paused.json["rate"]) == (True, {"every": 0.5, "burst": 1})
    assert (await shop.app.find_task("charge").controls()).paused
    assert (await shop.act(path_to("tasks", "chrge"), {"paused": True}, method="PATCH")).problem == "unknown-task"
    assert (await shop.act(path_to("queues", "mial"), {"paused": True}, method="PATCH")).problem == "unknown-queue"


# ── workers and schedules ─────────────────────────────────────────────────────────────────────────────────────────────


@EVERY_STORAGE
async def test_a_worker_gets_orders(shop: Shop) -> None:
    async def order(verb: str, body: object = None) -> Any:
        reply = await shop.act(path_to("workers", "web-3", verb), body)
        assert reply.status == 200, reply.json
        return {name: reply.json[name] for name in ("quiet", "stop", "concurrency")}

    info = WorkerInfo(("pay/eu",), 1, 1, tasks={"charge": 1})

    assert await order("quiet") == {"quiet": True, "stop": False, "concurrency": None}
    assert await order("concurrency", {"concurrency": 3}) == {"quiet": True, "stop": False, "concurrency": 3}
    assert (await shop.app.storage.renew(RenewRequest(HOLDER, (), info))).orders == ("quiet", "concurrency:3")
    assert await order("resume") == {"quiet": False, "stop": False, "concurrency": 3}
    assert await order("concurrency", {"concurrency": None}) == {"quiet": False, "stop": False, "concurrency": None}
    assert await order("stop", {"reason": "deploy"}) == {"quiet": False, "stop": True, "concurrency": None}
    assert [(act.action, act.change, act.reason) for act in await acts(shop, target=HOLDER.id)] == [
        ("workers.stop", None, "deploy"),
        ("workers.concurrency", "concurrency=own", None),
        ("workers.resume", None, None),
        ("workers.concurrency", "concurrency=3", None),
        ("workers.quiet", None, None),
    ]
    assert (await shop.act(path_to("workers", "web-33", "stop"))).problem == "unknown-worker"
    assert (await shop.act(path_to("workers", "web-3", "concurrency"), {"concurrency": 0})).problem == "invalid-body"


@EVERY_STORAGE
async def test_a_schedule_is_paused_resumed_triggered_and_removed(shop: Shop) -> None:
    def path(*verb: str) -> str:
        return path_to("schedules", "hourly", *verb)

    assert (await shop.act(path("pause"))).json["paused"] is True
    assert (await shop.act(path("resume"))).json["paused"] is False

    triggered = await shop.act(path("trigger"), {"reason": "now"})

    assert (triggered.json["queue"], triggered.json["action"]) == ("mail", "created")
    assert (await job(shop, triggered.json["id"])).schedule == "hourly"
    assert (await shop.act(path(), method="DELETE")).json == {"name": "hourly"}
    assert (await shop.act(path(), method="DELETE")).problem == "unknown-schedule"
    assert [act.action for act in await acts(shop, target="hourly")] == [
        "schedules.remove",
        "schedules.trigger",
        "schedules.resume",
        "schedules.pause",
    ]


# ── the audit log ─────────────────────────────────────────────────────────────────────────────────────────────────────


def names_in(shop: Shop) -> dict[str, str]:
    """Return names with which the paths of all acts exist."""
    return {
        "queue": "mail",
        "id": shop.jobs["delayed"],
        "task": "charge",
        "worker": "web-3",
        "schedule": "hourly",
        "webhook": "alerts",
    }


def body_of(route: Route) -> dict[str, Any]:
    """Return a body that an act of this route accepts."""
    bodies: dict[str, dict[str, Any]] = {
        "enqueue": {"task": "charge", "arguments": [5]},
        "reschedule_job": {"delay": 1},
        "retain_job": {"ttl": 1},
        "change_queue": {"paused": True},
        "change_task": {"paused": True},
        "set_concurrency": {"concurrency": 2},
        "redeliver": {"id": "msg_1"},
    }
    return bodies.get(route.name, {})


@pytest.mark.parametrize("shop", ["memory", "sqlite"], indirect=True)
async def test_an_act_that_cannot_be_recorded_is_not_done(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(act: OperatorAct, **options: Any) -> OperatorAct:
        raise StorageFullError("the disk is full")

    monkeypatch.setattr(shop.app.storage, "record_act", full)
    before = await shop.app.storage.survey()
    events = await shop.app.storage.events(EVENTS_END, limit=1)
    for route in ACTS:
        path = path_to(*(names_in(shop).get(part.strip("{}"), part) for part in route.parts))
        reply = await shop.act(path, body_of(route), method=route.method)

        assert (reply.status, reply.problem) == (503, "not-audited"), path
        assert "the disk is full" in reply.json["detail"]

    after = await shop.app.storage.survey()
    assert [(queue.queue, queue.counts, queue.settings) for queue in after.queues] == [
        (queue.queue, queue.counts, queue.settings) for queue in before.queues
    ]
    assert (after.schedules, after.paused_tasks) == (before.schedules, before.paused_tasks)
    assert (await shop.app.storage.events(events.next, limit=10)).events == ()


async def test_each_act_names_the_user_and_the_role(shop: Shop) -> None:
    async with served(shop.app, auth=Tokens(f"ann:admin:{SECRET}")) as port:
        for route in ACTS:
            path = path_to(*(names_in(shop).get(part.strip("{}"), part) for part in route.parts))
            body = {**body_of(route), "reason": "a test"}
            await ask(port, path, body, method=route.method)

    found = await acts(shop)
    assert len(found) == len(ACTS)
    assert {(act.actor, act.role, act.via, act.reason) for act in found} == {("ann", "admin", "api", "a test")}
    assert all(act.verdict and act.done and act.asked for act in found)
    assert {act.action.partition(".")[0] for act in found} == {
        "jobs",
        "queues",
        "tasks",
        "workers",
        "schedules",
        "webhooks",
    }


# ── users of some queues ──────────────────────────────────────────────────────────────────────────────────────────────


async def ask(
    port: int,
    path: str,
    body: object = None,
    *,
    secret: str = SECRET,
    method: str = "POST",
    headers: list[tuple[str, str]] | None = None,
) -> Reply:
    """Act with a token, as a program does."""
    sent = [("authorization", f"Bearer {secret}"), ("content-type", "application/json"), *(headers or ())]
    return await get(port, path, headers=sent, method=method, body=msgspec.json.encode(body or {}))


@EVERY_STORAGE
async def test_a_user_of_some_queues_acts_only_there(shop: Shop) -> None:
    both = Owner("11bb11bb11bb11bb", "both", "host", 78)
    await shop.app.storage.renew(RenewRequest(both, (), WorkerInfo(("mail", "pay/eu"), 1, 0, tasks={"charge": 1})))
    auth = Tokens(Token(User("payer", "admin", queues=["pay/*"]), SECRET))
    mail = {name: await job(shop, name) for name in ("sent", "failed", "delayed", "waiting")}
    async with served(shop.app, auth=auth) as port:
        for name in mail:
            for verb, body in (("cancel", {}), ("redrive", {}), ("delete", {}), ("reschedule", {"delay": 1})):
                assert (await ask(port, act_on(shop, name, verb), body)).problem == "unknown-job"
        for path, name in (
            (path_to("queues", "mail"), "unknown-queue"),
            (path_to("tasks", "charge"), "forbidden"),
            (path_to("tasks", "mail.send"), "forbidden"),
        ):
            assert (await ask(port, path, {"paused": True}, method="PATCH")).problem == name
        for path, name in (
            (path_to("schedules", "hourly", "pause"), "unknown-schedule"),
            (path_to("schedules", "hourly", "trigger"), "unknown-schedule"),
            (path_to("workers", "both", "stop"), "forbidden"),
            (path_to("workers", "mailer", "stop"), "unknown-worker"),
        ):
            assert (await ask(port, path)).problem == name, path
        assert (await ask(port, path_to("schedules", "hourly"), method="DELETE")).problem == "unknown-schedule"
        for call, name in (
            ({"task": "mail.send", "arguments": ["ann"]}, "unknown-task"),
            ({"task": "mail.send", "force": True}, "unknown-task"),
            ({"task": "charge", "arguments": [1], "queue": "mail"}, "unknown-queue"),
            ({"task": "charge", "arguments": [1], "queue": "mail", "force": True}, "unknown-queue"),
        ):
            assert (await ask(port, path_to("jobs"), call)).problem == name, call

        assert await acts(shop) == []
        assert {name: await job(shop, name) for name in mail} == mail

        assert (await ask(port, path_to("queues", "pay/eu"), {"paused": True}, method="PATCH")).status == 200
        assert (await ask(port, act_on(shop, "held", "cancel", "pay/eu"))).status == 200
        assert (await ask(port, path_to("workers", "web-3", "quiet"))).status == 200
        assert (await ask(port, path_to("jobs"), {"task": "charge", "arguments": [1]})).status == 200


# ── without an app ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_call_by_name_alone_needs_named_arguments(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    async with Tenure(url) as app:
        bare = Shop(app, {})
        worker = Owner("22cc22cc22cc22cc", "old", "host", 79)
        await app.storage.renew(RenewRequest(worker, (), WorkerInfo(("mail",), 1, 0, tasks={"mail.send": 4})))
        async with served(app) as bare.port:
            call = {"task": "mail.send", "arguments": {"to": "ann"}, "queue": "mail"}
            made = await bare.act(path_to("jobs"), call)
            record = await job(bare, made.json["id"])

            assert (record.payload, record.policy.version) == (b'{"to":"ann"}', 4)

            in_order = await bare.act(path_to("jobs"), {**call, "arguments": ["ann"]})

            assert (in_order.problem, in_order.json["errors"][0]["pointer"]) == ("invalid-body", "/body/arguments")
            assert (await bare.act(path_to("jobs"), {**call, "queue": "new"})).problem == "unknown-queue"

            forced = await bare.act(path_to("jobs"), {"task": "new", "queue": "new", "force": True})

            assert (forced.json["queue"], forced.json["action"]) == ("new", "created")
            large = await bare.act(path_to("jobs"), {**call, "arguments": {"to": "x" * 1_100_000}})
            assert (large.status, large.problem) == (422, "invalid-body")
