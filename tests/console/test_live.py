"""The stream of changes: what it says, and how a client that comes back goes on."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from typing import Any

import pytest
from msgspec import structs

from tenure.console import live
from tenure.console.redaction import Redactor
from tenure.console.requests import ConsoleRequest
from tenure.console.users import User
from tenure.core.internal import OPS_QUEUE
from tenure.core.job import Ref
from tenure.storage.protocol import CancelJob
from tests.console.conftest import EVERY_STORAGE, Shop, served
from tests.console.site import Headers, path_to

PATH = path_to("events", "stream")

pytestmark = pytest.mark.thorough


class Stream:
    """The answer to a request for the stream."""

    def __init__(self, reader: asyncio.StreamReader, head: list[str]) -> None:
        self.head = head
        self._reader = reader

    async def frame(self) -> tuple[str, str, Any]:
        """Return the next frame: its name, its id, its data."""
        while True:
            fields = dict(line.split(": ", 1) for line in (await self.part()).splitlines() if ": " in line)
            if fields:
                return fields["event"], fields["id"], json.loads(fields["data"])

    async def changes(self) -> dict[str, Any]:
        """Return the data of the next frame, with changes."""
        name, _, data = await self.frame()
        assert name == "changes"
        return dict(data)

    async def part(self) -> str:
        """Return the next chunk, empty at the end."""
        size = int(await asyncio.wait_for(self._reader.readline(), 30), 16)
        text = (await self._reader.readexactly(size)).decode()
        assert await self._reader.readline() == b"\r\n"
        return text


@asynccontextmanager
async def streamed(port: int, headers: Headers = ()) -> AsyncGenerator[Stream]:
    """Open the stream of a console."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        lines = [f"GET {PATH} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers)]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode().lower().splitlines()
        yield Stream(reader, head)


async def cancel(shop: Shop, job: str) -> None:
    """Cancel a job that waits, which is recorded as an event."""
    assert await shop.app.job(shop.jobs[job]).cancel()


@EVERY_STORAGE
async def test_a_stream_names_the_jobs_that_have_changed(shop: Shop) -> None:
    async with streamed(shop.port) as stream:
        assert "content-type: text/event-stream" in stream.head
        assert "cache-control: no-store" in stream.head
        name, _, data = await stream.frame()
        assert (name, data) == ("resync", {})

        await cancel(shop, "waiting")
        found = await stream.changes()

    assert found["count"] == 1
    assert found["kinds"] == {"cancelled": 1}
    assert found["queues"] == {"mail": 1}
    assert found["jobs"] == [{"queue": "mail", "id": shop.jobs["waiting"]}]
    assert [event["id"] for event in found["newest"]] == [shop.jobs["waiting"]]
    assert found["complete"]


async def test_a_stream_names_operations_and_no_jobs_of_internal_queues(shop: Shop) -> None:
    async with streamed(shop.port) as stream:
        await stream.frame()
        ref = Ref(OPS_QUEUE, "operation")
        job = structs.replace(shop.app.find_task("mail.send").call("ann").job, queue=ref.queue, id=ref.id, delay=10**9)
        await shop.app.storage.enqueue([job])
        await shop.app.storage.revise([CancelJob(ref)])
        found = await stream.changes()

    assert (found["operations"], found["count"], found["jobs"], found["queues"]) == (["operation"], 0, [], {})


@EVERY_STORAGE
async def test_a_client_that_comes_back_gets_what_it_missed(shop: Shop) -> None:
    async with streamed(shop.port) as stream:
        _, place, _ = await stream.frame()
    await cancel(shop, "waiting")
    async with streamed(shop.port, [("Last-Event-ID", place)]) as stream:
        found = await stream.changes()

    assert [job["id"] for job in found["jobs"]] == [shop.jobs["waiting"]]


async def test_a_client_with_an_unknown_id_must_read_all_again(shop: Shop) -> None:
    async with streamed(shop.port, [("Last-Event-ID", "nonsense")]) as stream:
        name, place, _ = await stream.frame()

    assert (name, bool(place)) == ("resync", True)


async def test_a_client_that_is_too_far_behind_must_read_all_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RING", 3)
    async with served(shop.app) as port, streamed(port) as watching:
        _, place, _ = await watching.frame()
        seen = 0
        for number in range(4):
            job = await shop.app.find_task("mail.send").enqueue(f"user {number}")
            await job.cancel()
            # The log is read further only after this frame.
            seen += (await watching.changes())["count"]
        async with streamed(port, [("Last-Event-ID", place)]) as late:
            name, _, _ = await late.frame()

    assert (name, seen) == ("resync", 4)


async def test_many_changes_make_few_frames_and_lose_no_count(shop: Shop) -> None:
    send = shop.app.find_task("mail.send")
    jobs = await shop.app.enqueue_many(send.call(f"user {number}") for number in range(120))
    async with streamed(shop.port) as stream:
        await stream.frame()
        for job in jobs:
            await job.cancel()
        frames: list[dict[str, Any]] = []
        while sum(frame["count"] for frame in frames) < len(jobs):
            frames.append(await stream.changes())

    assert sum(frame["count"] for frame in frames) == len(jobs)
    assert len(frames) < len(jobs)
    for frame in frames:
        assert len(frame["newest"]) == min(frame["count"], live.NEWEST)
        assert len(frame["jobs"]) == min(frame["count"], live.JOBS)
        assert frame["complete"] == (frame["count"] <= live.JOBS)


async def test_a_user_of_some_queues_gets_their_changes_alone(shop: Shop) -> None:
    async def ann(request: ConsoleRequest) -> User:
        return User("ann", queues=["pay/*"])

    async with served(shop.app, auth=ann) as port, streamed(port) as stream:
        await stream.frame()
        await cancel(shop, "waiting")
        await cancel(shop, "held")
        found = await stream.changes()

    assert found["queues"] == {"pay/eu": 1}
    assert [job["id"] for job in found["jobs"]] == [shop.jobs["held"]]


async def test_a_stream_without_changes_gets_comments(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "COMMENT", 0.05)
    async with streamed(shop.port) as stream:
        await stream.frame()
        assert await stream.part() == ":\n\n"


async def test_a_stream_ends_after_its_lifetime(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LIFETIME", 0.1)
    async with streamed(shop.port) as stream:
        await stream.frame()
        assert await stream.part() == ""


async def test_a_server_that_stops_ends_its_streams(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    async with AsyncExitStack() as stack:
        async with served(shop.app) as port:
            stream = await stack.enter_async_context(streamed(port))
            await stream.frame()

        assert await stream.part() == ""
    # The app's webhook has no secret, which is logged.
    assert not [record for record in caplog.records if record.name != "tenure.webhooks"]


async def test_one_stream_too_many_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAMS", 1)
    async with streamed(shop.port) as stream:
        await stream.frame()
        reply = await shop.get(PATH)

    assert (reply.status, reply.problem) == (503, "too-many-streams")


async def test_streams_share_one_reader_of_the_log(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    events, asked = shop.app.storage.events, list[str | None]()

    async def counted(cursor: str | None = None, **options: Any) -> Any:
        asked.append(cursor)
        return await events(cursor, **options)

    monkeypatch.setattr(shop.app.storage, "events", counted)
    async with streamed(shop.port) as one, streamed(shop.port) as two:
        for stream in (one, two):
            await stream.frame()
        await cancel(shop, "waiting")
        for stream in (one, two):
            await stream.changes()

    assert asked.count("$") == 1


async def test_after_a_pause_the_log_is_followed_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LINGER", 0.0)
    events, place = live.LiveEvents(Redactor()), ""
    for job, unseen in (("waiting", "held"), ("delayed", None)):
        async with aclosing(await events.open(shop.app.storage, User("ann"), place)) as parts:
            first = await anext(parts)
            await cancel(shop, job)
            second = await anext(parts)
        # The timer that ends the reader of the log is due before this one.
        await asyncio.sleep(0.001)
        if unseen:
            await cancel(shop, unseen)

        assert first.startswith(b"event: resync\n")
        assert shop.jobs[job].encode() in second
        place = second.decode().partition("id: ")[2].partition("\n")[0]
