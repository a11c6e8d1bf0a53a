"""Partitions in new places: slots that move, masters that fail, scripts that a node does not know."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from tenure.core.exponential_delay import ExponentialDelay
from tenure.errors import StorageUnavailableError
from tenure.storage.redis import connections as module
from tenure.storage.redis import routes
from tenure.storage.redis import subscriptions as subscriptions_module
from tenure.storage.redis.connections import Connections, ScriptCall
from tenure.storage.redis.routes import slot
from tenure.storage.redis.subscriptions import Subscriptions, channel
from tests import servers
from tests.clusters import SLOTS, RedisCluster
from tests.sentinels import RedisSentinels
from tests.servers import RedisServer
from tests.storage.test_redis_connections import ADD, ECHO, READ
from tests.storage.test_redis_subscriptions import asleep, woken

Connect = Callable[[str], Connections]

FIRST = "{tenure:0}"


async def off_the_loop(work: Callable[[], object]) -> None:
    await asyncio.to_thread(work)


async def test_the_partitions_of_a_cluster_are_called_all_at_once(
    connect: Connect, redis_cluster: RedisCluster
) -> None:
    connections = connect(redis_cluster.url)
    bases = connections.address.bases

    assert await connections.call_all([ScriptCall(ADD, base, (n,)) for n, base in enumerate(bases)]) == list(range(16))
    assert await connections.call_all([ScriptCall(READ, base) for base in bases]) == [b"%d" % n for n in range(16)]

    holders = [redis_cluster.holder(slot(base)) for base in bases]
    assert len({holder.port for holder in holders}) == 3
    for base, holder in zip(bases, holders, strict=True):
        assert holder.command("EXISTS", f"{base}:n") == 1


async def test_a_node_that_lost_its_scripts_gets_them_again(connect: Connect, redis_cluster: RedisCluster) -> None:
    connections = connect(redis_cluster.url)
    bases = connections.address.bases
    await connections.call_all([ScriptCall(ADD, base, (1,)) for base in bases])
    redis_cluster.masters[1].command("SCRIPT", "FLUSH")

    assert await connections.call_all([ScriptCall(ADD, base, (1,)) for base in bases]) == [2] * 16


async def test_moved_partitions_are_found_and_no_call_is_lost_or_repeated(
    connect: Connect, redis_cluster: RedisCluster
) -> None:
    connections = connect(redis_cluster.url)
    bases = connections.address.bases
    done = asyncio.Event()
    made = dict.fromkeys(bases, 0)

    async def work(base: str) -> None:
        while not done.is_set():
            await connections.call(ADD, base, 1)
            made[base] += 1

    async with asyncio.TaskGroup() as group:
        for base in bases:
            group.create_task(work(base))
        to = redis_cluster.masters[2]
        await off_the_loop(lambda: redis_cluster.move([slot(base) for base in bases], to))
        done.set()

    assert {redis_cluster.holder(slot(base)) for base in bases} == {to}
    assert await connections.call_all([ScriptCall(READ, base) for base in bases]) == [
        b"%d" % made[base] for base in bases
    ]


async def test_a_partition_that_is_moving_is_called_only_after_it_has_arrived(
    connect: Connect, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", ExponentialDelay(0.01, 0.02))
    connections = connect(redis_cluster.url)
    await connections.call(ADD, FIRST, 1)
    source = redis_cluster.holder(slot(FIRST))
    to = next(node for node in redis_cluster.masters if node is not source)
    names = {node.port: node.command("CLUSTER", "MYID").decode() for node in (source, to)}
    to.command("CLUSTER", "SETSLOT", slot(FIRST), "IMPORTING", names[source.port])
    source.command("CLUSTER", "SETSLOT", slot(FIRST), "MIGRATING", names[to.port])

    # Its one key is still at the source, and a script would find it there; of several keys some would be missing.
    with pytest.raises(StorageUnavailableError, match="moves data"):
        await connections.call(ADD, FIRST, 1)

    await off_the_loop(lambda: redis_cluster.move([slot(FIRST)], to))

    assert await connections.call(ADD, FIRST, 1) == 2


async def test_a_replica_that_is_promoted_is_found(
    connect: Connect, start_cluster: Callable[..., RedisCluster]
) -> None:
    cluster = start_cluster(replicas=1)
    connections = connect(cluster.url)
    bases = connections.address.bases
    await connections.call_all([ScriptCall(ADD, base, (1,)) for base in bases], durable=True)

    await off_the_loop(lambda: cluster.fail_over(cluster.masters[0]))

    assert await connections.call_all([ScriptCall(ADD, base, (1,)) for base in bases], durable=True) == [2] * 16

    await off_the_loop(lambda: cluster.lose(cluster.masters[1]))

    # The first call raises an error; a repeated call finds the new master.
    async with asyncio.timeout(20):
        while True:
            try:
                assert await connections.call_all([ScriptCall(READ, base) for base in bases]) == [b"2"] * 16
                break
            except StorageUnavailableError:
                continue


async def test_a_node_that_was_cut_off_from_its_cluster_is_not_believed_for_ever(
    connect: Connect, redis_cluster: RedisCluster
) -> None:
    connections = connect(redis_cluster.url)
    bases = connections.address.bases
    await connections.call_all([ScriptCall(ECHO, base) for base in bases])
    lost, heir, third = redis_cluster.masters
    names = {node.port: node.command("CLUSTER", "MYID") for node in (lost, heir, third)}
    for node, other in ((lost, heir), (lost, third), (heir, lost), (third, lost)):
        node.command("CLUSTER", "FORGET", names[other.port])
    heir.command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS // 3 - 1)

    def parted() -> bool:
        stats = [node.command("CLUSTER", "INFO") for node in (lost, heir, third)]
        return [b"cluster_state:ok" in info for info in stats] == [False, True, True]

    await off_the_loop(lambda: servers.until(parted, "the nodes to part"))

    assert len(await connections.call_all([ScriptCall(ECHO, base) for base in bases])) == len(bases)


async def test_a_silent_node_is_not_asked_for_the_slot_map_each_time(
    connect: Connect, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERING", 0.5)
    monkeypatch.setattr(routes, "ASKING_AROUND", 3.0)
    for node in redis_cluster.nodes:
        node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
    connections = connect(redis_cluster.url)
    frozen = redis_cluster.masters[0]
    here, there = (
        next(base for base in connections.address.bases if (redis_cluster.holder(slot(base)) is frozen) is away)
        for away in (False, True)
    )
    await connections.call_all([ScriptCall(ECHO, here), ScriptCall(ECHO, there)])
    loop = asyncio.get_running_loop()
    took: list[float] = []
    frozen.freeze()
    try:
        for _ in range(2):
            with pytest.raises(StorageUnavailableError):
                await connections.call(ECHO, there)
            began = loop.time()
            await connections.call(ECHO, here)
            took.append(loop.time() - began)
    finally:
        frozen.thaw()

    assert max(took) < 2


async def test_notifications_arrive_from_all_partitions_after_a_move(
    connect: Connect, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions_module, "RETRY_DELAY", ExponentialDelay(0.01, 0.1))
    connections = connect(redis_cluster.url)
    bases = connections.address.bases
    subscriptions = Subscriptions(connections, lambda topic: bases, rng=Random(3))
    listener = subscriptions.listen(["events"])
    try:
        await all_heard(redis_cluster, bases)
        while not await asleep(listener):
            pass
        for base in bases:
            publish(redis_cluster.holder(slot(base)), base)
            await woken(listener)

        to = redis_cluster.masters[0]
        await off_the_loop(lambda: redis_cluster.move([slot(base) for base in bases], to))

        await woken(listener)
        await all_heard(redis_cluster, bases)
        while not await asleep(listener):
            pass
        for base in bases:
            publish(to, base)
            await woken(listener)
    finally:
        await subscriptions.close()


async def test_calls_go_to_the_master_that_sentinels_name_after_a_failover(
    connect: Connect, redis_sentinels: RedisSentinels
) -> None:
    # Otherwise a failover may lose what the old master alone has.
    url = redis_sentinels.url
    connections = connect(f"{url}{'&' if '?' in url else '?'}durability=replicated")
    [base] = connections.address.bases
    assert await connections.call(ADD, base, 1, durable=True) == 1
    await replicated(redis_sentinels, f"{base}:n", b"1")
    before = redis_sentinels.master

    await off_the_loop(redis_sentinels.fail_over)

    assert redis_sentinels.master is not before
    assert await connections.call(ADD, base, 1, durable=True) == 2
    await replicated(redis_sentinels, f"{base}:n", b"2")

    await off_the_loop(redis_sentinels.lose)

    assert await connections.call(ADD, base, 1) == 3
    assert redis_sentinels.master.command("GET", f"{base}:n") == b"3"


async def test_unreachable_sentinels_matter_only_when_none_is_left(
    connect: Connect, redis_sentinels: RedisSentinels
) -> None:
    [first, second, third] = redis_sentinels.sentinels
    first.kill()
    connections = connect(redis_sentinels.url)
    [base] = connections.address.bases
    assert await connections.call(ECHO, base)

    second.kill()
    third.kill()

    # The known master is still used.
    assert await connections.call(ECHO, base)

    late = connect(redis_sentinels.url)
    with pytest.raises(StorageUnavailableError, match="no Sentinel names a master"):
        await late.call(ECHO, base)


async def test_a_master_is_kept_if_no_sentinel_can_be_asked(connect: Connect, redis_sentinels: RedisSentinels) -> None:
    connections = connect(redis_sentinels.url)
    [base] = connections.address.bases
    master = redis_sentinels.master
    assert await connections.call(ADD, base, 1) == 1
    for sentinel in redis_sentinels.sentinels:
        sentinel.kill()

    # As a leader does each minute.
    assert [place.port for place in await connections.places()] == [master.port]
    assert await connections.call(ADD, base, 1) == 2

    master.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    assert await connections.call(ADD, base, 1) == 3


async def test_a_former_master_without_replicas_is_replaced_by_the_new_master(
    connect: Connect, redis_sentinels: RedisSentinels
) -> None:
    connections = connect(redis_sentinels.url)
    [base] = connections.address.bases
    for server in redis_sentinels.servers:
        server.command("CONFIG", "SET", "min-replicas-to-write", 1)
    assert await connections.call(ADD, base, 1, durable=True) == 1
    deposed = redis_sentinels.master
    deposed.freeze()
    await off_the_loop(lambda: servers.until(lambda: redis_sentinels.master is not deposed, "another master"))
    for sentinel in redis_sentinels.sentinels:
        # Four of these pass before Sentinel tells a returning server which master to follow.
        sentinel.command("SENTINEL", "DEBUG", "PUBLISH-PERIOD", 60_000)
    deposed.thaw()
    await off_the_loop(
        lambda: servers.until(
            lambda: deposed.command("INFO", "replication")["min_slaves_good_slaves"] == 0, "it to miss its replicas"
        )
    )

    assert await connections.call(ADD, base, 1) == 2
    assert deposed.command("GET", f"{base}:n") == b"1"


async def test_a_service_unknown_to_sentinels_is_reported_by_name(
    connect: Connect, redis_sentinels: RedisSentinels
) -> None:
    connections = connect(redis_sentinels.url.replace("/jobs/", "/other/"))

    with pytest.raises(StorageUnavailableError, match="no Sentinel there knows a master 'other'"):
        await connections.call(ECHO, "{tenure}")


async def test_notifications_arrive_from_the_new_master(
    connect: Connect, redis_sentinels: RedisSentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions_module, "RETRY_DELAY", ExponentialDelay(0.01, 0.1))
    connections = connect(redis_sentinels.url)
    [base] = connections.address.bases
    subscriptions = Subscriptions(connections, lambda topic: [base], rng=Random(3))
    listener = subscriptions.listen(["events"])
    try:
        await heard(redis_sentinels.master, base)
        await off_the_loop(redis_sentinels.lose)
        await heard(redis_sentinels.master, base)
        while not await asleep(listener):
            pass
        publish(redis_sentinels.master, base)
        await woken(listener)
    finally:
        await subscriptions.close()


async def replicated(group: RedisSentinels, key: str, value: bytes) -> None:
    # One replica confirms a durable call, and the sentinels may promote the other.
    await asyncio.to_thread(
        servers.until, lambda: all(server.command("GET", key) == value for server in group.servers), "all replicas"
    )


def publish(server: RedisServer, base: str) -> None:
    assert server.command("SPUBLISH", channel(base, "events"), "") == 1


async def heard(server: RedisServer, base: str) -> None:
    name = channel(base, "events")
    await asyncio.to_thread(
        servers.until, lambda: server.command("PUBSUB", "SHARDNUMSUB", name)[1] == 1 or None, "a subscription"
    )


async def all_heard(cluster: RedisCluster, bases: tuple[str, ...]) -> None:
    for base in bases:
        await heard(cluster.holder(slot(base)), base)
