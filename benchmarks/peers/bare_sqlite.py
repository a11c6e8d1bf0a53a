"""The floor on SQLite: a table and nothing else, WAL and synchronous=FULL, as ours is set up by default."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.adapter import AsyncPeer, Cannot, Row, main
from benchmarks.peers.order import About


class BareSqlite(AsyncPeer):
    """Bare statements; what many callers enqueue within a tick of the loop is one commit."""

    about = About(
        title="floor: bare SQLite",
        role="floor",
        settings={
            "pragmas": "journal_mode=WAL, synchronous=FULL",
            "enqueue": "an INSERT and a COMMIT each; of 50 callers at once one COMMIT for all",
            "process": "one COMMIT deletes what has run and claims as many as run at once; handlers awaited, no tasks",
        },
        rate=20_000,
        bulk=True,
        results=False,
    )

    async def open(self) -> None:
        """Open the file."""
        if self.order.results or self.order.task == "hold" or self.order.do == "pace":
            raise Cannot("a floor is there for the bare enqueueing and processing only")
        path = Path("/" + self.order.url.removeprefix("sqlite:").lstrip("/"))
        self._file = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=FULL")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, owner TEXT) STRICT"
        )
        self._file.execute("CREATE INDEX IF NOT EXISTS waiting ON job (id) WHERE owner IS NULL")
        self._unsaved: list[Row] = []
        self._saved: asyncio.Future[None] | None = None

    async def enqueue(self, task: str, *row: Any) -> object:
        """Store a job."""
        self._unsaved.append(row)
        if self._saved is None:
            loop = asyncio.get_running_loop()
            self._saved = loop.create_future()
            loop.call_soon(self._save)
        await self._saved
        return row

    async def enqueue_many(self, task: str, rows: Sequence[Row]) -> Sequence[object]:
        """Store jobs."""
        self._file.execute("BEGIN IMMEDIATE")
        self._file.executemany(
            "INSERT INTO job (id, payload) VALUES (?, ?)", [(row[0], json.dumps(row).encode()) for row in rows]
        )
        self._file.execute("COMMIT")
        return rows

    async def work(self) -> None:
        """Claim, run and delete for ever."""
        done: list[tuple[int]] = []
        while True:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("DELETE FROM job WHERE id = ?", done)
            claimed = self._file.execute(
                "UPDATE job SET owner = 'bare' WHERE id IN (SELECT id FROM job WHERE owner IS NULL ORDER BY id LIMIT ?)"
                " RETURNING id, payload",
                (self.order.concurrency,),
            ).fetchall()
            self._file.execute("COMMIT")
            for _, payload in claimed:
                await self._noop(*json.loads(payload))
            done = [(number,) for number, _ in claimed]
            if not claimed:
                await asyncio.sleep(0.01)

    async def _noop(self, number: int) -> None:
        self.tally.started(number)

    def _save(self) -> None:
        rows, saved = self._unsaved, self._saved
        self._unsaved, self._saved = [], None
        self._file.execute("BEGIN IMMEDIATE")
        self._file.executemany(
            "INSERT INTO job (id, payload) VALUES (?, ?)", [(row[0], json.dumps(row).encode()) for row in rows]
        )
        self._file.execute("COMMIT")
        if saved is not None:
            saved.set_result(None)


if __name__ == "__main__":
    main(BareSqlite)
