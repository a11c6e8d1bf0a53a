"""Handlers that block the loop or hold the interpreter: they keep their leases, for somebody renews from outside."""

from collections.abc import Callable

import pytest

from holdfast.core.events import AnyEvent, JobStalled, RunFenced, WorkerDied, WorkerHung
from holdfast.core.lifecycle import State
from tests.system.farm import Farm, by_job

pytestmark = pytest.mark.system

MakeFarm = Callable[..., Farm]

LEASE = 1.2
"""Seconds; each of these handlers goes on for three of them."""

TIMING = {"lease": f"{LEASE}s", "sweep": "300ms", "grace": "300ms"}


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def place(request: pytest.FixtureRequest) -> str:
    """Return the address of a storage; none for a file of the farm's own."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("redis_url"))


async def completed(here: Farm, many: int, *, within: float = 20) -> None:
    """Wait until so many jobs are completed."""

    async def done() -> bool:
        return await here.count(State.COMPLETED) == many

    await here.until(done, within=within)


def of_trouble(events: list[AnyEvent]) -> list[AnyEvent]:
    """Return the events that tell of a worker or a run that was lost."""
    return [event for event in events if isinstance(event, JobStalled | RunFenced | WorkerDied | WorkerHung)]


def warnings(here: Farm) -> list[str]:
    """Return the lines in which somebody warns of a handler that lets nothing else go on."""
    return [line for line in here.log().splitlines() if "nothing else" in line or "blocked the event loop" in line]


@pytest.mark.parametrize("task", ["spin", "grip", "grip_plain"])
async def test_a_handler_that_lets_nothing_else_go_on_keeps_its_lease_and_is_named_once(
    farm: MakeFarm, place: str, task: str
) -> None:
    here = farm(url=place, **TIMING)
    here.worker("--processes", "2", "-c", "2")
    (ref,) = here.enqueue(task, 3 * LEASE)
    await completed(here, 1)

    (detail,) = await here.details([ref])
    assert [run.ended for run in detail.runs] == ["completed"]
    assert [line.what for line in by_job(here.lines())[ref.id] if line.what != "heard"] == ["start", "end"]
    assert not of_trouble(await here.events())
    (warning,) = warnings(here)
    assert ref.id in warning
    assert "crew.py:" in warning
    assert f"in {task}" in warning
