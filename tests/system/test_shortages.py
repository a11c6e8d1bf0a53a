"""Workers that run out of descriptors or threads, by real limits: they claim no more, say why, and are replaced."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.core.events import JobReleased, WorkerStopping
from tenure.core.job import JobDetail, Ref
from tenure.core.lifecycle import State
from tests.system.worker_fleet import WorkerFleet, by_job

pytestmark = pytest.mark.system

MakeFleet = Callable[..., WorkerFleet]


@pytest.fixture
def here(make_fleet: MakeFleet) -> WorkerFleet:
    return make_fleet(lease="8s", max_count="0", no_handlers="1", nofile="160")


async def over(here: WorkerFleet, refs: list[Ref], *, within: float = 30) -> list[JobDetail]:
    async def ended() -> bool:
        return all(detail.job.finished is not None for detail in await here.details(refs))

    await here.until(ended, within=within)
    return await here.details(refs)


async def recycled(here: WorkerFleet) -> int:
    return len(
        [event for event in await here.events() if isinstance(event, WorkerStopping) and event.reason == "recycled"]
    )


def pids(here: WorkerFleet, ref: Ref) -> list[int]:
    return [line.pid for line in by_job(here.lines())[ref.id] if line.what == "start"]


async def test_a_worker_with_too_few_descriptors_logs_it_and_is_replaced(here: WorkerFleet) -> None:
    here.worker("-c", "2")
    (leak,) = here.enqueue("leak_descriptors", 20, "-free")
    await over(here, [leak])
    await here.said("free descriptors, and claims nothing with fewer than 32")
    after = here.enqueue("nap", 0, times=5)
    details = await over(here, [leak, *after])

    assert {(detail.job.state, detail.job.failures, detail.job.stalls, len(detail.runs)) for detail in details} == {
        (State.COMPLETED, 0, 0, 1)
    }
    assert await recycled(here) == 1
    assert not {pids(here, ref)[0] for ref in after} & set(pids(here, leak))


async def test_a_long_run_completes_while_other_jobs_leak_descriptors(here: WorkerFleet) -> None:
    here.worker("-c", "2", "--drain", "1s", "--prefetch", "0")
    (long,) = here.enqueue("wait_for_file", "-go")

    async def begun() -> bool:
        return any(line.what == "start" for line in here.lines())

    await here.until(begun, within=20)
    leaks: list[Ref] = []
    for _ in range(3):
        leaks += here.enqueue("leak_descriptors", 20, "-free")
        await over(here, leaks)
        worn = len(leaks)

        async def replaced(worn: int = worn) -> bool:
            return here.log().count("must be recycled") == worn

        await here.until(replaced, within=20)
    Path(f"{here.handler_log}-go").touch()  # noqa: ASYNC240 - nothing else runs here
    details = await over(here, [long, *leaks])

    assert {(detail.job.state, detail.job.releases, len(detail.runs)) for detail in details} == {
        (State.COMPLETED, 0, 1)
    }
    # Each leak made its process be replaced, while the first of these still had the long run.
    assert len({pids(here, ref)[0] for ref in leaks}) == 3


async def test_a_run_without_a_descriptor_is_released_once_and_runs_elsewhere(here: WorkerFleet) -> None:
    here.worker("-c", "2")
    once, always = *here.enqueue("exhaust", 1), *here.enqueue("exhaust", 9)
    innocent, hopeless = await over(here, [once, always])

    assert [(run.ended, run.reason) for run in innocent.runs] == [("released", "worker_failed"), ("completed", None)]
    assert (innocent.job.state, innocent.job.failures, innocent.job.stalls) == (State.COMPLETED, 0, 0)
    first, second = pids(here, once)
    assert first != second
    assert [run.ended for run in hopeless.runs] == ["released", "raised"]
    assert (hopeless.job.state, hopeless.job.reason, hopeless.job.failures) == (State.FAILED, "exhausted", 1)
    released = [event for event in await here.events() if isinstance(event, JobReleased)]
    assert {(event.reason, event.delay) for event in released} == {("worker_failed", 1.0)}
    assert await recycled(here) >= 1


async def test_a_run_that_cannot_start_a_thread_runs_again_in_a_new_process(here: WorkerFleet) -> None:
    here.worker("-c", "2")
    (ref,) = here.enqueue("exhaust_threads")
    (detail,) = await over(here, [ref])
    first, second = pids(here, ref)

    assert [(run.ended, run.reason) for run in detail.runs] == [("released", "worker_failed"), ("completed", None)]
    assert (detail.job.state, detail.job.failures) == (State.COMPLETED, 0)
    assert first != second
    assert "its handlers cannot start threads any more" in here.log()
    assert await recycled(here) == 1


async def test_an_isolated_process_without_descriptors_is_replaced_alone(here: WorkerFleet) -> None:
    here.worker("-c", "2")
    (ref,) = here.enqueue("isolated_exhaust")
    (detail,) = await over(here, [ref])
    first, second = pids(here, ref)

    assert [(run.ended, run.reason) for run in detail.runs] == [("released", "worker_failed"), ("completed", None)]
    assert first != second
    assert await recycled(here) == 0


async def test_an_unsupervised_worker_without_descriptors_claims_nothing(
    here: WorkerFleet,
) -> None:
    here.alone("-c", "2")
    (ref,) = here.enqueue("leak_descriptors", 20, "-free")
    await over(here, [ref])
    await here.said("restart it soon")
    waiting = here.enqueue("nap", 0)

    async def logged() -> bool:
        return any("free descriptors" in worker.why for worker in (await here.survey()).workers)

    await here.until(logged, within=20)
    found = here.run("doctor", "--url", here.url)
    (held,) = await here.details(waiting)
    Path(f"{here.handler_log}-free").touch()  # noqa: ASYNC240 - nothing else runs here
    (ran,) = await over(here, waiting)

    assert held.job.state is State.WAITING
    assert "claims no more jobs: it has" in found.stdout
    assert ran.job.state is State.COMPLETED
    assert pids(here, waiting[0]) == pids(here, ref)


async def test_an_unsupervised_burst_short_of_descriptors_fails_with_the_reason(here: WorkerFleet) -> None:
    (leak,) = here.enqueue("leak_descriptors", 20, "-free")
    naps = here.enqueue("nap", 0.5, times=20)
    burst = here.alone("-c", "1", "--burst")
    status = await asyncio.to_thread(burst.wait, 30)
    details = await here.details([leak, *naps])

    assert status == 1
    [error] = [line for line in here.log().splitlines() if line.startswith("error: ")]
    assert "jobs may be left: it has 20 free descriptors" in error
    assert {detail.job.state for detail in details} == {State.COMPLETED, State.WAITING}
    assert {(item.job.failures, item.job.stalls, item.job.releases) for item in details} == {(0, 0, 0)}
