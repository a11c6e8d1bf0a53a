"""A worker that runs a durable handler is killed around the record of a step: a recorded step does not run again."""

import signal
from collections.abc import Callable

import pytest

from tenure.core.lifecycle import State
from tests.system.worker_fleet import WorkerFleet

pytestmark = pytest.mark.system

MakeFleet = Callable[..., WorkerFleet]


@pytest.mark.parametrize(("dies", "charged_by"), [("before", [1, 2]), ("after", [1])])
async def test_a_killed_worker_resumes_past_the_recorded_step(
    make_fleet: MakeFleet, dies: str, charged_by: list[int]
) -> None:
    here = make_fleet(lease="20s", grace="3s", sweep="2s")
    first = here.alone()
    [ref] = here.enqueue("charge_and_ship", dies)
    assert first.wait() == -signal.SIGKILL
    [detail] = await here.details([ref])
    assert [step.name for step in detail.steps] == (["charge"] if dies == "after" else [])
    here.alone()

    async def completed() -> bool:
        return await here.count(State.COMPLETED) == 1

    await here.until(completed, within=20)
    [detail] = await here.details([ref])
    assert [(step.name, step.run) for step in detail.steps] == [("charge", charged_by[-1]), ("ship", 2)]
    assert [line.run for line in here.lines() if line.what == "charge"] == charged_by
    assert [line.run for line in here.lines() if line.what == "ship"] == [2]


@pytest.mark.redis
@pytest.mark.parametrize(
    ("how", "noted", "recorded_by"),
    [
        ("within", [("charged", 1), ("charged", 2), ("recorded", 2)], 2),
        ("after", [("charged", 1), ("recorded", 1), ("recorded", 2)], 1),
    ],
)
async def test_a_killed_process_repeats_on_redis_what_is_not_recorded(
    make_fleet: MakeFleet, redis_url: str, how: str, noted: list[tuple[str, int]], recorded_by: int
) -> None:
    here = make_fleet(url=redis_url)
    here.worker("--processes", "1", "-c", "1")
    (ref,) = here.enqueue("order", how)

    async def ended() -> bool:
        return await here.count(State.COMPLETED, State.FAILED) == 1

    await here.until(ended, within=30)
    (detail,) = await here.details([ref])

    assert [(line.what, line.run) for line in here.lines() if line.id == ref.id and line.what != "heard"] == noted
    assert [(step.name, step.run, step.body) for step in detail.steps] == [
        ("charge", recorded_by, f"{recorded_by}".encode())
    ]
    assert (detail.job.state, detail.job.result) == (State.COMPLETED, f"{recorded_by}".encode())
