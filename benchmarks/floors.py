"""The least that SQLite itself takes here: bare INSERTs, so many to a COMMIT, on a connection set up as ours is."""

import time
from pathlib import Path

from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.locks import Locks


def inserts_a_second(file: Path, *, rows: int, batch: int) -> float:
    """Return how many rows a second go into a table of two columns, `batch` of them to a COMMIT."""
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
