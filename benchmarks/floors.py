"""The least time of a storage's own engine here, without any code of ours: bare INSERTs, bare calls of a script."""

import time
from pathlib import Path
from urllib.parse import urlsplit

from redis.asyncio import Redis

from tenure.storage.sqlite.database import Database
from tenure.storage.sqlite.locks import Locks


def inserts_a_second(file: Path, *, rows: int, batch: int) -> float:
    """Return how many rows a second go into a table of two columns, `batch` of them to a COMMIT.

    The connection is set up as ours is.
    """
    database = Database(str(file), Locks(f"{file}.lock"), durability="full", auto_migrate=True)
    connection = database.writer()
    try:
        connection.execute("CREATE TABLE floor (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
        began = time.perf_counter()
        for start in range(0, rows, batch):
            connection.execute("BEGIN IMMEDIATE")
            for number in range(start, min(start + batch, rows)):
                connection.execute("INSERT INTO floor (payload) VALUES (?)", (b'{"number":%d}' % number,))
            connection.execute("COMMIT")
        return rows / (time.perf_counter() - began)
    finally:
        connection.close()


async def calls_a_second(url: str, *, calls: int, batch: int) -> float:
    """Return how many calls of an empty script a server here answers in a second, this many in a round trip."""
    async with Redis(port=urlsplit(url).port or 6379) as client:
        sha = await client.script_load("return 1")
        began = time.perf_counter()
        for start in range(0, calls, batch):
            pipe = client.pipeline(transaction=False)
            for number in range(start, min(start + batch, calls)):
                pipe.evalsha(sha, 1, "{floor}", b'{"number":%d}' % number)
            await pipe.execute()
        return calls / (time.perf_counter() - began)
