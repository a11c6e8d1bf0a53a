"""The SQLite storage passes the suite."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.storage.protocol import Storage
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure.testing import ManualClock
from tenure_testing.conformance import NoFlowsConformance, StorageConformance


@pytest.mark.sqlite
class TestSQLite(StorageConformance, NoFlowsConformance):
    @pytest.fixture
    async def storage(self, clock: ManualClock, tmp_path: Path, empty_database: Path) -> AsyncIterator[Storage]:
        path = tmp_path / "tenure.db"
        shutil.copyfile(empty_database, path)
        storage = SQLiteStorage(path, clock=clock)
        await storage.open()
        yield storage
        await storage.close()
