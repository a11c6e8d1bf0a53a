"""Each event arrives, although the process that delivers is killed, and the receiver is down half of the time."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenure import JobFailed, Tenure
from tenure.core.lifecycle import State
from tenure.storage.protocol import EventReader
from tenure.webhooks.messages import message_of
from tests.webhooks.hook_app import make_app
from tests.webhooks.receivers import OK, SECRET, Got, answer, receiving
from tests.webhooks.test_deliveries import deliveries, fail, until

APP = "tests.webhooks.hook_app:app"
ROOT = Path(__file__).parent.parent.parent

KILLS = 5
EVENTS = 8
"""How many jobs fail before each kill."""


@asynccontextmanager
async def process(command: Sequence[str]) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run `tenure` with this command; kill it at the end, with all that it has started."""
    words = [sys.executable, "-m", "tenure", *command, "--log-level", "error"]
    running = await asyncio.create_subprocess_exec(*words, cwd=ROOT, start_new_session=True)
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        await running.wait()


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [["console", APP, "--port", "0"], ["worker", APP, "--internal", "-q", "other"]],
    ids=["console", "worker"],
)
async def test_each_event_arrives_although_processes_and_the_receiver_fail(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as free:
        port = free.port
    storage, url = f"sqlite:///{tmp_path}/queue.db", f"http://127.0.0.1:{port}/in"
    monkeypatch.setenv("HOOKS_STORAGE", storage)
    monkeypatch.setenv("HOOKS_URL", url)
    monkeypatch.setenv("HOOKS_SECRET", SECRET)
    arrived: list[Got] = []
    refused: list[Got] = []
    to_kill: list[int] = []

    def every_second(got: Got) -> bytes | None:
        """Take each second request, and kill the sender before the answer. Refuse the others in two ways."""
        count = len(arrived) + len(refused)
        if count % 2 == 0:
            refused.append(got)
            return None if count % 4 else answer("503 Down")
        arrived.append(got)
        if to_kill:
            os.killpg(to_kill.pop(), signal.SIGKILL)
        return OK

    async with make_app(storage, url) as app:
        await app.storage.events(limit=0, reader=EventReader("webhook:pay", "test"))
        for _ in range(KILLS):
            await fail(app, EVENTS)
            async with process(command) as running:
                # The receiver is down while the process starts.
                await until(lambda: refused_connections(app))
                to_kill.append(running.pid)
                async with receiving(every_second, port=port):
                    await running.wait()
        async with process(command), receiving(every_second, port=port):
            await until(lambda: all_delivered(app))
        events = await all_failures(app)
    webhook = app.webhooks["pay"]
    assert len(events) == KILLS * EVENTS
    assert {got.id for got in arrived} == {message_of(webhook, event).id for event in events}
    bodies = {message.id: message.body for message in (message_of(webhook, event) for event in events)}
    for got in [*arrived, *refused]:
        got.verify()
        assert got.body.decode() == bodies[got.id]


async def refused_connections(app: Tenure) -> bool:
    """Return True if a delivery has found no receiver and waits for its next attempt."""
    return any(job.state is State.DELAYED for job in await deliveries(app))


async def all_delivered(app: Tenure) -> bool:
    jobs = await deliveries(app)
    return len(jobs) == KILLS * EVENTS and all(job.state is State.COMPLETED for job in jobs)


async def all_failures(app: Tenure) -> list[JobFailed]:
    """Return the failures of the jobs that the webhook is about."""
    found, cursor = list[JobFailed](), "0"
    while (page := await app.storage.events(cursor)).events:
        found += [event for event in page.events if isinstance(event, JobFailed) and event.queue == "pay"]
        cursor = page.next
    return found
