"""Exclusive rights of handlers in threads that cannot be stopped: one at a time, charged once, in real processes."""

import asyncio
import json
import os
import signal
from collections.abc import Callable

import pytest

from tenure.core.events import JobFailed, JobReleased, JobRetried, JobStalled, JobStopIgnored, WorkerDied
from tenure.core.job import JobDetail, Ref
from tenure.core.lifecycle import State
from tests.amounts import cases, on_one_storage, on_redis
from tests.system.worker_fleet import Line, WorkerFleet

pytestmark = pytest.mark.system

DRAIN = 1.0


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def here(request: pytest.FixtureRequest, make_fleet: Callable[..., WorkerFleet]) -> WorkerFleet:
    """Return a worker fleet on each storage."""
    return make_fleet(**({"url": request.getfixturevalue("redis_url")} if request.param == "redis" else {}))


def begun(fleet: WorkerFleet) -> list[Line]:
    return [line for line in fleet.lines() if line.what == "start"]


def most_at_once(fleet: WorkerFleet) -> int:
    """Return how many handlers ran at a time, by their own notes."""
    runs: dict[tuple[str, int], list[int]] = {}
    for line in fleet.lines():
        runs.setdefault((line.id, line.run), []).append(line.at)
    spans = [(min(times), max(times)) for times in runs.values()]
    return max(sum(first <= at <= last for first, last in spans) for at, _ in spans)


async def over(fleet: WorkerFleet, ref: Ref, *, within: float) -> JobDetail:
    async def ended() -> bool:
        return (await fleet.details([ref]))[0].job.state in (State.FAILED, State.COMPLETED, State.CANCELLED)

    await fleet.until(ended, within=within)
    return (await fleet.details([ref]))[0]


async def ignored(fleet: WorkerFleet) -> list[JobStopIgnored]:
    return [event for event in await fleet.events() if isinstance(event, JobStopIgnored)]


@pytest.mark.parametrize(
    ("here", "task"),
    cases(
        [("sqlite", "silent"), on_redis("overlong"), ("sqlite", "outrun")],
        more=[on_redis("silent"), ("sqlite", "overlong"), on_redis("outrun")],
    ),
    indirect=["here"],
)
async def test_a_supervised_worker_ends_with_a_thread_that_does_not_stop(here: WorkerFleet, task: str) -> None:
    here.worker("-c", "10", "--drain", f"{DRAIN:g}s")
    (ref,) = here.enqueue(task, 60)
    detail = await over(here, ref, within=60)
    job = detail.job

    # Before: 7 runs at once within seconds.
    assert most_at_once(here) == 1
    assert [line.run for line in begun(here)] == [1, 2]
    assert len({line.pid for line in begun(here)}) == 2
    assert job.reason == {"silent": "stalled", "overlong": "timeout", "outrun": "exhausted"}[task]
    assert (job.starts, job.stalls, job.failures, job.releases) == ((2, 2, 0, 0) if task == "silent" else (2, 0, 2, 0))
    reason = {"silent": "no_progress", "overlong": "TimeoutError", "outrun": "HandlerUnfinishedError"}[task]
    assert [run.reason for run in detail.runs] == [reason] * 2
    events = [event for event in await here.events() if getattr(event, "id", None) == ref.id]
    charged = [type(event) for event in events if isinstance(event, JobStalled | JobRetried | JobFailed | JobReleased)]
    assert charged == ([JobStalled, JobStalled, JobFailed] if task == "silent" else [JobRetried, JobFailed])
    assert [event.run for event in await ignored(here)] == [1, 2]
    for run in detail.runs:
        assert run.end is not None
        # Its end freed the right, and its thread did nothing after that.
        assert max(line.at for line in here.lines() if line.run == run.number) <= run.end
        # A second until it was asked to stop, two to obey, the drain, and four to end.
        assert (run.end - run.start) / 1_000_000 < 1 + 2 + DRAIN + 4 + 1


async def test_a_killed_worker_frees_the_right_and_the_first_reason_stands(here: WorkerFleet) -> None:
    here.worker("-c", "10", "--drain", "4s")
    (ref,) = here.enqueue("silent", 60)

    async def known() -> bool:
        return len(await ignored(here)) == 1

    await here.until(known, within=30)
    (first,) = begun(here)
    os.kill(first.pid, signal.SIGKILL)

    async def again() -> bool:
        return len(begun(here)) == 2

    await here.until(again, within=10)
    detail = (await here.details([ref]))[0]
    assert [event.reason for event in await here.events() if isinstance(event, JobStalled)] == ["no_progress"]
    assert [event.pid for event in await here.events() if isinstance(event, WorkerDied)] == [first.pid]
    assert (detail.job.stalls, detail.job.releases) == (1, 0)
    assert most_at_once(here) == 1


@on_one_storage("here", "redis")
async def test_a_healthy_thread_keeps_its_right_while_its_worker_stops(here: WorkerFleet) -> None:
    leaving = here.worker("-c", "10", "--drain", "500ms")
    (ref,) = here.enqueue("silent", 0.4)
    await over(here, ref, within=30)
    # One continues beyond the drain, within what it may be silent, and one waits for its key.
    held, waiting = here.enqueue_in_turns("guarded", [(60,), (0.2,)], times=1)

    async def one_runs() -> bool:
        return len(begun(here)) == 2

    await here.until(one_runs, within=10)
    here.worker("-c", "10", "--drain", "500ms")
    await here.signal(leaving, signal.SIGTERM)
    await asyncio.to_thread(leaving.wait, 30)

    async def three_ran() -> bool:
        return len(begun(here)) >= 3

    await here.until(three_ran, within=15)
    assert most_at_once(here) == 1
    details = await here.details([held, waiting])
    released = [event for event in await here.events() if isinstance(event, JobReleased)]
    assert [(event.id, event.reason) for event in released] == [(held.id, "shutdown")]
    assert [(detail.job.stalls, detail.job.failures) for detail in details] == [(0, 0), (0, 0)]


@on_one_storage("here")
async def test_an_unsupervised_worker_keeps_the_right_until_the_thread_ends(here: WorkerFleet) -> None:
    here.alone("-c", "10")
    first, second = here.enqueue_in_turns("silent", [(7,), (0.2,)], times=1)

    async def known() -> bool:
        return len(await ignored(here)) == 1

    await here.until(known, within=30)

    async def seen() -> bool:
        output = json.loads((await asyncio.to_thread(here.run, "doctor", "-o", "json")).stdout)
        return any(item["subject"] == "exclusive" and first.id in item["message"] for item in output["findings"])

    await here.until(seen, within=5)
    detail = await over(here, second, within=40)

    assert detail.job.state is State.COMPLETED
    stalled = [event for event in await here.events() if isinstance(event, JobStalled)]
    assert [(event.id, event.reason, event.count) for event in stalled] == [
        (first.id, "no_progress", 1),
        (first.id, "no_progress", 2),
    ]
    assert most_at_once(here) == 1
    assert "restart it soon" in here.log()
    for run in (await here.details([first]))[0].runs:
        assert run.end is not None
        # It was charged when its handler had ended.
        assert (run.end - run.start) / 1_000_000 > 6.5
