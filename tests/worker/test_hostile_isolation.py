"""Hostile exceptions in isolated processes: each process reports how its run ended."""

import importlib
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import JobReleased, JobStalled
from tests import hostile

pytestmark = pytest.mark.system

COUNT = itertools.count()


@pytest.fixture
def mod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the module of handlers, under a name that no other test has used."""
    name = f"hostile_{os.getpid()}_{next(COUNT)}"
    shutil.copy(Path(hostile.__file__), tmp_path / f"{name}.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield importlib.import_module(name)
    del sys.modules[name]


@pytest.mark.parametrize("place", [place for place in hostile.PLACES if place != "event"])
@pytest.mark.parametrize("way", ["loop", "thread"])
async def test_a_hostile_exception_in_a_process_fails_its_job_and_no_other(mod: Any, way: str, place: str) -> None:
    async with mod.apart as app, app.worker(concurrency=2):
        ended = await mod.run_hostile_jobs(app, way, place, within=45)
        events = (await app.storage.events(limit=10_000)).events

    assert ended == mod.expected(place)
    assert not [event for event in events if isinstance(event, JobReleased | JobStalled)]
