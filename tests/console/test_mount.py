"""The console in other ASGI applications, below any path, with and without a lifespan."""

from typing import Any

import pytest
from fastapi import FastAPI

from tenure import Tenure
from tenure.console import Console, User
from tests.console.site import call


def everyone(request: object) -> User:
    return User("ann")


@pytest.mark.parametrize("root", ["", "/queue", "/a/b", "/api", "/api/v1"])
@pytest.mark.parametrize("framework", ["strips the path", "keeps the path", "has no raw path"])
async def test_it_answers_below_any_path(root: str, framework: str) -> None:
    console = Console(Tenure("memory://"), auth=everyone)
    inner = "/api/v1/queues/a%2Fb"
    raw: dict[str, Any] = {} if framework == "has no raw path" else {"raw_path": f"{root}{inner}".encode()}
    path = "/api/v1/queues/a" if framework == "has no raw path" else inner
    path = path if framework == "strips the path" else f"{root}{path}"
    reply = await call(console, path, root_path=root, **raw)

    assert reply.problem == "unknown-queue", reply.json


async def test_fastapi_mounts_it() -> None:
    async with Tenure("memory://") as app:

        @app.task(name="work", queue="a/b")
        async def work() -> None: ...

        await work.enqueue()
        web = FastAPI()
        web.mount("/x/queue", Console(app, auth=everyone))
        raw = b"/x/queue/api/v1/queues/a%2Fb"
        reply = await call(web, "/x/queue/api/v1/queues/a/b", raw_path=raw, root_path="")

        assert (reply.status, reply.json["queue"]) == (200, "a/b")


async def test_it_opens_the_storage_when_it_is_first_used(tmp_path: Any) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/jobs.db")
    console = Console(app)
    assert not (tmp_path / "jobs.db").exists()

    assert (await call(console, "/api/v1/queues")).status == 200
    await app.close()


async def test_tasks_that_are_added_later_are_shown() -> None:
    app = Tenure("memory://")
    console = Console(app)

    @app.task(name="late")
    async def late() -> None: ...

    assert [task["name"] for task in (await call(console, "/api/v1/tasks")).json["tasks"]] == ["late"]


async def test_it_takes_part_in_a_lifespan() -> None:
    console = Console(Tenure("memory://"))
    messages = iter(["lifespan.startup", "lifespan.shutdown"])
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": next(messages)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await console({"type": "lifespan"}, receive, send)

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_a_websocket_is_closed() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await Console(Tenure("memory://"))({"type": "websocket", "path": "/api/v1/meta"}, receive, send)

    assert sent == ["websocket.close"]
