"""The SQLite storage passes the suite."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.storage.protocol import Storage
from holdfast.storage.sqlite.storage import SQLiteStorage
from holdfast.testing import ManualClock
from holdfast.testing.conformance import StorageConformance


class TestSQLite(StorageConformance):
    @pytest.fixture
    async def storage(self, clock: ManualClock, tmp_path: Path, empty_database: Path) -> AsyncIterator[Storage]:
        path = tmp_path / "holdfast.db"
        shutil.copyfile(empty_database, path)
        storage = SQLiteStorage(path, clock=clock)
        await storage.open()
        yield storage
        await storage.close()
