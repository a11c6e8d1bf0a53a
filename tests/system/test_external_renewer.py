"""Handlers that block the loop or hold the interpreter keep their leases: the supervisor renews them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.core.events import AnyEvent, JobStalled, RunFenced, WorkerDied, WorkerHung
from tenure.core.lifecycle import State
from tests.amounts import on_one_storage
from tests.system.worker_fleet import WorkerFleet, by_job

pytestmark = pytest.mark.system

MakeFleet = Callable[..., WorkerFleet]

LEASE = 1.2
"""Seconds; each of these handlers runs for three of them."""

ALONE = """
import asyncio
import fleet_app

async def work():
    await fleet_app.app.worker(concurrency=2, reaper=False).run()

asyncio.run(work())
"""
"""A worker in a user's own process, without a supervisor; other reapers sweep and recover its jobs."""

SECOND = 1_000_000
TIMING = {"lease": f"{LEASE}s", "sweep": "300ms", "grace": "300ms"}


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def place(request: pytest.FixtureRequest) -> str:
    """Return the address of a storage; an empty string means a SQLite file of the fleet."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("redis_url"))


async def completed(here: WorkerFleet, many: int, *, within: float = 20) -> None:
    """Wait until this many jobs are completed."""

    async def done() -> bool:
        return await here.count(State.COMPLETED) == many

    await here.until(done, within=within)


def of_trouble(events: list[AnyEvent]) -> list[AnyEvent]:
    """Return the events of lost workers and runs."""
    return [event for event in events if isinstance(event, JobStalled | RunFenced | WorkerDied | WorkerHung)]


def warnings(here: WorkerFleet) -> list[str]:
    """Return the lines that warn of a handler that blocks its process."""
    return [
        line for line in here.log().splitlines() if "no other code runs" in line or "blocked the event loop" in line
    ]


@pytest.mark.parametrize(
    ("place", "task"),
    [
        ("sqlite", "spin"),
        ("sqlite", "hold_gil"),
        ("sqlite", "hold_gil_plain"),
        pytest.param("redis", "hold_gil", marks=pytest.mark.redis),
    ],
    indirect=["place"],
)
async def test_a_handler_that_blocks_its_process_keeps_its_lease_with_a_warning(
    make_fleet: MakeFleet, place: str, task: str
) -> None:
    here = make_fleet(url=place, **TIMING)
    here.worker("--processes", "2", "-c", "2")
    (ref,) = here.enqueue(task, 3 * LEASE)
    await completed(here, 1)

    (detail,) = await here.details([ref])
    assert [run.ended for run in detail.runs] == ["completed"]
    assert [line.what for line in by_job(here.lines())[ref.id] if line.what != "heard"] == ["start", "end"]
    assert not of_trouble(await here.events())
    (warning,) = warnings(here)
    assert ref.id in warning
    assert "fleet_app.py:" in warning
    assert f"in {task}" in warning


@on_one_storage("place")
async def test_jobs_claimed_with_a_handler_that_holds_the_gil_run_after_it(make_fleet: MakeFleet, place: str) -> None:
    here = make_fleet(url=place, **TIMING)
    here.worker("-c", "2")

    async def there() -> bool:
        return len(await here.pids()) == 1

    # The lines of a worker's start are written by then: a thread that is held while it writes them holds SQLite's lock.
    await here.until(there, within=20)
    refs = here.enqueue("hold_gil", 3 * LEASE, times=2)
    await completed(here, 2)

    # The supervisor has renewed the leases of both, so the second is not released as lost when its turn comes.
    found = [[(run.ended, run.reason) for run in detail.runs] for detail in await here.details(refs)]
    assert found == [[("completed", None)]] * 2
    assert not of_trouble(await here.events())


async def test_an_unsupervised_worker_loses_a_lease_while_its_gil_is_held(make_fleet: MakeFleet, place: str) -> None:
    here = make_fleet(url=place, **TIMING)
    # Another reaper sweeps, and takes from it what it has lost.
    here.worker("-c", "1", "-q", "elsewhere")
    here.process("-c", ALONE)

    async def two() -> bool:
        return len(await here.pids()) == 2

    await here.until(two, within=20)
    (ref,) = here.enqueue("hold_gil", 3 * LEASE)

    async def over() -> bool:
        (detail,) = await here.details([ref])
        return bool(detail.runs) and detail.runs[0].ended is not None

    await here.until(over, within=20)
    (detail,) = await here.details([ref])
    assert (detail.runs[0].ended, detail.runs[0].reason) == ("stalled", "lease_expired")


@on_one_storage("place", "redis")
async def test_a_worker_or_isolated_process_blocked_beyond_max_block_is_replaced(
    make_fleet: MakeFleet, place: str
) -> None:
    here = make_fleet(url=place, max_block="2s", max_count="1", lease="20s", sweep="60s")
    here.worker("--processes", "2", "-c", "2")
    (ref,) = here.enqueue("hold_gil", 20)

    async def failed() -> bool:
        return await here.count(State.FAILED) == 1

    await here.until(failed, within=30)
    (detail,) = await here.details([ref])
    assert (detail.job.reason, detail.job.stalls) == ("stalled", 2)
    # The second run is alone in an isolated process, where the same limit holds.
    assert [(run.ended, run.reason) for run in detail.runs] == [("stalled", "loop_blocked")] * 2
    (hung,) = [event for event in await here.events() if isinstance(event, WorkerHung)]
    assert 2.0 < hung.blocked_for < 4.0
    assert "in hold_gil" in hung.stack
    assert all("blocked for longer than max_block of 2s" in (run.detail or "") for run in detail.runs)


@on_one_storage("place")
async def test_a_run_past_its_timeout_on_a_blocked_loop_ends_with_its_process(
    make_fleet: MakeFleet, place: str
) -> None:
    here = make_fleet(url=place, lease="20s", sweep="60s")
    here.worker("--processes", "2", "-c", "3", "-q", "default")
    neighbours = here.enqueue("nap", 12, times=2)

    async def begun() -> bool:
        return len(here.lines()) == len(neighbours)

    await here.until(begun, within=20)
    (overdue,) = here.enqueue("hold_gil_limited", 30)

    async def over() -> bool:
        (detail,) = await here.details([overdue])
        return bool(detail.runs) and detail.runs[0].ended is not None

    await here.until(over, within=20)
    (detail,) = await here.details([overdue])
    assert (detail.runs[0].ended, "its timeout of 500ms" in (detail.runs[0].detail or "")) == ("timed_out", True)
    assert detail.runs[0].end is not None
    # Half a second of its own, two until it is ended with its process, and time for a busy machine.
    assert detail.runs[0].end - detail.runs[0].start < 4.5 * SECOND
    assert (detail.job.failures, detail.job.stalls) == (1, 0)
    others = [item for item in await here.details(neighbours) if item.runs[0].pid == detail.runs[0].pid]
    assert {detail.runs[0].ended for detail in others} <= {"released"}
    assert {detail.job.stalls for detail in others} <= {0}


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
