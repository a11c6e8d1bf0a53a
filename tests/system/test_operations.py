"""A bulk operation goes on after each kill of its console, and changes each job once."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tenure import Tenure
from tenure.core.events import JobCancelled, JobRedriven
from tenure.core.internal import OPS_QUEUE
from tenure.core.lifecycle import State
from tenure.ops.bulk import BulkOperation
from tenure.ops.bulk_run import operation_job
from tenure.storage.protocol import ActsQuery, CancelJob, Query
from tests.amounts import FULL, amount
from tests.console.site import act_headers, get, path_to

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900 if FULL else 240)]

APP = """
import os
from tenure import Tenure, Timing

app = Tenure(os.environ["SHOP"], timing=Timing(lease="2s", beat="0.5s", sweep="0.5s", grace="0.5s"))

@app.task
async def work(number: int) -> None: ...
"""

ROOM = 200
"""About how many jobs are changed between two kills."""


@asynccontextmanager
async def console(folder: Path, url: str) -> AsyncGenerator[int]:
    """Run a console; yield its port; kill it at the end."""
    (folder / "shop.py").write_text(APP)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tenure", "console", "--port", "0", "--log-level", "warning", "shop:app"),
        cwd=folder,
        env={**os.environ, "SHOP": url},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        found = re.fullmatch(rb"http://127\.0\.0\.1:(\d+)/\n", await process.stdout.readline())
        assert found is not None
        yield int(found[1])
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def asked(port: int, *names: str, body: Any = None) -> Any:
    """Ask a console, or let it act."""
    if body is None:
        return (await get(port, path_to(*names))).json
    headers = [*act_headers(port), ("Idempotency-Key", "the same in all consoles")]
    reply = await get(port, path_to(*names), headers=headers, method="POST", body=msgspec.json.encode(body))
    assert reply.status < 300, reply.body
    return reply.json


async def progress(port: int, op_id: str, *, beyond: int) -> Any:
    """Return an operation when it has done more than this, or has ended."""
    while True:
        found = await asked(port, "ops", op_id)
        if found["finished"] is not None or (found["state"] == "running" and found["done"] > beyond):
            return found
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "kind",
    ["sqlite", pytest.param("redis", marks=pytest.mark.redis), pytest.param("postgres", marks=pytest.mark.postgres)],
)
async def test_a_console_killed_again_and_again_changes_each_job_once(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/queue.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    kills, dice = amount("kills of a console"), Random(kind)
    action, changed = ("redrive", JobRedriven) if kind == "redis" else ("cancel", JobCancelled)
    count = (kills + 1) * ROOM
    async with Tenure(url) as app:
        work = app.task(name="shop.work")(_work)
        for _ in range(kills + 1):
            await app.enqueue_many(work.call(number) for number in range(ROOM))
        storage = app.storage
        if action == "redrive":
            for job in (await storage.find(Query(limit=count))).jobs:
                await storage.revise([CancelJob(job.ref)])
        plan = {"action": action, "filter": "task:shop.work", "rate": "200/s"}
        op_id, done = "", 0
        for _ in range(kills):
            async with console(tmp_path, url) as port:
                body: dict[str, Any] = dict(plan)
                if not op_id:
                    dry = await asked(port, "ops", body={**plan, "dry_run": True})
                    assert dry["count"] == count
                    body["confirm"] = dry["confirm"]
                # The key makes it the same operation, although the confirmation is not sent again.
                started = (await asked(port, "ops", body=body))["operation"]
                assert started["id"] == (op_id or started["id"])
                op_id = started["id"]
                done = (await progress(port, op_id, beyond=done))["done"]
                await asyncio.sleep(dice.uniform(0, 1))
        async with console(tmp_path, url) as port:
            report = await progress(port, op_id, beyond=count)

        assert report["state"] == "done"
        assert count - 100 * kills <= report["done"] <= count <= report["done"] + report["unknown"]
        events: Counter[str] = Counter()
        cursor: str | None = None
        while (page := await storage.events(cursor, limit=500)).events:
            events.update(event.id for event in page.events if isinstance(event, changed) and event.queue != OPS_QUEUE)
            cursor = page.next
        times = Counter(events.values())
        assert times == {1: count}
        states = Counter(job.state for job in (await storage.find(Query(limit=count + 1))).jobs)
        assert states == {State.CANCELLED if action == "cancel" else State.WAITING: count}
        acts = (await storage.acts(ActsQuery(target=op_id, limit=10_000))).acts
        chunks = [act for act in acts if act.action == "ops.chunk"]
        assert sum(act.count or 0 for act in chunks if act.verdict == "done") == report["done"]
        assert [(act.verdict, act.count) for act in acts if act.action == f"ops.{action}"] == [("done", report["done"])]


@pytest.mark.parametrize("more", [(), ("--no-supervisor",)])
async def test_a_worker_carries_out_operations_if_it_is_asked_to(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "shop.py").write_text(APP)
    url = f"sqlite:///{tmp_path}/queue.db"
    async with Tenure(url) as app:
        job = await app.task(name="shop.work")(_work).options(queue="elsewhere").enqueue(1)
        storage = app.storage
        operation = BulkOperation(
            action="cancel", count=1, actor="ann", role="admin", via="api", at=(await storage.survey()).now
        )
        await storage.enqueue([operation_job(storage, app.timing, operation, "one")])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tenure", "worker", "--internal", *more, "shop:app"),
            cwd=tmp_path,
            env={**os.environ, "SHOP": url},
        )
        try:
            report = await app.job("one", queue=OPS_QUEUE).result(timeout=60)
        finally:
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0

        assert (report["ended"], report["done"], await job.state()) == ("done", 1, State.CANCELLED)
        assert {worker.queues for worker in (await storage.survey()).workers} <= {("default",)}


async def _work(number: int) -> None: ...
