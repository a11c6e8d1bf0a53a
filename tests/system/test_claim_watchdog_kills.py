"""Real workers that claim nothing any more, although the storage would let them, are replaced."""

import asyncio
from collections.abc import Callable

import pytest

from tenure.clock import SECOND
from tenure.core.events import WorkerDied, WorkerHung
from tenure.core.lifecycle import State
from tenure.supervisor.monitor import CONFIRM_AFTER, SHORTEST_LIMIT
from tests.system.worker_fleet import WorkerFleet

pytestmark = pytest.mark.system

MakeFleet = Callable[..., WorkerFleet]


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def url(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "sqlite" else str(request.getfixturevalue("redis_url"))


@pytest.mark.slow
async def test_a_worker_that_alone_loses_the_storage_is_replaced_uncharged(make_fleet: MakeFleet, url: str) -> None:
    # A minute by default; with a limit this low for blocked loops, the lowest possible one.
    here = make_fleet(url=url, max_block="2s")
    parent = here.worker("-c", "2", "--no-reaper")

    async def at_work() -> bool:
        return bool(await here.pids())

    await here.until(at_work, within=20)
    refs = here.enqueue("starve", 600)

    async def begun() -> bool:
        return bool(here.lines())

    await here.until(begun, within=20)
    here.enqueue("quick", 1, times=3)
    died: list[WorkerDied] = []

    async def recovered() -> bool:
        died[:] = [event for event in await here.events() if isinstance(event, WorkerDied)]
        return bool(died)

    await here.until(recovered, within=SHORTEST_LIMIT + CONFIRM_AFTER + 30)
    events = await here.events()
    hung = [event for event in events if isinstance(event, WorkerHung)]

    async def done() -> bool:
        return await here.count(State.COMPLETED) == 4

    await here.until(done, within=20)
    details = await here.details(refs)
    parent.terminate()

    # It had its last answer when its job had begun, or a moment later.
    assert died[0].at is not None
    assert died[0].at.timestamp() - here.lines()[0].at / SECOND > SHORTEST_LIMIT + CONFIRM_AFTER - 1
    assert [event.owner for event in hung] == [event.owner for event in died]
    assert "its claim loop had had no answer" in died[0].how
    assert [detail.job.stalls for detail in details] == [0]
    assert [detail.job.starts for detail in details] == [2]
    assert await asyncio.to_thread(parent.wait, 20) == 0
