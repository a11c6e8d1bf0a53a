"""An arbitrary exception of a handler, a codec, middleware or an event handler fails its job only."""

import asyncio
from pathlib import Path

import pytest

from tenure import JobReleased, WorkerStopping
from tests.hostile import PLACES, RAISED, expected, make_app, run_hostile_jobs

pytestmark = pytest.mark.thorough


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path / 'queue.db'}"
        case _:
            return str(request.getfixturevalue("redis_url"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", ["loop", "thread"])
async def test_a_hostile_exception_fails_its_job_and_no_other(url: str, way: str, place: str) -> None:
    heard: list[str] = []
    app = make_app(url, heard)
    async with app, app.worker():
        ended = await run_hostile_jobs(app, way, place, within=30)
        events = (await app.storage.events(limit=10_000)).events

        assert ended == expected(place)
        assert not [event for event in events if isinstance(event, JobReleased | WorkerStopping)]
        # Both handlers get each completed job, no matter what the other handlers have raised.
        completed = len(RAISED) * (2 if place in ("event", "data") else 1)
        async with asyncio.timeout(10):
            while len(heard) < 2 * completed:  # noqa: ASYNC110 - the handlers are what changes
                await asyncio.sleep(0.01)
        assert len(set(heard)) == 2 * completed
