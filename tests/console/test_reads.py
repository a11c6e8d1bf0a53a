"""The reads of the admin API, on each storage, over a real socket."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tenure import Retry, Tenure
from tenure.console.api import AdminAPI
from tenure.console.records import LOOKS, SIFTED
from tenure.console.routes import Route
from tenure.console.table import TABLE
from tenure.core.filter_text import parse_filter
from tenure.core.lifecycle import State
from tenure.ops.access import StorageAccess
from tenure.ops.audit import audited
from tenure.ops.fault_hours import fault_hours_view
from tenure.ops.job_list import PAGE, selected_jobs, selection
from tenure.ops.queue_stats import queue_stats
from tenure.storage.protocol import Page, Query
from tests.console.conftest import EVERY_STORAGE, HOLDER, Shop
from tests.console.site import call, path_to

READS = [route for route in TABLE.routes if route.method == "GET"]

pytestmark = pytest.mark.thorough


async def names_of(shop: Shop, route: Route) -> dict[str, str]:
    """Return names with which the path of a route exists."""
    groups = (await shop.get(path_to("dead", "groups"))).json["groups"]
    known = {
        "queue": "mail",
        "task": "mail.send",
        "id": shop.jobs["sent"],
        "worker": HOLDER.id,
        "schedule": "hourly",
        "fault": groups[0]["fault"],
        "webhook": "alerts",
    }
    if "operation" in route.names:
        known["operation"] = await operation(shop)
    return {name: known[name] for name in route.names}


async def operation(shop: Shop) -> str:
    """Start a bulk operation that selects no job; return its id."""
    plan = {"action": "cancel", "filter": "id:none"}
    confirm = (await shop.act(path_to("ops"), {**plan, "dry_run": True})).json["confirm"]
    return str((await shop.act(path_to("ops"), {**plan, "confirm": confirm})).json["operation"]["id"])


@EVERY_STORAGE
async def test_each_route_answers_with_its_type(shop: Shop) -> None:
    for route in READS:
        if route.stream:
            continue
        names = await names_of(shop, route)
        path = path_to(*(names.get(part[1:-1], part) for part in route.parts))
        reply = await shop.get(path)

        assert reply.status == 200, (path, reply.body)
        assert reply.header("content-type") == "application/json"
        assert isinstance(msgspec.json.decode(reply.body, type=route.answer), route.answer), path

        head = await shop.get(path, method="HEAD")

        assert (head.status, head.body) == (200, b"")


@EVERY_STORAGE
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ["waiting", "delayed", "held", "active", "failed too", "failed", "sent"]),
        ("state:failed,completed", ["failed too", "failed", "sent"]),
        ("queue:mail state:failed", ["failed too", "failed"]),
        ("state:suspended", []),
        ("queue:pay*", ["held", "active"]),
        ('queue:"pay*"', []),
        ("queue:nothing*", []),
        ("task:mail.send", ["waiting", "delayed", "sent"]),
        ("task:*.break,charge", ["held", "active", "failed too", "failed"]),
        ("tag:vip", ["sent"]),
        ("customer:7 tag:vip", ["sent"]),
        ("customer:8", []),
        ("reason:exhausted", ["failed too", "failed"]),
        ("error:Value*", ["failed too", "failed"]),
        ("owner:web-3", ["active"]),
        (f"owner:{HOLDER.id}", ["active"]),
        ("key:account:9", ["held", "active"]),
        ("key:account:8", []),
        ("schedule:hourly", []),
        ("age:<1h", ["waiting", "delayed", "held", "active", "failed too", "failed", "sent"]),
        ("age:>1h", []),
        ("ended:<1h", ["failed too", "failed", "sent"]),
        ("ended:>1h", []),
    ],
)
async def test_a_filter_selects_jobs(shop: Shop, text: str, found: list[str]) -> None:
    by_id = {job_id: name for name, job_id in shop.jobs.items()}
    page = (await shop.get(f"{path_to('jobs')}?filter={path_to(text).rpartition('/')[2]}")).json
    # The tick of a schedule may add a job at any time.
    rows = [row for row in page["jobs"] if row["id"] in by_id]

    assert [by_id[row["id"]] for row in rows] == found
    read_here = text.startswith("error:") or ("task:" in text and "*" in text)
    assert (page["next"], page["short"], page["looks"]) == (None, False, SIFTED if read_here else LOOKS)


async def test_a_filter_by_id_and_by_fault_finds_the_job(shop: Shop) -> None:
    (failed,) = (await shop.get(f"{path_to('jobs')}?filter=id:{shop.jobs['failed']}")).json["jobs"]
    same = (await shop.get(f"{path_to('jobs')}?filter=fault:{failed['fault']}")).json["jobs"]
    group = (await shop.get(path_to("dead", "groups", failed["fault"]))).json

    assert {row["id"] for row in same} == {shop.jobs["failed"], shop.jobs["failed too"]}
    assert (group["count"], group["error"]) == (2, "ValueError")
    assert failed["error"] == {"type": "ValueError", "message": "no route to 1, password=hunter2"}


@EVERY_STORAGE
async def test_a_fault_counts_by_hour_when_its_jobs_failed(shop: Shop) -> None:
    (failed,) = (await shop.get(f"{path_to('jobs')}?filter=id:{shop.jobs['failed']}")).json["jobs"]
    found = (await shop.get(f"{path_to('dead', 'groups', failed['fault'])}/hours")).json
    other = (await shop.get(f"{path_to('dead', 'groups', '0' * 12)}/hours")).json

    assert (len(found["hours"]), found["hours"][-1], sum(found["hours"])) == (48, 2, 2)
    assert (found["short"], sum(other["hours"])) == (False, 0)
    assert (await shop.get(f"{path_to('dead', 'groups', 'x')}/hours")).problem == "unknown-fault"


async def test_the_hours_of_a_fault_end_with_a_page_cut_short_by_looks() -> None:
    app = Tenure("memory://")

    @app.task(name="mail.break", queue="mail", retry=Retry(max_attempts=1))
    async def break_mail(number: int) -> None:
        raise ValueError(number) if number else KeyError(number)

    async with app:
        for number in range(3):
            await break_mail.enqueue(min(number, 1))
        worker = app.worker(queues=["mail"], burst=True)
        await worker.start()
        await worker.wait()
        (rare,) = (group.fingerprint for group in (await app.dead.groups()).groups if group.count == 1)
        now = (await app.storage.survey()).now
        # The two newest jobs have another fault, and this storage looks at them, too.
        for looks, found in ((2, (True, 0)), (3, (False, 1))):
            hours = await fault_hours_view(app.storage, ["mail"], rare, now=now, looks=looks)
            assert (hours.short, sum(hours.hours)) == found


@EVERY_STORAGE
async def test_faults_are_selected_by_task_and_by_their_last_occurrence(shop: Shop) -> None:
    groups = path_to("dead", "groups")

    async def counts(query: str) -> tuple[list[int], int]:
        found = (await shop.get(f"{groups}?{query}")).json
        return [group["count"] for group in found["groups"]], found["total"]

    assert await counts("within=1h&task=mail.break&queue=mail") == ([2], 2)
    assert await counts("within=0.000001s") == ([], 0)
    assert await counts("task=mail.send") == ([], 0)
    assert await counts("queue=pay/eu") == ([], 0)
    assert await counts("queue=none") == ([], 0)


@EVERY_STORAGE
async def test_no_read_looks_at_all_jobs_of_a_state_that_grows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    find, asked = shop.app.storage.find, list[Query]()

    async def recorded(query: Query) -> Page:
        asked.append(query)
        return await find(query)

    monkeypatch.setattr(shop.app.storage, "find", recorded)
    for route in READS:
        names = await names_of(shop, route)
        method = "HEAD" if route.stream else "GET"
        await shop.get(path_to(*(names.get(part[1:-1], part) for part in route.parts)), method=method)
    for query in ("jobs?filter=task:a,b%20error:x", "dead/groups?within=1d&task=mail.break", "jobs?filter=task:c*"):
        await shop.get(f"/api/v1/{query}")

    # Active jobs are bounded by the slots of the workers; the doctor and slow runs read a few pages.
    unbounded = [query for query in asked if query.looks is None and State.ACTIVE not in query.states]
    assert all(not query.tasks and query.ended_after is None and query.fault is None for query in unbounded)


async def test_statistics_that_reach_the_bound_say_so(shop: Shop) -> None:
    survey = await shop.app.storage.survey(("mail",))

    async def stats(looks: int) -> tuple[int, bool]:
        found = await queue_stats(
            shop.app.storage, survey.queues[0], now=survey.now, window=timedelta(days=1), most=2_000, looks=looks
        )
        return sum(found.ended.values()), found.capped

    assert await stats(LOOKS) == (3, False)
    assert (await stats(1))[1]


async def test_an_empty_page_hints_at_misspelt_names(shop: Shop) -> None:
    page = (await shop.get(f"{path_to('jobs')}?filter=queue:mial%20task:mail.sent,mail.*")).json

    assert page["jobs"] == []
    assert page["hints"] == [
        "queue 'mial' is unknown; did you mean 'mail'?",
        "task 'mail.sent' is unknown; did you mean 'mail.send' or 'mail.break'?",
    ]


@EVERY_STORAGE
@pytest.mark.parametrize("filter_", ["queue:mail", "task:mail.s*%20state:waiting,cancelled"])
async def test_pages_neither_overlap_nor_omit_jobs_while_jobs_change(shop: Shop, filter_: str) -> None:
    send = shop.app.find_task("mail.send")
    there = [(await send.enqueue(f"{number}")).id for number in range(40)]
    await shop.app.job(there[20], queue="mail").delete()
    seen: list[str] = []
    after = ""
    while True:
        page = (await shop.get(f"{path_to('jobs')}?limit=7&filter={filter_}{after}")).json
        seen += [row["id"] for row in page["jobs"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
        # New jobs come in front, and of those that were shown one is gone.
        await send.enqueue("new")
        await shop.app.job(page["jobs"][-1]["id"], queue="mail").cancel()

    assert [job_id for job_id in seen if job_id in there] == [*reversed(there[21:]), *reversed(there[:20])]
    assert len(set(seen)) == len(seen)


@EVERY_STORAGE
async def test_delayed_jobs_are_listed_by_due_instant(shop: Shop) -> None:
    send = shop.app.find_task("mail.send")
    soon = await send.options(delay="5m").enqueue("soon")
    path = f"{path_to('jobs')}?order=due&limit=1&filter="

    page = (await shop.get(f"{path}state:delayed")).json
    rest = (await shop.get(f"{path}state:delayed&after={page['next']}")).json
    refused = await shop.get(f"{path}state:waiting")

    assert [row["id"] for row in (*page["jobs"], *rest["jobs"])] == [soon.id, shop.jobs["delayed"]]
    assert rest["next"] is None
    assert (refused.problem, refused.json["errors"][0]["pointer"]) == ("invalid-parameter", "/query/order")


async def test_a_rare_job_is_found_after_several_short_pages(shop: Shop) -> None:
    send = shop.app.find_task("mail.send")
    await asyncio.gather(*(send.enqueue("x") for _ in range(3 * PAGE)))
    survey = await shop.app.storage.survey()
    rare = selection(parse_filter("error:ValueError"), survey)
    found: list[str] = []
    after, short = None, 0
    while True:
        page = await selected_jobs(shop.app.storage, rare, limit=5, after=after, looks=PAGE)
        found += [job.id for job in page.jobs]
        short += page.short
        after = page.next
        if after is None:
            break

    assert found == [shop.jobs["failed too"], shop.jobs["failed"]]
    assert short >= 3


async def test_a_filter_that_no_job_can_match_reads_no_job() -> None:
    async with Tenure("memory://") as app:
        for text in ("queue:x*", "owner:web-3 state:failed"):
            none = selection(parse_filter(text), await app.storage.survey())

            assert none.query is None
            assert (await selected_jobs(app.storage, none, limit=1, after=None)).jobs == ()


async def test_a_filter_by_owner_reads_active_jobs_only(shop: Shop) -> None:
    survey = await shop.app.storage.survey()
    for text in ("owner:web-3", "owner:web-3 state:failed,active"):
        query = selection(parse_filter(text), survey).query

        assert query is not None
        assert (query.states, query.owner) == ((State.ACTIVE,), HOLDER.id)


@EVERY_STORAGE
async def test_tasks_are_shown_as_workers_published_them_without_the_apps_code(shop: Shop) -> None:
    async def access() -> StorageAccess:
        return StorageAccess(shop.app.storage, shop.app.codec.decode, shop.app.timing)

    console = AdminAPI(access)

    tasks = {task["name"]: task for task in (await call(console, path_to("tasks"))).json["tasks"]}
    task = (await call(console, path_to("tasks", "mail.send"))).json

    assert {"charge", "mail.break", "mail.send"} < {*tasks}
    assert (tasks["mail.send"]["declared"], tasks["mail.send"]["published"]["arguments"]) == (None, None)
    assert (tasks["charge"]["published"]["enqueueable"], task["published"]["enqueueable"]) == (False, True)
    assert task["published"]["queue"] == "mail"
    assert task["published"]["signature"] == "(to: str, password: str = '') -> str"
    assert task["published"]["arguments"]["properties"]["password"] == {"type": "string", "default": ""}
    assert task["published"]["returns"] == {"type": "string"}


@EVERY_STORAGE
async def test_a_job_is_shown_with_its_history(shop: Shop) -> None:
    job = (await shop.get(path_to("jobs", "mail", shop.jobs["sent"]))).json
    part = {name: (await shop.get(path_to("jobs", "mail", shop.jobs["sent"], name))).json for name in ("runs", "log")}

    assert job["arguments"] == {"to": "ann", "password": "hunter2"}
    assert (job["result"], job["state"], job["progress"]) == ("sent to ann", "completed", 0.5)
    assert datetime.fromisoformat(job["created"]).tzinfo == UTC
    assert part["runs"] == {"runs": job["runs"], "why": None}
    assert part["log"] == {"log": job["log"], "dropped": 0}
    assert [line["message"] for line in job["log"]] == ["sending"]
    assert [run["worker"] for run in job["runs"]] == ["mailer"]


@EVERY_STORAGE
async def test_why_names_the_job_that_holds_the_key(shop: Shop) -> None:
    reasons = (await shop.get(path_to("jobs", "pay/eu", shop.jobs["held"], "why"))).json["reasons"]

    assert reasons[0]["cause"] == "key"
    assert reasons[0]["blocker"] == {"queue": "pay/eu", "id": shop.jobs["active"]}


@EVERY_STORAGE
async def test_events_go_on_at_their_cursor_and_end(shop: Shop) -> None:
    whole = (await shop.get(f"{path_to('events')}?limit=500")).json
    seen: list[dict[str, object]] = []
    after = "0"
    while True:
        page = (await shop.get(f"{path_to('events')}?limit=2&after={after}")).json
        seen += page["events"]
        after = page["next"]
        if page["end"]:
            break
    recent = (await shop.get(f"{path_to('events')}?limit=500&within=1d&kind=failed&queue=mail")).json

    assert whole["end"]
    assert seen == whole["events"]
    assert {event["event"] for event in seen} >= {"completed", "failed", "worker_started"}
    assert [event["id"] for event in recent["events"]] == [shop.jobs["failed"], shop.jobs["failed too"]]
    assert not any("result" in event for event in seen)


@EVERY_STORAGE
async def test_the_events_of_a_deleted_job_are_shown(shop: Shop) -> None:
    await shop.app.job(shop.jobs["failed"], queue="mail").delete()
    path = path_to("jobs", "mail", shop.jobs["failed"])
    events = (await shop.get(f"{path}/events")).json["events"]

    assert (await shop.get(path)).problem == "unknown-job"
    assert [event["event"] for event in events] == ["failed", "deleted"]
    assert (await shop.get(f"{path}/events?after=0")).json["events"] == events
    assert (await shop.get(path_to("jobs", "mail", "unknown", "events"))).problem == "unknown-job"
    assert (await shop.get(path_to("jobs", "pay/eu", shop.jobs["held"], "events"))).json["events"] == []


@EVERY_STORAGE
async def test_a_worker_is_shown_with_the_stacks_of_its_runs(shop: Shop) -> None:
    worker = (await shop.get(path_to("workers", "web-3"))).json
    (run,) = (await shop.get(path_to("workers", "77", "stacks"))).json["stacks"]
    tasks = {task["name"]: task for task in (await shop.get(path_to("tasks"))).json["tasks"]}

    assert (worker["owner"], worker["state"]) == (HOLDER.id, "alive")
    assert (run["id"], run["trace"]) == (shop.jobs["active"], 'File "pay.py", line 3, in charge')
    assert tasks.keys() >= {"charge", "mail.send", "mail.break"}
    assert (tasks["charge"]["workers"], tasks["charge"]["version"], tasks["mail.send"]["workers"]) == (1, 1, 0)
    assert tasks["charge"]["declared"]["signature"] == "(account: int) -> None"


async def test_a_queue_shows_its_settings_and_recent_ends(shop: Shop) -> None:
    await shop.app.queue("mail").pause()
    queue = (await shop.get(path_to("queues", "mail"))).json
    ends = (await shop.get(f"{path_to('queues', 'mail', 'statistics')}?window=1d")).json

    assert (queue["paused"], queue["counts"]["failed"]) == (True, 2)
    assert (ends["ended"]["failed"], ends["reasons"], ends["window"]) == (2, {"exhausted": 2}, 86_400.0)


async def test_the_next_ticks_of_a_schedule_are_shown(shop: Shop) -> None:
    ticks = (await shop.get(f"{path_to('schedules', 'hourly', 'ticks')}?count=3")).json["ticks"]
    first, second, third = (datetime.fromisoformat(tick["tick"]) for tick in ticks)

    assert second - first == third - second
    assert (second - first).total_seconds() == 3600


@EVERY_STORAGE
async def test_the_audit_log_is_shown_by_page_and_selected_by_name(shop: Shop) -> None:
    long = "q" * 600
    for actor, action, target in (
        ("ann", "queues.pause", "mail"),
        ("bob", "jobs.cancel", f"mail/{shop.jobs['waiting']}"),
        ("ann", "queues.resume", "mail"),
        ("ann", "queues.pause", long),
    ):
        async with audited(shop.app.storage, actor=actor, role="operate", via="api", action=action, target=target):
            pass
    first = (await shop.get(f"{path_to('audit')}?limit=3")).json
    last = (await shop.get(f"{path_to('audit')}?limit=3&after={first['next']}")).json

    async def targets(query: str) -> list[str]:
        return [act["target"] for act in (await shop.get(f"{path_to('audit')}?{query}")).json["acts"]]

    assert [act["action"] for act in first["acts"]] == ["queues.pause", "queues.resume", "jobs.cancel"]
    assert [act["action"] for act in last["acts"]] == ["queues.pause"]
    assert last["next"] is None
    assert {act["verdict"] for act in first["acts"]} == {"done"}
    assert datetime.fromisoformat(first["acts"][0]["asked"]).tzinfo is not None
    assert await targets("actor=bob") == [f"mail/{shop.jobs['waiting']}"]
    assert await targets("actor=ann&action=queues.resume") == ["mail"]
    assert await targets("target=mail") == ["mail", "mail"]
    assert await targets(f"target={long}") == [f"{long[:499]}…"]
    assert await targets("actor=eve") == []
