"""The database that each landing has left behind: today's code reads in it what was put in, and works it off."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast, Timing
from holdfast.core.job import FOREVER, Ref
from holdfast.core.lifecycle import TERMINAL, State
from holdfast.core.retention import Keep, Retention
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.protocol import Order, Query, Settings, Target
from holdfast.storage.sqlite import SQLiteStorage
from holdfast.testing import ManualClock
from tests.storage.landings.make import (
    FAIR,
    GATHER,
    HERE,
    LANDINGS,
    MERGED,
    ONCE,
    PAUSED,
    READER,
    REST,
    SELDOM,
    TIMED,
    wish,
)
from tests.storage.worlds import owner

ALL = Query(limit=1000)
EVERYTHING = Retention(Keep(FOREVER), Keep(FOREVER), Keep(FOREVER), Keep(FOREVER))


@pytest.fixture(params=sorted(LANDINGS))
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Return a landing's name, and a copy of its database."""
    return request.param, Path(shutil.copy(HERE / f"{request.param}.db", tmp_path / "jobs.db"))


def test_each_landing_has_saved_its_database_whole_and_small() -> None:
    found = {file.name for file in HERE.iterdir() if file.is_file()}

    assert found == {"make.py", *(f"{landing}.db" for landing in LANDINGS)}
    assert all((HERE / f"{landing}.db").stat().st_size < 250_000 for landing in LANDINGS)


@pytest.mark.fault("W-T3")
async def test_every_record_reads_back_as_it_was_put_in(saved: tuple[str, Path]) -> None:
    landing, path = saved
    clock = ManualClock()
    memory = MemoryStorage(clock=clock)
    await LANDINGS[landing](memory, clock)
    storage = SQLiteStorage(path, clock=clock)
    jobs = (await memory.find(ALL)).jobs
    refs = [job.ref for job in jobs]

    assert {job.state for job in jobs} == set(State)
    assert {job.parked_under for job in jobs} >= {None, "k", "single", "paused:halted"}
    assert any(job.suspect_until for job in jobs)
    assert any(job.kept_until for job in jobs)
    assert any(job.redrive_at for job in jobs)
    assert (await storage.find(ALL)).jobs == jobs
    assert await storage.get(refs) == await memory.get(refs)
    taken_in = [Ref(MERGED, name) for name in ("debounced-2", "gathered-1", "gathered-4", "throttled-2")]
    assert await storage.get(taken_in) == await memory.get(taken_in)
    assert await storage.survey() == await memory.survey()
    assert await storage.events(limit=1000) == await memory.events(limit=1000)
    # Its last batch is still on loan to it; then it acknowledges that, and reads on.
    lent = await memory.events(limit=3, reader=READER)
    assert await storage.events(limit=3, reader=READER) == lent
    assert await storage.events(lent.next, reader=READER) == await memory.events(lent.next, reader=READER)
    calls = [wish(f"again-{key.key}", MERGED, merge=key) for key in (ONCE, TIMED, REST, GATHER)]
    calls.append(wish("again", MERGED, throttle=SELDOM))
    calls += [wish(f"again-{key}", FAIR, fair_key=key) for key in ("many", "few", "new")]
    assert await storage.enqueue(calls) == await memory.enqueue(calls)
    order = Order(tuple(sorted({job.queue for job in jobs})), 100)
    by = owner()
    assert await storage.exchange(by, (), order) == await memory.exchange(by, (), order)

    await storage.close()


async def test_its_jobs_are_worked_off(saved: tuple[str, Path]) -> None:
    _, path = saved
    storage = SQLiteStorage(path)
    app = Holdfast(storage=storage, timing=Timing(sweep="50ms", grace="50ms"))

    @app.task(name="add", version=3)
    async def add(a: int, b: int) -> int:
        return a + b

    for version in (1, 2):
        # Nothing about the payload has changed, but that some of it was told to be newer.
        add.migrate(from_version=version)(lambda arguments: arguments)

    @app.task(name="halted")
    async def halted(a: int, b: int) -> int:
        return a + b

    @app.task(name="paced")
    async def paced(a: int, b: int) -> int:
        return a + b

    @app.task(name="total")
    async def total(numbers: list[int]) -> int:
        return 3 if numbers in ([0, 1, 2], [3, 4]) else -1

    before = {job.ref: job for job in (await storage.find(ALL)).jobs}
    await app.queue(PAUSED).resume()
    await storage.tune(Target("task", "halted"), Settings(paused=False))
    for ref in before:
        # It is long since these ended.
        await storage.tune(Target("queue", ref.queue), Settings(retention=EVERYTHING))
    async with app.worker(queues=sorted({ref.queue for ref in before})):
        for ref, job in before.items():
            if job.state not in TERMINAL and job.cancel_at is None:
                assert await app.job(ref.id, add, queue=ref.queue).result(timeout=20) == 3
    after = {job.ref: job for job in (await storage.find(ALL)).jobs}
    findings = await storage.examine()
    await app.close()

    assert {job.state for job in after.values()} <= TERMINAL
    assert {ref for ref, job in after.items() if job.state is State.CANCELLED} == {
        ref for ref, job in before.items() if job.state is State.CANCELLED or job.cancel_at is not None
    }
    assert all(after[ref] == job for ref, job in before.items() if job.state in TERMINAL)
    assert not [finding for finding in findings if finding.level == "error"]


async def test_it_comes_to_the_schema_of_a_new_database(saved: tuple[str, Path], tmp_path: Path) -> None:
    _, path = saved
    new = tmp_path / "new.db"
    for one in (path, new):
        storage = SQLiteStorage(one)
        await storage.open()
        await storage.close()

    assert shape(path) == shape(new)


def shape(path: Path) -> dict[str, object]:
    """Return the columns of each table and the indexes of a database, in no order."""
    with closing(sqlite3.connect(path)) as connection:
        things = connection.execute("SELECT type, name, tbl_name FROM sqlite_schema").fetchall()
        columns: dict[str, object] = {
            name: {tuple(row[1:]) for row in connection.execute(f"PRAGMA table_xinfo('{name}')")}
            for kind, name, _ in things
            if kind == "table"
        }
        return columns | {"indexes": {name for kind, name, _ in things if kind == "index"}}
