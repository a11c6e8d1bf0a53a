"""Handlers that end the event loop of their worker: they fail, and the other runs complete."""

from collections.abc import Callable

import pytest

from tenure.core.events import JobFailed, JobStalled
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tests.system.worker_fleet import WorkerFleet, by_job

pytestmark = pytest.mark.system

MakeFleet = Callable[..., WorkerFleet]


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def here(request: pytest.FixtureRequest, make_fleet: MakeFleet) -> WorkerFleet:
    """Return a worker fleet on each storage; a job fails at its second stall."""
    url = "" if request.param == "sqlite" else str(request.getfixturevalue("redis_url"))
    return make_fleet(url=url, lease="4s", sweep="400ms", grace="600ms", max_count="1", no_handlers="1")


async def with_broken_loop(here: WorkerFleet, how: str, *options: str, again: bool = False) -> tuple[Ref, list[Ref]]:
    """Let six other jobs run until the one that breaks their loop has done so, and wait until all have ended."""
    here.worker("--processes", "1", "-c", "7", "--drain", "10s", *options)
    neighbours = here.enqueue("wait_for_file", ".go", times=6)

    async def begun() -> bool:
        return len(by_job(here.lines())) == 6

    await here.until(begun, within=30)
    (failed_job,) = here.enqueue("break_loop_again") if again else here.enqueue("break_loop", how)

    async def done() -> bool:
        events = [event for event in await here.events() if isinstance(event, JobFailed | JobStalled)]
        return any(event.id == failed_job.id for event in events)

    async def over() -> bool:
        return await here.count(State.COMPLETED, State.FAILED) == 7

    await here.until(done, within=60)
    here.folder.joinpath("handler-log.go").touch()
    await here.until(over, within=60)
    return failed_job, neighbours


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["cancel", "cancel from a thread", "cancel, and return"])
async def test_a_handler_that_cancels_every_task_fails_only_its_own_job(here: WorkerFleet, how: str, loop: str) -> None:
    failed_job, neighbours = await with_broken_loop(here, how, "--loop", loop)
    (failed,) = await here.details([failed_job])
    others = await here.details(neighbours)

    assert (failed.job.state, failed.job.reason, failed.job.stalls) == (State.FAILED, "exhausted", 0)
    assert failed.job.error is not None
    assert "cancelled every task of its event loop" in failed.job.error.message
    assert "cancel_all" in (failed.job.error.traceback or "")
    assert {detail.job.state for detail in others} == {State.COMPLETED}
    assert {(detail.job.failures, detail.job.stalls) for detail in others} == {(0, 0)}
    assert {detail.runs[0].reason for detail in others} == {"worker_failed"}


async def test_a_handler_that_cancels_every_task_is_tried_again_alone(here: WorkerFleet) -> None:
    failed_job, neighbours = await with_broken_loop(here, "cancel", again=True)
    (failed,) = await here.details([failed_job])
    others = await here.details(neighbours)

    assert (failed.job.state, failed.job.reason, failed.job.failures) == (State.FAILED, "exhausted", 3)
    assert {(detail.job.state, len(detail.runs), detail.job.releases) for detail in others} == {(State.COMPLETED, 2, 1)}


async def test_a_handler_that_stops_the_loop_fails_and_nothing_else_happens(here: WorkerFleet) -> None:
    failed_job, neighbours = await with_broken_loop(here, "stop")
    (failed,) = await here.details([failed_job])
    others = await here.details(neighbours)

    assert (failed.job.state, failed.job.reason) == (State.FAILED, "exhausted")
    assert failed.job.error is not None
    assert "must not stop the event loop" in failed.job.error.message
    assert {(detail.job.state, len(detail.runs)) for detail in others} == {(State.COMPLETED, 1)}


@pytest.mark.parametrize("how", ["cancel unknown", "stop unknown", "exit"])
async def test_each_run_of_a_broken_loop_stalls_once_without_a_known_cause(here: WorkerFleet, how: str) -> None:
    failed_job, neighbours = await with_broken_loop(here, how)
    (failed,) = await here.details([failed_job])
    others = await here.details(neighbours)

    assert failed.job.state is State.FAILED
    assert failed.runs[0].ended == "stalled"
    assert {detail.job.state for detail in others} == {State.COMPLETED}
    assert {(detail.job.failures, detail.job.stalls) for detail in others} == {(0, 1)}
    # Each of them ran alone after that, in a process that none of the others has been in.
    pids = [detail.runs[1].pid for detail in others]
    assert {detail.runs[0].pid for detail in others}.isdisjoint(pids)
