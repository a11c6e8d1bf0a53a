"""Worker processes that are killed around a step of a durable handler: recorded steps are not repeated."""

from collections.abc import Callable

import pytest

from tenure.core.lifecycle import State
from tests.system.worker_fleet import WorkerFleet

pytestmark = [pytest.mark.system, pytest.mark.redis]


@pytest.mark.parametrize(
    ("how", "noted", "recorded_by"),
    [
        ("within", [("charged", 1), ("charged", 2), ("recorded", 2)], 2),
        ("after", [("charged", 1), ("recorded", 1), ("recorded", 2)], 1),
    ],
)
async def test_a_killed_process_repeats_only_what_is_not_recorded(
    make_fleet: Callable[..., WorkerFleet], redis_url: str, how: str, noted: list[tuple[str, int]], recorded_by: int
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
