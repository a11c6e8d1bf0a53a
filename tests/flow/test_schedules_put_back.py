"""Schedules declared in code are stored again after the storage lost them, even if an attempt fails."""

import asyncio
import logging
from collections.abc import Sequence
from random import Random

import pytest

from tenure import Tenure
from tenure.client.schedules import put_back
from tenure.errors import StorageError
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import Change, ScheduleResult


class RefusingStorage(MemoryStorage):
    """Memory whose next attempts to store schedules fail with these errors."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.stored = asyncio.Event()

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        if self.errors:
            raise self.errors.pop()
        results = await super().plan(changes)
        self.stored.set()
        return results


@pytest.mark.parametrize("error", [StorageError("refused"), RuntimeError("unexpected")])
async def test_schedules_are_put_back_though_an_attempt_fails(error: Exception) -> None:
    storage, lost = RefusingStorage(error), asyncio.Event()
    app = Tenure("memory://")

    @app.every("1h", name="hourly")
    async def hourly() -> None:
        pass

    lost.set()
    putting = put_back(
        storage, app.runtime().schedules.values(), lost=lost, rng=Random(1), logger=logging.getLogger("tenure")
    )
    async with asyncio.timeout(20):
        await putting

    assert [job.name for job in (await storage.survey()).schedules] == ["hourly"]
    assert not lost.is_set()
