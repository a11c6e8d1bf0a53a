"""A rolling deploy with real processes: workers of the old and of the new code share a queue."""

from collections.abc import Callable

import pytest

from tenure import ScheduleMissed, ScheduleSkipped
from tenure.core.lifecycle import State
from tests.system.worker_fleet import WorkerFleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

JOBS = 200
TICKS = 5


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def there(request: pytest.FixtureRequest, make_fleet: Callable[..., WorkerFleet]) -> WorkerFleet:
    """Return a worker fleet on each storage."""
    return make_fleet(lease="8s", **({"url": request.getfixturevalue("redis_url")} if request.param == "redis" else {}))


async def test_a_new_tasks_jobs_run_on_the_new_worker_and_no_tick_is_lost(there: WorkerFleet) -> None:
    old = [there.alone("--concurrency", "4") for _ in range(3)]

    async def all_here() -> bool:
        return len((await there.survey()).workers) == len(old)

    await there.until(all_here, within=30)
    new = there.worker("--no-supervisor", target="fleet_app_new:app")
    refs = there.enqueue("fresh", times=JOBS, module="fleet_app_new")

    async def over() -> bool:
        done = all(detail.job.state is State.COMPLETED for detail in await there.details(refs))
        return done and len([line for line in there.lines() if line.what == "often"]) >= TICKS

    await there.until(over, within=150)
    records = [detail.job for detail in await there.details(refs)]
    lines = there.lines()
    ticks = sorted(line.at for line in lines if line.what == "often")

    assert {line.pid for line in lines if line.what in ("fresh", "often")} == {new.pid}
    assert len([line for line in lines if line.what == "fresh"]) == JOBS
    assert {(job.failures, job.stalls) for job in records} == {(0, 0)}
    assert max(job.releases for job in records) <= 1
    assert ticks[-1] - ticks[0] < len(ticks) * 2_000_000
    assert not [event for event in await there.events() if isinstance(event, ScheduleSkipped | ScheduleMissed)]
