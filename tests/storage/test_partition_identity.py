"""The identity of a partition shows a worker that the storage was emptied, replaced or set back."""

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import redis
from msgspec.structs import replace

from tenure.core.events import StorageLogDeleted, StorageReplaced, StorageRewound, WorkerStopping
from tenure.core.partition import IDENTITY_LOST, LOG_LOST, PartitionEvent, PartitionState, compare
from tenure.errors import SchemaMismatchError, StorageUnavailableError
from tenure.health.assessment import alarms_of
from tenure.storage.postgres import address as postgres
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import Query, RenewRequest, Storage, Survey, WorkerInfo, WorkerSurvey
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.storage.sqlite import SQLiteStorage
from tenure.testing.clock import ManualClock
from tenure.worker.partitions import PartitionWatch
from tests.servers import client_of, command
from tests.storage.helpers import job, owner

WORKER = WorkerInfo(queues=("q",))


async def look(storage: Storage, *seen: PartitionState) -> PartitionState:
    """Return what a worker's beat finds in the only partition."""
    [state] = (await storage.renew(RenewRequest(owner(), worker=WORKER, seen=seen))).partitions
    return state


async def record(storage: Storage, events: int) -> None:
    await storage.renew(
        RenewRequest(owner(), events=tuple(WorkerStopping(owner="o", reason="r") for _ in range(events)))
    )


@pytest.mark.redis
async def test_an_emptied_server_gets_another_identity_and_its_layout_again(redis_url: str) -> None:
    storage, client = RedisStorage(read(redis_url)), client_of(redis_url.partition("?")[0])
    seen = await look(storage)
    layout = command(client, "GET", f"{base(redis_url)}:schema")
    command(client, "DEL", *keys_of(client, redis_url))
    # A producer fills it again before the worker's next beat.
    await storage.enqueue([job("a")])
    now = await look(storage, seen)
    later = await look(storage, now)
    await storage.close()

    assert isinstance(compare(seen, now), StorageReplaced)
    assert now.identity != seen.identity
    assert not now.trouble
    assert compare(now, later) is None
    assert command(client, "GET", f"{base(redis_url)}:schema") == layout


@pytest.mark.redis
async def test_each_loss_of_a_server_is_noticed_also_the_second(redis_url: str) -> None:
    storage, client = RedisStorage(read(redis_url)), client_of(redis_url.partition("?")[0])
    states = [await look(storage)]
    for _ in range(2):
        command(client, "DEL", *keys_of(client, redis_url))
        states.append(await look(storage, states[-1]))
    await storage.close()

    assert len({state.identity for state in states}) == 3


@pytest.mark.redis
async def test_an_identity_that_alone_is_missing_is_written_again(redis_url: str) -> None:
    storage, client = RedisStorage(read(redis_url)), client_of(redis_url.partition("?")[0])
    await storage.enqueue([job("a")])
    seen = await look(storage)
    command(client, "DEL", f"{base(redis_url)}:identity")
    now = await look(storage, seen)
    later = await look(storage, now)
    await storage.close()

    assert (now.identity, now.created, now.trouble) == (seen.identity, seen.created, IDENTITY_LOST)
    assert compare(seen, now) is None
    assert not later.trouble


@pytest.mark.redis
async def test_a_worker_that_saw_no_identity_does_not_replace_a_missing_one(redis_url: str) -> None:
    storage, client = RedisStorage(read(redis_url)), client_of(redis_url.partition("?")[0])
    seen = await look(storage)
    command(client, "DEL", f"{base(redis_url)}:identity")
    new = await look(storage)
    found = await look(storage, seen)
    later = await look(storage, new)
    await storage.close()

    assert (new.identity, new.trouble) == ("", "")
    assert (compare(seen, found), compare(new, later)) == (None, None)
    assert later.identity == seen.identity


async def test_a_new_worker_leaves_a_files_missing_identity_to_those_that_saw_it(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    seen = await look(storage)
    forget_identity(tmp_path / "jobs.db")
    new = await look(storage)
    found = await look(storage, seen)
    later = await look(storage, new)
    await storage.close()

    assert (new.identity, new.trouble) == ("", "")
    assert (compare(seen, found), compare(new, later)) == (None, None)
    assert later.identity == seen.identity


@pytest.mark.redis
async def test_a_namespace_without_an_identity_gets_one_without_a_message(redis_url: str) -> None:
    storage, client = RedisStorage(read(redis_url)), client_of(redis_url.partition("?")[0])
    await record(storage, 2)
    command(client, "DEL", f"{base(redis_url)}:identity")
    first = await look(storage)
    second = await look(storage, first)
    third = await look(storage, second)
    await storage.close()

    assert second.identity
    assert second.identity == third.identity
    assert (first.trouble, second.trouble, third.trouble) == ("", "", "")
    assert (compare(first, second), compare(second, third)) == (None, None)


@pytest.mark.redis
async def test_a_shorter_log_without_an_identity_is_another_partition(redis_url: str) -> None:
    storage, client = RedisStorage(read(redis_url)), client_of(redis_url.partition("?")[0])
    await record(storage, 5)
    seen = await look(storage)
    command(client, "DEL", f"{base(redis_url)}:identity", f"{base(redis_url)}:events")
    await record(storage, 2)
    now = await look(storage, seen)
    await storage.close()

    assert isinstance(compare(seen, now), StorageReplaced)
    assert not now.trouble


async def test_a_file_without_an_identity_gets_one_without_a_message(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.open()
    forget_identity(tmp_path / "jobs.db")
    first = await look(storage)
    second = await look(storage, first)
    await storage.close()

    assert second.identity
    assert (first.trouble, second.trouble) == ("", "")
    assert compare(first, second) is None


@pytest.mark.redis
async def test_a_restored_older_log_is_detected_with_the_same_event_count(redis_url: str) -> None:
    storage, client = RedisStorage(read(redis_url)), client_of(redis_url.partition("?")[0])
    await record(storage, 3)
    backup = command(client, "DUMP", f"{base(redis_url)}:events")
    await record(storage, 2)
    seen = await look(storage)
    command(client, "RESTORE", f"{base(redis_url)}:events", 0, backup, "REPLACE")
    now = await look(storage, seen)
    await record(storage, 5)
    regrown = await look(storage, seen)
    await storage.close()

    assert compare(seen, now) == StorageRewound(partition="*", by=2)
    assert compare(seen, regrown) == StorageRewound(partition="*", by=0)


async def test_a_deleted_file_is_another_database(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.enqueue([job("a")])
    seen = await look(storage)
    path.unlink()
    now = await look(storage, seen)
    await storage.close()

    assert isinstance(compare(seen, now), StorageReplaced)


async def test_an_identity_that_alone_is_missing_in_a_file_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    seen = await look(storage)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM tenure_meta WHERE key IN ('identity', 'created')")
    now = await look(storage, seen)
    later = await look(storage, now)
    await storage.close()

    assert (now.identity, now.created, now.trouble) == (seen.identity, seen.created, IDENTITY_LOST)
    assert compare(seen, now) is None
    assert not later.trouble


@pytest.mark.postgres
async def test_a_promoted_standby_that_skips_numbers_is_rewound(postgres_url: str) -> None:
    storage = PostgresStorage(postgres.read(postgres_url))
    await record(storage, 3)
    seen = await look(storage)
    # A standby that lacks the last two commits: PostgreSQL reserves 32 numbers of a sequence at once.
    with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as connection:
        table = f"{postgres.read(postgres_url).schema}.event"
        connection.execute(f"DELETE FROM {table} WHERE id > {seen.last_event - 2}".encode())
        connection.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {seen.last_event + 30})".encode())
    await record(storage, 1)
    now = await look(storage, seen)
    later = await look(storage, now)
    await storage.close()

    assert now.last_event > seen.last_event
    assert isinstance(compare(seen, now), StorageRewound)
    assert compare(now, later) is None


async def test_an_older_copy_in_the_place_of_the_file_is_rewound(tmp_path: Path) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "copy.db"
    storage = SQLiteStorage(path)
    await record(storage, 3)
    with sqlite3.connect(path) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    await record(storage, 2)
    seen = await look(storage)
    for name in ("jobs.db-wal", "jobs.db-shm"):
        (tmp_path / name).unlink()
    copy.replace(path)
    now = await look(storage, seen)
    await storage.close()

    assert compare(seen, now) == StorageRewound(partition="*", by=2)


async def test_a_deleted_write_ahead_log_is_reported_once_by_the_next_beat(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    before = await look(storage)
    (tmp_path / "jobs.db-wal").unlink()
    found = await look(storage, before)
    later = await look(storage, found)
    await storage.close()

    assert (before.trouble, found.trouble, later.trouble) == ("", LOG_LOST, "")


@pytest.mark.parametrize("idle", [False, True], ids=["seen", "unseen"])
async def test_commits_of_a_deleted_log_outlive_the_process(tmp_path: Path, idle: bool) -> None:
    path, crashed = tmp_path / "jobs.db", tmp_path / "crashed.db"
    storage, other = SQLiteStorage(path), SQLiteStorage(path)
    await storage.enqueue([job("before")])
    await other.enqueue([job("theirs")])
    await other.survey()
    (tmp_path / "jobs.db-wal").unlink()
    await storage.enqueue([job("after")])
    if not idle:
        # It has the deleted log open, and must not write there.
        await other.enqueue([job("theirs-after")])
    await storage.enqueue([job("later")])
    # A crash leaves only what is in the directory.
    shutil.copy(path, crashed)
    with contextlib.suppress(FileNotFoundError):
        shutil.copy(f"{path}-wal", f"{crashed}-wal")
    copy = SQLiteStorage(crashed)
    expected = {"before", "theirs", "after", "later"} | ({"theirs-after"} if not idle else set[str]())
    found = [{item.ref.id for item in (await of.find(Query(limit=9))).jobs} for of in (copy, storage, other)]
    for each in (copy, other, storage):
        await each.close()

    assert found == [expected] * 3


@pytest.mark.slow
async def test_writes_are_refused_while_a_deleted_log_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.enqueue([job("before")])
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM tenure_job").fetchall()
    await storage.enqueue([job("more")])
    # A reader keeps an earlier snapshot, so the log cannot be emptied. The storage waits 5 s for it.
    (tmp_path / "jobs.db-wal").unlink()
    with pytest.raises(StorageUnavailableError, match="-wal was deleted"):
        await storage.enqueue([job("refused")])
    reader.close()
    await storage.enqueue([job("again")])
    found = {item.ref.id for item in (await storage.find(Query(limit=9))).jobs}
    await storage.close()

    assert found == {"before", "more", "again"}


def test_a_deleted_log_is_an_alarm_with_an_event(caplog: pytest.LogCaptureFixture) -> None:
    events: list[PartitionEvent] = []
    watch = watch_of(events)
    state = PartitionState("*", "0123", 1)
    watch.compare((replace(state, trouble=LOG_LOST),), (), 0.0)
    watch.compare((state,), (), 0.0)

    assert events == [StorageLogDeleted(partition="*")]
    assert LOG_LOST in watch.alarm
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_rewind_sets_the_readers_of_that_partition_back() -> None:
    events: list[PartitionEvent] = []
    places: list[tuple[int, int, float]] = []
    clock = ManualClock()
    watch = watch_of(events, clock=clock, rewound=lambda place, last, ago: places.append((place, last, ago)))
    state = PartitionState("partition 1", "0123", 1, last_event=20, place=1)
    asked_at = clock.uptime()
    watch.compare((state,), (), asked_at)
    clock.advance(5)
    watch.compare((replace(state, last_event=15),), (), asked_at + 4)

    assert events == [StorageRewound(partition="partition 1", by=5)]
    assert places == [(1, 15, 5.0)]


async def test_a_deleted_file_that_no_process_creates_again_is_an_alarm(tmp_path: Path) -> None:
    path, events, places = tmp_path / "jobs.db", list[PartitionEvent](), list[int]()
    maker, storage = SQLiteStorage(path), SQLiteStorage(path, auto_migrate=False)
    await maker.open()
    await maker.close()
    watch = watch_of(events, replaced=places.append)
    seen = await look(storage)
    watch.compare((seen,), (), 0.0)
    for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
        (tmp_path / name).unlink()
    for _ in range(2):
        with pytest.raises(SchemaMismatchError) as raised:
            await look(storage, seen)
        watch.mismatched(raised.value)

    assert events == [StorageReplaced(partition="*", old=seen.identity, new="")]
    assert "tenure migrate" in watch.alarm

    made_again = SQLiteStorage(path)
    watch.compare((await look(made_again, seen),), (), 0.0)
    await storage.close()
    await made_again.close()

    assert len(events) == 1
    assert places == [0]


def test_each_partition_keeps_its_own_alarm_for_an_hour() -> None:
    clock = ManualClock()
    watch = watch_of([], clock=clock)
    states = [PartitionState(f"partition {place}", f"{place}123", 1, place=place) for place in range(3)]
    watch.compare(tuple(states), (), 0.0)
    watch.compare(tuple(replace(state, identity="4567") for state in states[:2]), (), 0.0)
    kept = watch.alarm
    clock.advance(3600)

    assert "partition 0 of" in kept
    assert "partition 1 of" in kept
    survey = Survey(workers=tuple(WorkerSurvey(owner=owner(), alarm=of) for of in (kept, kept.splitlines()[0])))
    assert alarms_of(survey) == tuple(kept.splitlines())
    assert watch.alarm == ""


def forget_identity(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM tenure_meta WHERE key IN ('identity', 'created')")


def watch_of(
    events: list[PartitionEvent],
    *,
    clock: ManualClock | None = None,
    replaced: Callable[[int], None] = lambda place: None,
    rewound: Callable[[int, int, float], None] = lambda place, last, ago: None,
) -> PartitionWatch:
    """Return a worker's watch that appends its events to a list."""
    return PartitionWatch(
        worker="w",
        clock=clock or ManualClock(),
        logger=logging.getLogger("tenure"),
        read=lambda: "",
        announce=events.append,
        forget_read=lambda: None,
        replaced=replaced,
        rewound=rewound,
    )


def keys_of(client: redis.Redis, url: str) -> list[bytes]:
    keys: list[bytes] = command(client, "KEYS", f"{base(url)}:*")
    return keys


def base(url: str) -> str:
    [only] = read(url).bases
    return only
