"""The floor on PostgreSQL: one table and asyncpg, every commit written through as the server is set."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import asyncpg

from benchmarks.peers.adapter import AsyncPeer, Cannot, Row, main
from benchmarks.peers.order import About

TABLE = """
CREATE TABLE IF NOT EXISTS job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload bytea NOT NULL, owner text);
CREATE INDEX IF NOT EXISTS waiting ON job (id) WHERE owner IS NULL;
"""
STORE = "INSERT INTO job (payload) SELECT unnest($1::bytea[])"
EXCHANGE = """
WITH settled AS (
    DELETE FROM job WHERE id = ANY ($1::bigint[])
), claimed AS (
    SELECT id FROM job WHERE owner IS NULL ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE job SET owner = 'bare' FROM claimed WHERE job.id = claimed.id RETURNING job.id, job.payload
"""


class BarePostgres(AsyncPeer):
    """Bare statements; what many callers enqueue within a tick of the loop is one statement."""

    about = About(
        title="floor: bare PostgreSQL",
        role="floor",
        settings={
            "enqueue": "an INSERT each, which commits; of 50 callers at once one INSERT for all",
            "process": "one statement deletes what has run and claims half as many as run at once, "
            "two connections in turns; handlers awaited, no tasks",
        },
        rate=20_000,
        bulk=True,
        results=False,
        packages=("asyncpg", "uvloop"),
    )

    async def open(self) -> None:
        """Connect, and create the table if it does not exist."""
        if self.order.results or self.order.task == "hold" or self.order.do == "pace":
            raise Cannot("a floor is there for the bare enqueueing and processing only")
        self._connection = await asyncpg.connect(self.order.url)
        await self._connection.execute(TABLE)
        self._unsaved: list[bytes] = []
        self._saved: asyncio.Task[None] | None = None

    async def enqueue(self, task: str, *row: Any) -> object:
        """Store a job, with those that other callers store meanwhile."""
        self._unsaved.append(json.dumps(row).encode())
        # One INSERT runs at a time. Jobs that arrive during it are stored by the next one.
        while (saving := self._saved) is not None and not saving.done():
            await asyncio.shield(saving)
        if self._unsaved:
            rows, self._unsaved = self._unsaved, []
            self._saved = asyncio.create_task(self._store(rows))
            await self._saved
        return row

    async def enqueue_many(self, task: str, rows: Sequence[Row]) -> Sequence[object]:
        """Store jobs."""
        await self._store([json.dumps(row).encode() for row in rows])
        return rows

    async def work(self) -> None:
        """Exchange and run for ever, on two connections, so that one's jobs run while the other waits."""
        connections = (self._connection, await asyncpg.connect(self.order.url))
        await asyncio.gather(*(self._lane(one, self.order.concurrency // len(connections)) for one in connections))

    async def _lane(self, connection: Any, room: int) -> None:
        done: list[int] = []
        while True:
            claimed = await connection.fetch(EXCHANGE, done, room)
            for job in claimed:
                await self._noop(*json.loads(job["payload"]))
            done = [job["id"] for job in claimed]
            if not claimed:
                await asyncio.sleep(0.01)

    async def _noop(self, number: int) -> None:
        self.tally.started(number)

    async def _store(self, payloads: list[bytes]) -> None:
        await self._connection.execute(STORE, payloads)


if __name__ == "__main__":
    main(BarePostgres)
