"""The tables of the days in which jobs ended: created ahead, used, and dropped once retention has emptied them."""

import psycopg
import pytest

from tenure.clock import SystemClock
from tenure.core.job import Ref
from tenure.core.retention import KeepRule, RetentionRules
from tenure.storage.postgres.address import read
from tenure.storage.postgres.connection import Session
from tenure.storage.postgres.days import AHEAD, DAY, Days
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import Query, RedriveJob, Settings, Target
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import ALICE, ONCE, QUEUE, RAISED, bid, new_job, settle, start, sweep_all

pytestmark = pytest.mark.postgres


def tables(url: str) -> dict[str, int]:
    """Return the tables of ended jobs with the number of their jobs."""
    server, _, schema = url.partition("?schema=")
    with psycopg.connect(server) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        names = connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'job'::regclass"
        ).fetchall()
        return {
            name.removeprefix("job_ended_"): connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchall()[0][
                0
            ]
            for (name,) in names
            if name != "job_live"
        }


def keeping(url: str, now: int) -> None:
    """Maintain the tables as the leader of a storage with the server's clock does."""
    address = read(url)
    session = Session(address, address.server, check=lambda connection: None)
    Days(address, session, SystemClock()).keep(now)
    session.close()


async def test_the_leader_creates_tables_ahead(postgres_url: str) -> None:
    storage = PostgresStorage(read(postgres_url))
    await storage.sweep(bid())
    now = (await storage.survey()).now
    await storage.sweep(bid())
    await storage.close()

    assert tables(postgres_url) == {"other": 0} | {str(now // DAY + ahead): 0 for ahead in range(AHEAD + 1)}


async def test_a_job_goes_to_the_table_of_its_day_and_comes_back(postgres_url: str) -> None:
    clock = ManualClock()
    storage = PostgresStorage(read(postgres_url), clock=clock)
    await storage.open()
    keeping(postgres_url, clock.now())
    day = clock.now() // DAY
    await settle(storage, ALICE, await start(storage, new_job("one", policy=ONCE)), RAISED)
    clock.advance(86_400)
    lease = await start(storage, new_job("two"))
    await settle(storage, ALICE, lease)
    clock.advance(10 * 86_400)
    await settle(storage, ALICE, await start(storage, new_job("three")))
    spread = tables(postgres_url)
    listed = [job.id for job in (await storage.find(Query())).jobs]
    duplicates = await storage.enqueue([new_job("one"), new_job("two"), new_job("three")])
    (redriven,) = await storage.revise([RedriveJob(Ref(QUEUE, "one"))])
    after = tables(postgres_url)
    await storage.close()

    assert spread == {str(day): 1, str(day + 1): 1, str(day + 2): 0, "other": 1}
    assert listed == ["three", "two", "one"]
    assert [one.action for one in duplicates] == ["duplicate"] * 3
    assert redriven.verdict == "done"
    assert after == {str(day): 0, str(day + 1): 1, str(day + 2): 0, "other": 1}


async def test_an_empty_table_is_dropped_after_its_day(postgres_url: str) -> None:
    clock = ManualClock()
    storage = PostgresStorage(read(postgres_url), clock=clock)
    await storage.open()
    keeping(postgres_url, clock.now())
    day = clock.now() // DAY
    await storage.tune(Target("queue", QUEUE), Settings(retention=RetentionRules(completed=KeepRule(3_600_000_000))))
    await settle(storage, ALICE, await start(storage, new_job("one")))
    clock.advance(3 * 86_400)
    keeping(postgres_url, clock.now())
    kept = tables(postgres_url)
    await sweep_all(storage)
    keeping(postgres_url, clock.now())
    dropped = tables(postgres_url)
    await storage.close()

    ahead = {str(day + number): 0 for number in range(3, 4 + AHEAD)}
    assert kept == {"other": 0, str(day): 1, str(day + 2): 0, **ahead}
    assert dropped == {"other": 0, str(day + 2): 0, **ahead}


async def test_a_blocking_reader_delays_the_tables_only(postgres_url: str) -> None:
    storage = PostgresStorage(read(postgres_url))
    await storage.open()
    server, _, schema = postgres_url.partition("?schema=")
    now = (await storage.survey()).now
    with psycopg.connect(server) as reader:
        reader.execute(f"SELECT count(*) FROM {schema}.job".encode())
        keeping(postgres_url, now)
        held = tables(postgres_url)
        await settle(storage, ALICE, await start(storage, new_job("one")))
    keeping(postgres_url, now)
    await storage.close()

    assert held == {"other": 0}
    assert tables(postgres_url)["other"] == 1
