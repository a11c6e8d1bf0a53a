"""Injection: a database for the worker's lifetime, a transaction for each run, and another database in tests.

Run it: python examples/injection.py
"""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

from tenure import Inject, JobContext, JobFailedError, Retry, Tenure, current_job


@asynccontextmanager
async def lifespan(app: Tenure) -> AsyncGenerator[Path]:
    """Create the objects that all runs of a worker share. The yielded mapping is `current_job().state`."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Path(folder) / "shop.db"
        with sqlite3.connect(shop) as db:
            db.execute("CREATE TABLE orders (item TEXT)")
        db.close()
        print("the worker starts")
        yield shop
        print("the worker has ended")


app = Tenure("memory://", lifespan=lifespan)


def get_shop(job: JobContext = Inject(current_job)) -> Path:
    shop: Path = job.state
    return shop


def get_db(shop: Path = Inject(get_shop)) -> Generator[sqlite3.Connection]:
    """A transaction for each run: committed if the handler returns, rolled back if it raises."""
    db = sqlite3.connect(shop)
    try:
        with db:
            yield db
    finally:
        db.close()


# A plain generator: the connection is opened, used and closed in the same thread.
@app.task(retry=Retry(max_attempts=1))
def order(item: str, db: sqlite3.Connection = Inject(get_db)) -> int:
    db.execute("INSERT INTO orders VALUES (?)", (item,))
    if item == "nothing":
        raise ValueError("that cannot be ordered")
    number: int = db.execute("SELECT count(*) FROM orders").fetchone()[0]
    return number


def fake_db() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE orders (item TEXT)")
    return db


async def main() -> None:
    async with app, app.worker():
        # The caller knows nothing of the database.
        assert await order.enqueue_and_wait("tea") == 1
        try:
            await order.enqueue_and_wait("nothing")
        except JobFailedError:
            print("an order failed and was rolled back")
        assert await order.enqueue_and_wait(item="cake") == 2
        print("two orders are in the shop's database")

        with app.override(get_db, fake_db):
            assert await order.enqueue_and_wait("for a test") == 1
            print("in a test, an order goes to the test's database")

    # In a direct call all arguments are passed explicitly.
    assert order("by hand", db=fake_db()) == 1


asyncio.run(main())
