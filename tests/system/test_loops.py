"""Workers on uvloop: they run on the loop that was requested, and keep every promise there too."""

import os
import signal
from collections.abc import Callable

import msgspec
import pytest

from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tests.amounts import cases, on_redis
from tests.system.worker_fleet import WorkerFleet, by_job

pytestmark = pytest.mark.system


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def here(request: pytest.FixtureRequest, make_fleet: Callable[..., WorkerFleet]) -> WorkerFleet:
    """Return a worker fleet on each storage, with the default choice of a loop."""
    url = "" if request.param == "sqlite" else str(request.getfixturevalue("redis_url"))
    made = make_fleet(url=url, lease="4s", sweep="400ms", grace="600ms")
    del made.env["TENURE_WORKER_LOOP"]
    return made


async def completed(here: WorkerFleet, refs: list[Ref]) -> None:
    """Wait until all of these are completed."""

    async def all_are() -> bool:
        return all(detail.job.state is State.COMPLETED for detail in await here.details(refs))

    await here.until(all_are, within=60)


LOOPS = [((), "uvloop"), (("--loop", "uvloop"), "uvloop"), (("--loop", "asyncio"), "asyncio.unix_events")]


@pytest.mark.parametrize(
    ("here", "options", "loop"),
    cases([("sqlite", *loop) for loop in LOOPS], more=[on_redis(*loop) for loop in LOOPS]),
    indirect=["here"],
)
async def test_handlers_run_on_uvloop_if_installed_or_on_the_requested_loop(
    here: WorkerFleet, options: tuple[str, ...], loop: str
) -> None:
    refs = [*here.enqueue("loop_here"), *here.enqueue("isolated_loop")]
    here.worker(*options)
    await completed(here, refs)

    for detail in await here.details(refs):
        assert msgspec.json.decode(detail.job.result or b"") == loop


@pytest.mark.parametrize("here", cases([on_redis()], more=["sqlite"]), indirect=True)
async def test_on_uvloop_a_worker_survives_bad_handlers_and_a_kill(here: WorkerFleet) -> None:
    worker = here.worker("--loop", "uvloop", "--processes", "2", "-c", "8", "--drain", "10s")
    # Each way to run, a loop that is blocked, and an interpreter that is held.
    refs = [
        *here.enqueue("nap", 0.05, times=200),
        *here.enqueue("blocking", 0.2, times=8),
        *here.enqueue("isolated", 0.2, times=4),
        *here.enqueue("block_loop", 1.0),
        *here.enqueue("hold_gil", 1.0),
    ]
    (victim,) = here.enqueue("patient", 2.0)

    async def begun() -> bool:
        return any(run.pid for detail in await here.details([victim]) for run in detail.runs)

    await here.until(begun, within=60)
    (detail,) = await here.details([victim])
    os.kill(detail.runs[-1].pid, signal.SIGKILL)
    await completed(here, [*refs, victim])
    (last,) = here.enqueue("nap", 2.0)

    async def napping() -> bool:
        return bool(by_job(here.lines()).get(last.id))

    await here.until(napping, within=20)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(20) == 0
    (detail,) = await here.details([victim])
    assert [run.ended for run in detail.runs] == ["stalled", "completed"]
    # What was left in the drain has ended there, in its first run.
    (detail,) = await here.details([last])
    assert (detail.job.state, len(detail.runs)) == (State.COMPLETED, 1)
