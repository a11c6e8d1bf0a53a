"""`durability=replicated` on a server with WAITAOF: an acknowledged write is on two disks."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable

import pytest

from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure.errors import NotDurableError
from tenure.storage.redis import connections
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure_testing.conformance.helpers import (
    ALICE,
    claim,
    new_job,
    record,
    settle,
    settled,
    start,
    states,
)
from tests.servers import RedisServer, until

pytestmark = pytest.mark.valkey

StartRedis = Callable[..., RedisServer]

SAFE = {"appendonly": True, "appendfsync": "always"}
"""Every write is on disk before it is answered."""

LAZY = {"appendonly": True, "appendfsync": "no"}
"""Writes reach the disk when the kernel decides; the server never confirms them."""


@pytest.fixture
async def replicated() -> AsyncIterator[Callable[[RedisServer], RedisStorage]]:
    """Return a function that opens storages whose writes a replica has to confirm."""
    opened: list[RedisStorage] = []

    def open_(server: RedisServer) -> RedisStorage:
        opened.append(RedisStorage(read(f"{server.url}?durability=replicated")))
        return opened[-1]

    yield open_
    for storage in opened:
        await storage.close()


Replicated = Callable[[RedisServer], RedisStorage]


def follow(replica: RedisServer, server: RedisServer) -> None:
    """Make a server follow another, and return when both know."""
    replica.command("REPLICAOF", "127.0.0.1", server.port)
    until(lambda: replica.command("ROLE")[3] == b"connected", "the replica to have all")
    until(lambda: server.command("ROLE")[2], "the server to know of its replica")


@pytest.mark.parametrize("late", ["the server", "the replica"])
async def test_an_enqueue_is_acknowledged_once_it_is_on_both_disks(
    start_redis: StartRedis, replicated: Replicated, late: str
) -> None:
    server = start_redis(**LAZY if late == "the server" else SAFE)
    replica = start_redis(**LAZY if late == "the replica" else SAFE)
    follow(replica, server)
    storage = replicated(server)
    await storage.open()
    loop = asyncio.get_running_loop()

    acknowledged: list[float] = []
    enqueue = asyncio.ensure_future(storage.enqueue([new_job("job")]))
    enqueue.add_done_callback(lambda _: acknowledged.append(loop.time()))
    await asyncio.to_thread(until, lambda: replica.command("KEYS", "*job*default*job"), "the job there")
    written_at = loop.time()
    (server if late == "the server" else replica).command("CONFIG", "SET", "appendfsync", "always")
    [receipt] = await enqueue

    assert receipt.action == "created"
    assert acknowledged[0] > written_at


async def test_servers_with_appendfsync_everysec_confirm_each_write_in_time(
    start_redis: StartRedis, replicated: Replicated
) -> None:
    server, replica = start_redis(appendonly=True), start_redis(appendonly=True)
    follow(replica, server)
    storage = replicated(server)

    for number in range(3):
        [receipt] = await storage.enqueue([new_job(f"job-{number}")])
        assert receipt.action == "created"


async def test_acknowledged_writes_survive_a_kill_of_both_servers(
    start_redis: StartRedis, replicated: Replicated
) -> None:
    server, replica = start_redis(**SAFE), start_redis(**SAFE)
    follow(replica, server)
    storage = replicated(server)
    expected: dict[str, State] = {}
    for number in range(20):
        await storage.enqueue([new_job(f"job-{number}")])
        expected[f"job-{number}"] = State.WAITING
    for lease in await claim(storage, room=5):
        assert await settle(storage, ALICE, lease) == "done"
        expected[lease.ref.id] = State.COMPLETED
    await storage.enqueue([new_job("last")])
    for item in (server, replica):
        os.kill(item.pid, signal.SIGKILL)
    for item in (server, replica):
        item.restart(kill=True)

    # The replica gets no REPLICAOF: an operator would promote it.
    for survivor in (server, replica):
        assert await states(RedisStorage(read(survivor.url))) == expected | {"last": State.WAITING}


@pytest.mark.parametrize(
    ("replica", "lacking", "remedy"),
    [
        (None, "no replica has confirmed within 0.3 s that it is on its disk", "See that one is connected"),
        ({}, "no replica has confirmed within 0.3 s that it is on its disk", "appendonly yes there, too"),
        (LAZY, "no replica has confirmed within 0.3 s that it is on its disk", "appendonly yes there, too"),
    ],
    ids=["no replica", "one without a file", "one that never writes it to disk"],
)
async def test_an_unconfirmed_write_raises_an_error_that_names_the_cause(
    start_redis: StartRedis,
    replicated: Replicated,
    monkeypatch: pytest.MonkeyPatch,
    replica: dict[str, object] | None,
    lacking: str,
    remedy: str,
) -> None:
    monkeypatch.setattr(connections, "WRITING", 0.3)
    server = start_redis(**SAFE)
    if replica is not None:
        follow(start_redis(**replica), server)
    storage = replicated(server)

    with pytest.raises(NotDurableError, match=lacking) as caught:
        await storage.enqueue([new_job("job")])
    findings = [
        finding for finding in await storage.examine() if finding.subject == "replication" and finding.level == "error"
    ]

    assert remedy in str(caught.value)
    assert (await record(storage, Ref("default", "job"))).state is State.WAITING  # as it says: the write took place
    assert len(findings) == 1, findings
    assert ("has no replica" if replica is None else lacking) in findings[0].message


async def test_a_repeated_write_that_no_replica_has_is_not_confirmed(
    start_redis: StartRedis, replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, replica = start_redis(**SAFE), start_redis(**SAFE)
    follow(replica, server)
    first, second = replicated(server), replicated(server)
    await second.open()
    lease = await start(first, new_job("over"))
    monkeypatch.setattr(connections, "WRITING", 0.3)
    replica.freeze()
    # The second comes by a connection that has written nothing, as after a cut.
    for storage in (first, second):
        with pytest.raises(NotDurableError):
            await storage.enqueue([new_job("new")])
        with pytest.raises(NotDurableError):
            await storage.exchange(ALICE, [settled(lease)])
    replica.thaw()
    monkeypatch.undo()
    [receipt] = await second.enqueue([new_job("new")])

    assert receipt.action == "duplicate"
    assert await settle(second, ALICE, lease) == "duplicate"


async def test_a_server_that_cannot_write_to_its_own_disk_in_time_says_so(
    start_redis: StartRedis, replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITING", 0.3)
    server = start_redis(**LAZY)
    follow(start_redis(**SAFE), server)

    with pytest.raises(NotDurableError, match="did not get it onto its own disk"):
        await replicated(server).enqueue([new_job("job")])


async def test_a_server_without_a_file_is_confirmed_by_the_memory_of_replicas(
    start_redis: StartRedis, replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITING", 0.3)
    server = start_redis()
    follow(start_redis(), server)
    storage = replicated(server)

    [receipt] = await storage.enqueue([new_job("in-memory")])
    server.command("CONFIG", "SET", "appendonly", "yes")
    [still] = await storage.enqueue([new_job("in-memory-too")])
    assert (receipt.action, still.action) == ("created", "created")

    monkeypatch.setattr(connections, "AGAIN", 0.0)
    other = replicated(server)
    with pytest.raises(NotDurableError, match="on its disk"):
        await other.enqueue([new_job("on-disk")])


async def test_the_doctor_reports_that_a_replica_confirms(start_redis: StartRedis, replicated: Replicated) -> None:
    server, replica = start_redis(**SAFE), start_redis(**SAFE)
    follow(replica, server)

    findings = await replicated(server).examine()

    assert {finding.level for finding in findings} == {"ok"}, findings
    assert f"a replica of {server.address} confirms writes" in {finding.message for finding in findings}


async def test_the_doctor_checks_replication_without_a_write_before(
    start_redis: StartRedis, replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITING", 0.3)
    server = start_redis(**SAFE)
    follow(start_redis(**LAZY), server)

    findings = [finding for finding in await replicated(server).examine() if finding.subject == "replication"]

    assert "no replica has confirmed" in next(item.message for item in findings if item.level == "error")
