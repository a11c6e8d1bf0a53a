"""Bulk operations of the admin API, on each storage, over a real socket: dry run, start, window, stop, report."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from tenure import Tenure
from tenure.console import Console, Token, Tokens, User
from tenure.core.events import JobCancelled, JobEvent, JobRedriven
from tenure.core.internal import OPS_QUEUE
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.ops import bulk
from tenure.ops.bulk import BulkOperation
from tenure.ops.bulk_run import operation_job
from tenure.storage.protocol import ActsQuery, CancelJob, Query
from tests.console.conftest import EVERY_STORAGE, Shop, served
from tests.console.site import Reply, call, get, path_to

pytestmark = pytest.mark.thorough

SECRET = "0123456789abcdef"
OPS = path_to("ops")


async def dry_run(shop: Shop, **plan: Any) -> Any:
    """Return the answer to a dry run."""
    reply = await shop.act(OPS, {**plan, "dry_run": True})
    assert reply.status == 200, reply.json
    return reply.json


async def started(shop: Shop, **plan: Any) -> str:
    """Start an operation after its dry run; return its id."""
    confirm = (await dry_run(shop, **plan))["confirm"]
    reply = await shop.act(OPS, {**plan, "confirm": confirm, "reason": "a test"})
    assert reply.status == 202, reply.json
    return str(reply.json["operation"]["id"])


async def ended(shop: Shop, op_id: str) -> Any:
    """Wait until an operation has ended; return it."""
    while True:
        found = (await shop.get(path_to("ops", op_id))).json
        if found["finished"] is not None:
            return found
        await asyncio.sleep(0.05)


async def done_more_than(shop: Shop, op_id: str, count: int) -> bool:
    return int((await shop.get(path_to("ops", op_id))).json["done"]) > count


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await condition():
            return
        await asyncio.sleep(0.05)


async def jobs(shop: Shop, **query: Any) -> list[JobRecord]:
    return list((await shop.app.storage.find(Query(limit=1_000, **query))).jobs)


async def more(shop: Shop, count: int) -> None:
    """Enqueue waiting jobs with a tag of their own."""
    task = shop.app.find_task("mail.send").options(tags=["more"])
    await shop.app.enqueue_many(task.call(f"reader {number}") for number in range(count))


async def events_of(shop: Shop, kind: type[JobEvent]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    cursor: str | None = None
    while True:
        page = await shop.app.storage.events(cursor, limit=500)
        found += [(event.queue, event.id) for event in page.events if isinstance(event, kind)]
        if not page.events:
            return found
        cursor = page.next


# ── dry run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@EVERY_STORAGE
async def test_a_dry_run_counts_and_changes_nothing(shop: Shop) -> None:
    before = await jobs(shop)
    found = await dry_run(shop, action="delete", filter="queue:mail,pay/eu")

    assert (found["dry_run"], found["count"], found["operation"], found["window"]) == (True, 6, None, 10.0)
    assert found["queues"] == {"mail": 5, "pay/eu": 1}
    assert found["tasks"] == {"mail.send": 3, "mail.break": 2, "charge": 1}
    assert found["states"] == {"failed": 2, "waiting": 2, "completed": 1, "delayed": 1}
    assert found["refused"] == [{"state": "active", "count": 1, "why": "it is active; cancel it first"}]
    assert len(found["samples"]) == 3
    assert await jobs(shop) == before


async def test_a_cap_bounds_the_count(shop: Shop) -> None:
    found = await dry_run(shop, action="cancel", filter="queue:mail", cap=1)

    assert (found["count"], found["states"]) == (1, {"waiting": 1})


@pytest.mark.parametrize(
    ("body", "problem", "pointer"),
    [
        ({"action": "explode"}, "invalid-body", "/body/action"),
        ({"action": "cancel", "filter": "state:odd"}, "invalid-filter", "/body/filter"),
        ({"action": "cancel", "filter": "queue:tenure.internal.ops"}, "invalid-filter", "/body/filter"),
        ({"action": "cancel", "rate": "fast"}, "invalid-body", "/body/rate"),
        ({"action": "cancel", "cap": 0}, "invalid-body", "/body/cap"),
    ],
)
async def test_an_invalid_operation_is_refused(shop: Shop, body: dict[str, Any], problem: str, pointer: str) -> None:
    reply = await shop.act(OPS, {**body, "dry_run": True})

    assert (reply.problem, reply.json["errors"][0]["pointer"]) == (problem, pointer)


# ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@EVERY_STORAGE
async def test_all_that_match_are_changed_once_and_audited(shop: Shop) -> None:
    await more(shop, 230)
    op_id = await started(shop, action="cancel", filter="tag:more")
    # The operation starts after a window of 5 s.
    await more(shop, 3)
    found = await ended(shop, op_id)

    assert {
        name: found[name] for name in ("state", "count", "met", "done", "refused", "changed", "gone", "unknown")
    } == {
        "state": "done",
        "count": 230,
        "met": 230,
        "done": 230,
        "refused": 0,
        "changed": 0,
        "gone": 0,
        "unknown": 0,
    }
    assert len(await jobs(shop, tags=("more",), states=(State.WAITING,))) == 3
    cancelled = await events_of(shop, JobCancelled)
    assert len(cancelled) == len(set(cancelled)) == 230
    acts = list((await shop.app.storage.acts(ActsQuery(target=op_id))).acts)
    assert [(act.action, act.count, act.verdict, act.op) for act in acts] == [
        ("ops.chunk", 30, "done", op_id),
        ("ops.chunk", 100, "done", op_id),
        ("ops.chunk", 100, "done", op_id),
        ("ops.cancel", 230, "done", op_id),
    ]
    assert {(act.actor, act.role, act.filter) for act in acts} == {("local", "admin", "tag:more")}
    assert acts[-1].reason == "a test"


@EVERY_STORAGE
async def test_failed_jobs_are_redriven_once_even_if_they_fail_again(shop: Shop) -> None:
    async with shop.app.worker(queues=["mail"]):
        found = await ended(shop, await started(shop, action="redrive", filter="task:mail.break", rate="20/s"))

        assert (found["state"], found["done"], found["rate"]) == ("done", 2, "20/s")
        redriven = await events_of(shop, JobRedriven)
        assert sorted(redriven) == sorted(("mail", shop.jobs[name]) for name in ("failed", "failed too"))


@EVERY_STORAGE
async def test_a_deletion_stopped_in_its_window_deletes_nothing(shop: Shop) -> None:
    before = await jobs(shop)
    op_id = await started(shop, action="delete", filter="queue:mail")
    stopped = await shop.act(path_to("ops", op_id, "stop"), {"reason": "a mistake"})

    assert (stopped.status, stopped.json["state"], stopped.json["started"]) == (200, "stopped", None)
    assert stopped.json["done"] == 0
    assert await jobs(shop) == before
    again = await shop.act(path_to("ops", op_id, "stop"))
    assert (again.status, again.problem) == (409, "wrong-state")
    acts = (await shop.app.storage.acts(ActsQuery(target=op_id))).acts
    assert [(act.action, act.count, act.verdict) for act in acts] == [
        ("ops.stop", None, "refused: the job is cancelled"),
        ("ops.stop", None, "done"),
        ("ops.delete", 0, "stopped"),
    ]


@EVERY_STORAGE
async def test_a_later_stop_ends_between_chunks_and_says_what_was_done(shop: Shop) -> None:
    await more(shop, 60)
    op_id = await started(shop, action="cancel", filter="tag:more", rate="10/s")
    await wait_until(lambda: done_more_than(shop, op_id, 9))
    await shop.act(path_to("ops", op_id, "stop"))
    found = await ended(shop, op_id)

    assert found["state"] == "stopped"
    assert 10 <= found["done"] < 60
    assert found["done"] % 10 == 0
    assert len(await jobs(shop, tags=("more",), states=(State.CANCELLED,))) == found["done"]
    assert (await shop.app.storage.acts(ActsQuery(action="ops.cancel"))).acts[0].verdict == "stopped"


async def test_an_operation_that_meets_too_many_jobs_ends(shop: Shop) -> None:
    # The dry run does not see them: the token is that of a count of none.
    found = await dry_run(shop, action="cancel", filter="tag:more")
    await more(shop, 11)
    reply = await shop.act(OPS, {"action": "cancel", "filter": "tag:more", "confirm": found["confirm"]})
    report = await ended(shop, reply.json["operation"]["id"])

    assert (report["state"], report["done"]) == ("count-changed", 0)
    assert len(await jobs(shop, tags=("more",), states=(State.WAITING,))) == 11


# ── confirmation ──────────────────────────────────────────────────────────────────────────────────────────────────────


@EVERY_STORAGE
async def test_only_what_a_dry_run_showed_can_be_started(shop: Shop) -> None:
    plan: dict[str, Any] = {"action": "cancel", "filter": "queue:mail", "cap": None, "rate": None}
    confirm = (await dry_run(shop, **plan))["confirm"]
    count, at, mac = confirm.split(".")
    others: list[dict[str, Any]] = [
        {**plan},
        {**plan, "confirm": "yes"},
        {**plan, "confirm": f"{count}.{at}.{'0' * len(mac)}"},
        {**plan, "confirm": f"9{count}.{at}.{mac}"},
        {**plan, "confirm": f"{count}.{int(at) - 1}.{mac}"},
        {**plan, "confirm": confirm, "filter": "queue:*"},
        {**plan, "confirm": confirm, "action": "delete"},
        {**plan, "confirm": confirm, "cap": 5},
        {**plan, "confirm": confirm, "rate": "1/s"},
    ]
    for body in others:
        reply = await shop.act(OPS, body)
        assert (reply.status, reply.problem) == (409, "unconfirmed"), body

    assert (await shop.get(OPS)).json["operations"] == []


async def test_a_count_that_takes_too_long_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAGE", 2)
    monkeypatch.setattr(bulk, "COUNTED_WITHIN", 0.0)
    reply = await shop.act(OPS, {"action": "cancel", "filter": "", "dry_run": True})

    assert (reply.status, reply.problem) == (422, "too-many-jobs")


@EVERY_STORAGE
async def test_a_repeated_request_starts_no_second_operation(shop: Shop) -> None:
    plan: dict[str, Any] = {"action": "delete", "filter": "queue:mail"}
    confirm = (await dry_run(shop, **plan))["confirm"]
    ids: set[str] = set()
    for headers in ([], [], [("Idempotency-Key", "one")], [("Idempotency-Key", "one")]):
        reply = await shop.act(OPS, {**plan, "confirm": confirm}, headers=headers)
        assert reply.status == 202
        ids.add(reply.json["operation"]["id"])
    other = await shop.act(OPS, {"action": "cancel"}, headers=[("Idempotency-Key", "one")])

    assert len(ids) == 1
    assert (other.status, other.problem) == (409, "unconfirmed")
    assert len((await shop.get(OPS)).json["operations"]) == 1


@EVERY_STORAGE
async def test_an_idempotency_key_finds_the_operation_that_it_started(shop: Shop) -> None:
    plan: dict[str, Any] = {"action": "delete", "filter": "queue:mail"}
    confirm, key = (await dry_run(shop, **plan))["confirm"], [("Idempotency-Key", "one")]
    first = await shop.act(OPS, {**plan, "confirm": confirm}, headers=key)
    again = await shop.act(OPS, plan, headers=key)
    other_key = await shop.act(OPS, {**plan, "confirm": confirm}, headers=[("Idempotency-Key", "two")])
    other_plan = await shop.act(OPS, {"action": "cancel"}, headers=key)

    assert {reply.json["operation"]["id"] for reply in (first, again, other_key)} == {first.json["operation"]["id"]}
    assert (other_plan.status, other_plan.problem) == (422, "key-reused")
    assert len((await shop.get(OPS)).json["operations"]) == 1


# ── one run of an operation ───────────────────────────────────────────────────────────────────────────────────────────


async def report_of(shop: Shop, **fields: Any) -> Any:
    """Carry out an operation without a dry run and a window; return it when it has ended."""
    storage = shop.app.storage
    now = (await storage.survey()).now
    values: dict[str, Any] = {"count": 3, "actor": "local", "role": "admin", "via": "api", "at": now, **fields}
    operation = BulkOperation(**values)
    job = operation_job(storage, shop.app.timing, operation, "one")
    await storage.enqueue([structs.replace(job, delay=0)])
    return await ended(shop, "one")


@EVERY_STORAGE
async def test_a_delete_leaves_jobs_that_ended_after_the_request(shop: Shop) -> None:
    before = await jobs(shop, queues=("mail",), states=(State.COMPLETED, State.FAILED))
    at = max(job.created for job in before)
    assert all(job.finished is not None and job.finished > at for job in before)
    found = await report_of(shop, action="delete", filter="queue:mail state:completed,failed", at=at)

    assert (found["state"], found["met"], found["done"]) == ("done", 0, 0)
    assert await jobs(shop, queues=("mail",), states=(State.COMPLETED, State.FAILED)) == before


@EVERY_STORAGE
async def test_a_cancel_leaves_out_jobs_that_were_asked_to_stop(shop: Shop) -> None:
    [active] = await jobs(shop, states=(State.ACTIVE,))
    await shop.app.storage.revise([CancelJob(active.ref, None, "ann")])
    plan: dict[str, Any] = {"action": "cancel", "filter": f"id:{active.id}"}
    dry = await dry_run(shop, **plan)
    found = await report_of(shop, **plan)

    assert dry["count"] == 0
    assert (found["state"], found["met"], found["done"]) == ("done", 0, 0)


async def test_a_user_of_some_queues_sees_no_operation_of_the_shell(shop: Shop) -> None:
    await report_of(shop, action="cancel", filter="task:none", actor="mailer", via="cli")
    async with served(shop.app, auth=Tokens(Token(User("mailer", "operate", queues=["mail"]), SECRET))) as port:
        listed = await ask(port, OPS, secret=SECRET, method="GET")
        found = await ask(port, path_to("ops", "one"), secret=SECRET, method="GET")

    assert listed.json["operations"] == []
    assert found.problem == "unknown-operation"


async def test_ordinary_routes_do_not_act_on_operations(shop: Shop) -> None:
    op_id = await started(shop, action="delete", filter="queue:mail")
    for act, body in (
        ("cancel", {}),
        ("redrive", {}),
        ("delete", {}),
        ("retain", {"ttl": "1h"}),
        ("reschedule", {"delay": "1h"}),
    ):
        reply = await shop.act(path_to("jobs", OPS_QUEUE, op_id, act), body)
        assert (reply.status, reply.problem) == (403, "internal-queue"), act
        assert "/api/v1/ops" in reply.json["remedy"]
    assert (await shop.get(path_to("ops", op_id))).json["state"] == "waiting"


# ── users ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def ask(port: int, path: str, body: object = None, *, secret: str, method: str = "POST") -> Reply:
    headers = [("authorization", f"Bearer {secret}"), ("content-type", "application/json")]
    return await get(port, path, headers=headers, method=method, body=msgspec.json.encode(body or {}))


async def test_a_deletion_needs_the_role_admin(shop: Shop) -> None:
    async with served(shop.app, auth=Tokens(f"op:operate:{SECRET}")) as port:
        deletion = await ask(port, OPS, {"action": "delete", "dry_run": True}, secret=SECRET)
        cancel = await ask(port, OPS, {"action": "cancel", "dry_run": True}, secret=SECRET)

    assert (deletion.status, deletion.problem) == (403, "forbidden")
    assert cancel.status == 200


@EVERY_STORAGE
async def test_a_user_of_some_queues_touches_no_others(shop: Shop) -> None:
    other = "f" * 16
    auth = Tokens(
        Token(User("payer", "admin", queues=["pay/*"]), SECRET),
        Token(User("mailer", "operate", queues=["mail"]), other),
    )
    async with served(shop.app, auth=auth) as port:
        plan = {"action": "cancel", "filter": ""}
        dry = (await ask(port, OPS, {**plan, "dry_run": True}, secret=SECRET)).json
        assert (dry["queues"], dry["count"]) == ({"pay/eu": 2}, 2)
        started = await ask(port, OPS, {**plan, "confirm": dry["confirm"]}, secret=SECRET)
        op_id = started.json["operation"]["id"]
        stolen = await ask(port, OPS, {**plan, "confirm": dry["confirm"]}, secret=other)
        found = await ended(shop, op_id)

        assert (found["state"], found["done"]) == ("done", 2)
        assert (stolen.status, stolen.problem) == (409, "unconfirmed")
        assert {job.queue for job in await jobs(shop, states=(State.CANCELLED,))} == {"pay/eu"}
        for secret, count in ((SECRET, 1), (other, 0)):
            listed = await ask(port, OPS, secret=secret, method="GET")
            assert len(listed.json["operations"]) == count
        hidden = await ask(port, path_to("ops", op_id, "stop"), secret=other)
        assert (hidden.status, hidden.problem) == (404, "unknown-operation")


# ── lists and service ─────────────────────────────────────────────────────────────────────────────────────────────────


@EVERY_STORAGE
async def test_operations_are_listed_newest_first_and_nowhere_else(shop: Shop) -> None:
    ids = [await started(shop, action="delete", filter=f"id:none-{number}") for number in range(3)]
    first = (await shop.get(f"{OPS}?limit=2")).json
    rest = (await shop.get(f"{OPS}?limit=2&after={first['next']}")).json

    assert [one["id"] for one in (*first["operations"], *rest["operations"])] == ids[::-1]
    assert first["served"] is True
    assert (await shop.get(f"{path_to('jobs')}?filter=state:delayed")).json["jobs"][0]["queue"] == "mail"
    assert {queue["queue"] for queue in (await shop.get(path_to("queues"))).json["queues"]} == {"mail", "pay/eu"}
    assert {worker["name"] for worker in (await shop.get(path_to("workers"))).json["workers"]} == {"web-3"}
    unknown = await shop.get(path_to("ops", "none"))
    assert (unknown.status, unknown.problem) == (404, "unknown-operation")
    assert (await shop.get(f"{OPS}?after=x")).problem == "invalid-cursor"


async def test_a_console_without_a_lifespan_serves_what_it_starts() -> None:
    app = Tenure("memory://")
    app.task(name="nothing", queue="mail")(nothing)
    console = Console(app, auth=lambda request: User("ann", "admin"))
    headers = [("sec-fetch-site", "same-origin"), ("content-type", "application/json")]

    async def post(**body: Any) -> Any:
        return (await call(console, OPS, method="POST", headers=headers, body=[msgspec.json.encode(body)])).json

    async with app:
        job = await app.tasks["nothing"].enqueue()
        confirm = (await post(action="cancel", dry_run=True))["confirm"]
        op_id = (await post(action="cancel", confirm=confirm))["operation"]["id"]
        report = await app.job(op_id, queue=OPS_QUEUE).result()
        state = await job.state()
        await console.stop()

    assert (report["ended"], report["done"], state) == ("done", 1, State.CANCELLED)


async def test_a_console_serves_operations_while_it_is_entered() -> None:
    app = Tenure("memory://")

    async def served_by(console: Console) -> bool:
        return bool((await call(console, OPS)).json["served"])

    async with app, Console(app) as console:
        await wait_until(lambda: served_by(console))

    async with app:
        assert not await served_by(Console(app))


async def test_a_read_only_console_serves_no_operations(shop: Shop) -> None:
    app = Tenure("memory://")
    async with app, served(app, read_only=True) as port:
        listed = (await get(port, OPS)).json

    assert listed == {"operations": [], "next": None, "served": False}


async def nothing() -> None:
    """Do nothing."""
