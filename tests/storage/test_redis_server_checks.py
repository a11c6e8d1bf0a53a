"""The checks of a server before jobs are stored on it."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from tenure.core.lifecycle import State
from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.protocol import Finding
from tenure.storage.redis import server_checks as module
from tenure.storage.redis.address import ServerAddress, read
from tenure.storage.redis.connections import Connections
from tenure.storage.redis.errors import RULES
from tenure.storage.redis.script_library import verb
from tenure.storage.redis.server_checks import ServerChecks, ServerFacts, check
from tenure.storage.urls import locate
from tenure_testing.conformance.helpers import (
    ALICE,
    beat,
    bid,
    claim,
    claim_one,
    enqueue,
    new_job,
    record,
    settle,
    start,
)
from tests.clusters import RedisCluster
from tests.sentinels import RedisSentinels
from tests.servers import RedisServer

Guarded = Callable[[str], ServerChecks]
StartRedis = Callable[..., RedisServer]

SOUND = {"appendonly": True, "maxmemory_policy": "noeviction"}


@pytest.fixture
async def guarded() -> AsyncIterator[Guarded]:
    made: list[Connections] = []

    def guard(url: str) -> ServerChecks:
        made.append(Connections(read(url)))
        return ServerChecks(made[-1])

    yield guard
    for connections in made:
        await connections.close()


async def test_a_healthy_server_is_accepted_without_a_warning(
    guarded: Guarded, start_redis: StartRedis, caplog: pytest.LogCaptureFixture
) -> None:
    await guarded(start_redis(**SOUND).url).admit()

    assert not caplog.records


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_refused_with_the_remedy(
    guarded: Guarded, start_redis: StartRedis, policy: str
) -> None:
    server = start_redis(maxmemory_policy=policy)

    with pytest.raises(StorageError, match=f"maxmemory-policy {policy}.* CONFIG SET maxmemory-policy noeviction"):
        await guarded(server.url).admit()

    # A setting known to be wrong does not count as unchecked.
    with pytest.raises(StorageError, match=policy):
        await guarded(f"{server.url}?allow_unchecked=1").admit()


async def test_a_read_replica_is_refused_and_its_master_named(guarded: Guarded, start_redis: StartRedis) -> None:
    master = start_redis(**SOUND)
    replica = start_redis(replicaof=f"127.0.0.1 {master.port}", **SOUND)

    with pytest.raises(StorageUnavailableError, match=rf"read replica.*127\.0\.0\.1:{master.port}"):
        await guarded(replica.url).admit()


async def test_a_server_without_a_command_that_scripts_need_is_refused(
    guarded: Guarded, start_redis: StartRedis
) -> None:
    server = start_redis(rename_command="XTRIM CUT", **SOUND)

    with pytest.raises(StorageError, match="does not know XTRIM, which the scripts need; undo rename-command"):
        await guarded(server.url).admit()


def test_the_required_commands_are_those_of_the_scripts() -> None:
    called = {name for verb_ in module.VERBS for name in re.findall(r"call\('([A-Z]+)'", verb(verb_).text)}

    # Whether a listener exists may remain unknown: then every notification is published.
    assert (called - {"PUBSUB"}) | {"EVALSHA", "SCRIPT", "SSUBSCRIBE"} == set(module.NEEDED)


async def test_a_server_that_hides_config_but_shows_its_policy_is_accepted(
    guarded: Guarded, start_redis: StartRedis
) -> None:
    await guarded(start_redis(rename_command="CONFIG HIDDEN", **SOUND).url).admit()

    with pytest.raises(StorageError, match="allkeys-lru"):
        await guarded(start_redis(rename_command="CONFIG HIDDEN", maxmemory_policy="allkeys-lru").url).admit()


async def test_a_server_that_hides_everything_is_refused_unless_that_is_allowed(
    guarded: Guarded, start_redis: StartRedis
) -> None:
    server = start_redis(**SOUND)
    server.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info", "-config")
    url = server.url.replace("//", "//app:secret@")

    with pytest.raises(StorageError, match=r"does not show its kind and version.*allow_unchecked=1"):
        await guarded(url).admit()

    await guarded(f"{url}?allow_unchecked=1").admit()
    findings = await guarded(f"{url}?allow_unchecked=1").examine()

    assert [finding.level for finding in findings if "hides settings" in finding.message] == ["warning"]


def without_channels(server: RedisServer) -> str:
    """Return the URL of a user with all rights except on channels, which Redis does not grant by default."""
    server.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all")
    return server.url.replace("//", "//app:secret@")


async def test_a_user_without_channel_rights_is_warned_about_once(
    guarded: Guarded, start_redis: StartRedis, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis(**SOUND)
    guard = guarded(without_channels(server))
    await guard.admit()
    await guard.admit()
    [finding] = [finding for finding in await guard.examine() if finding.subject == "notifications"]

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert finding.level == "warning"
    assert "&{tenure}*" in finding.remedy
    assert finding.remedy in caplog.text

    server.command("ACL", "SETUSER", "app", "&{tenure}*")

    assert levels(await guard.examine())["notifications"] == "ok"


async def test_each_node_of_a_cluster_must_allow_notifications(guarded: Guarded, redis_cluster: RedisCluster) -> None:
    for node in redis_cluster.masters:
        without_channels(node)
    redis_cluster.masters[0].command("ACL", "SETUSER", "app", "&{tenure:*")
    guard = guarded(redis_cluster.url.replace("//", "//app:secret@"))
    found = [finding for finding in await guard.examine() if finding.subject == "notifications"]

    assert sorted(finding.level for finding in found) == ["ok", "warning", "warning"]
    assert {finding.remedy for finding in found if finding.level == "warning" and "&{tenure:*" in finding.remedy}


async def test_a_notification_that_may_not_be_published_fails_no_verb(start_redis: StartRedis) -> None:
    storage = locate(without_channels(start_redis(**SOUND)))
    try:
        await enqueue(storage, new_job("job"))
        [lease] = await claim(storage)
        await beat(storage, ALICE, [lease])
        await settle(storage, ALICE, lease)

        assert (await storage.sweep(bid())).troubles == ()
        assert (await record(storage, lease.ref)).state is State.COMPLETED
    finally:
        await storage.close()


@pytest.mark.parametrize("rules", [RULES, RULES.replace("~* &*", "~{tenure}* &{tenure}*")])
async def test_a_user_with_the_advised_rights_can_use_all_verbs(start_redis: StartRedis, rules: str) -> None:
    server = start_redis(**SOUND)
    server.command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules.split())
    storage = locate(server.url.replace("//", "//app:secret@"))
    try:
        await storage.open()
        lease = await start(storage)
        await beat(storage, ALICE, [lease], sign=True)
        await settle(storage, ALICE, lease)
        await enqueue(storage, new_job("next"))
        await claim_one(storage, ALICE)
        await storage.sweep(bid())
        await storage.reclaim(ALICE.id, ALICE)
        await storage.survey()
        await storage.events()
        findings = await storage.examine()
    finally:
        await storage.close()

    assert {finding.level for finding in findings} == {"ok"}
    assert server.command("ACL", "LOG") == []


async def test_a_missing_right_within_a_script_is_reported_with_all_acl_rules(start_redis: StartRedis) -> None:
    server = start_redis(**SOUND)
    server.command("ACL", "SETUSER", "app", "reset", "on", ">secret", *RULES.split())
    storage = locate(server.url.replace("//", "//app:secret@"))
    try:
        await storage.open()
        server.command("ACL", "SETUSER", "app", "-time")

        with pytest.raises(StorageError, match="ACL SETUSER <user> " + re.escape(RULES)):
            await storage.sweep(bid())
    finally:
        await storage.close()


async def test_a_server_that_requires_a_password_is_reported_as_such(guarded: Guarded, start_redis: StartRedis) -> None:
    server = start_redis(**SOUND)
    server.command("CONFIG", "SET", "requirepass", "secret")

    for guest in ("", ":wrong@", "unknown:secret@"):
        with pytest.raises(StorageError, match="put the right user and password into the URL") as caught:
            await guarded(server.url.replace("//", f"//{guest}")).admit()
        assert "allow_unchecked" not in str(caught.value)
        assert not isinstance(caught.value, StorageUnavailableError)


async def test_a_cluster_or_sentinels_that_require_a_password_are_reported(
    guarded: Guarded, redis_cluster: RedisCluster, redis_sentinels: RedisSentinels
) -> None:
    for node in redis_cluster.masters:
        node.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    [sentinel, *_] = read(redis_sentinels.url).places

    with pytest.raises(StorageError, match="put the right user and password into the URL"):
        await guarded(redis_cluster.url.replace("//", "//app:wrong@")).admit()
    with pytest.raises(StorageUnavailableError, match=r"put sentinel_password=\.\.\. into the URL"):
        await guarded(f"redis+sentinel://{sentinel}/main?sentinel_password=wrong&sentinel_username=unknown").admit()


FACTS = ServerFacts(
    ServerAddress("db", 6379),
    {"redis_version": "7.0.15", "redis_mode": "standalone", "role": "master", "maxmemory_policy": "noeviction"},
    {},
)


def facts(**info: str) -> ServerFacts:
    return replace(FACTS, info={**(FACTS.info or {}), **info})


def as_valkey(**info: str) -> ServerFacts:
    """Return the facts of a Valkey, where the mode has another name."""
    known = {name: value for name, value in (FACTS.info or {}).items() if name != "redis_mode"}
    is_ = {"server_name": "valkey", "valkey_version": "9.1.2", "redis_version": "7.2.4", "server_mode": "standalone"}
    return replace(FACTS, info={**known, **is_, **info})


@pytest.mark.parametrize(
    ("server", "refused"),
    [
        (facts(), None),
        (facts(redis_version="255.255.255"), None),
        (facts(redis_version="6.2.14"), "is Redis 6.2.14; Tenure needs Redis 7.0"),
        (as_valkey(), None),
        (facts(server_name="valkey", valkey_version="7.2.4", redis_version="7.2.4"), None),
        (as_valkey(valkey_version="7.0.1", redis_version="7.0.1"), "is Valkey 7.0.1"),
        (facts(maxmemory_policy="volatile-lru"), "volatile-lru"),
        (replace(FACTS, info={k: v for k, v in (FACTS.info or {}).items() if k != "maxmemory_policy"}), "hides what"),
        (facts(redis_mode="sentinel"), r"is a Sentinel; use redis\+sentinel://db:6379/NAME"),
        (facts(redis_mode="cluster"), r"belongs to a Cluster; use redis\+cluster://db:6379"),
        (as_valkey(server_mode="sentinel"), r"is a Sentinel; use redis\+sentinel://db:6379/NAME"),
        (as_valkey(server_mode="cluster"), r"belongs to a Cluster; use redis\+cluster://db:6379"),
    ],
)
def test_a_server_is_accepted_or_refused_by_its_info(server: ServerFacts, refused: str | None) -> None:
    address = read("redis://db")
    if refused is None:
        check([server], address)
    else:
        with pytest.raises(StorageError, match=refused):
            check([server], address)


async def test_a_url_for_another_kind_of_server_is_refused_with_the_right_url(
    guarded: Guarded, redis_server: RedisServer, sentinel_url: str, cluster_url: str
) -> None:
    node = read(cluster_url).places[0]
    sentinel = read(sentinel_url).places[0]

    with pytest.raises(StorageError, match=rf"redis\+cluster://{node}"):
        await guarded(f"redis://{node}").admit()
    with pytest.raises(StorageError, match=rf"redis\+sentinel://{sentinel}/NAME"):
        await guarded(f"redis://{sentinel}").admit()
    with pytest.raises(StorageError, match=rf"no Cluster; use {redis_server.url.removesuffix('/0')}"):
        await guarded(redis_server.url.replace("://", "+cluster://")).admit()


async def test_a_server_that_keeps_nothing_on_disk_causes_one_warning(
    guarded: Guarded, start_redis: StartRedis, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guarded(start_redis().url)

    await guard.admit()
    await guard.admit()

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "NOTHING on disk" in caplog.text

    caplog.clear()
    await guarded(start_redis(save="60 1").url).admit()

    assert not caplog.records


async def test_nodes_that_keep_nothing_are_named_in_one_line(
    guarded: Guarded, redis_cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    for node in redis_cluster.masters:
        node.command("CONFIG", "SET", "appendonly", "no", "save", "")

    await guarded(redis_cluster.url).admit()

    [warned] = [record.getMessage() for record in caplog.records]
    assert all(node.address in warned for node in redis_cluster.masters)


async def test_a_server_without_its_confirming_replica_causes_one_warning(
    guarded: Guarded, start_redis: StartRedis, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guarded(f"{start_redis(**SOUND).url}?durability=replicated")

    await guard.admit()
    await guard.admit()

    [warned] = [record.getMessage() for record in caplog.records]
    assert "has no replica, so no write can be confirmed" in warned


async def test_a_later_problem_is_found_within_a_minute_and_logged_once(
    guarded: Guarded, start_redis: StartRedis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis(**SOUND)
    guard = guarded(server.url)
    await guard.admit()
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    assert await guard.look_again() == []

    monkeypatch.setattr(module, "LOOK_AGAIN", 0.0)
    guard = guarded(server.url)

    [trouble] = await guard.look_again()
    assert [trouble] == await guard.look_again()
    assert "allkeys-lru" in trouble
    assert caplog.text.count("allkeys-lru") == 1

    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")

    assert await guard.look_again() == []


async def test_a_sweep_reports_a_server_that_has_become_unsafe(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_AGAIN", 0.0)
    server = start_redis(**SOUND)
    storage = locate(server.url)
    try:
        await storage.open()
        assert (await storage.sweep(bid())).troubles == ()

        server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        [trouble] = (await storage.sweep(bid())).troubles

        assert "allkeys-lru" in trouble
        assert [finding.subject for finding in await storage.examine() if finding.level == "error"] == ["server"]
    finally:
        await storage.close()

    with pytest.raises(StorageError, match="allkeys-lru"):
        await storage.open()
    await storage.close()


async def test_a_check_of_an_unavailable_server_finds_nothing(guarded: Guarded, redis_server: RedisServer) -> None:
    guard = guarded(redis_server.url)
    redis_server.stop()

    assert await guard.look_again() == []


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.subject: finding.level for finding in findings}


async def test_a_healthy_server_has_no_finding_that_endangers_anything(
    guarded: Guarded, start_redis: StartRedis
) -> None:
    findings = await guarded(start_redis(**SOUND, maxmemory="100mb").url).examine()

    subjects = ("server", "persistence", "replication", "memory", "scripts", "notifications")
    assert levels(findings) == dict.fromkeys(subjects, "ok")


@pytest.mark.parametrize(
    ("settings", "options", "subject", "level", "message"),
    [
        ({"appendonly": True, "appendfsync": "always"}, "", "persistence", "ok", "before it is acknowledged"),
        ({"appendonly": True, "appendfsync": "no"}, "", "persistence", "warning", "half a minute"),
        ({"save": "60 1"}, "", "persistence", "warning", "snapshots only"),
        ({}, "", "persistence", "warning", "keeps nothing on disk"),
        ({"maxmemory": "1"}, "", "memory", "error", "enqueueing is refused"),
        ({"maxmemory_policy": "allkeys-lru"}, "", "server", "error", "throws keys away"),
        ({}, "?durability=replicated", "replication", "error", "no replica"),
    ],
)
async def test_each_setting_that_endangers_jobs_is_a_finding_with_its_remedy(
    guarded: Guarded,
    start_redis: StartRedis,
    settings: dict[str, object],
    options: str,
    subject: str,
    level: str,
    message: str,
) -> None:
    findings = await guarded(start_redis(**settings).url + options).examine()

    [finding] = [finding for finding in findings if finding.subject == subject]
    assert finding.level == level
    assert message in finding.message
    assert level == "ok" or finding.remedy or subject == "server"


async def test_each_node_of_a_cluster_is_examined(guarded: Guarded, cluster_url: str) -> None:
    guard = guarded(cluster_url)

    await guard.admit()
    findings = await guard.examine()

    assert len([finding for finding in findings if finding.subject == "server"]) == 3
    assert [finding.level for finding in findings if finding.subject == "cluster"] == ["ok"]


async def test_every_node_of_a_cluster_must_keep_its_keys(guarded: Guarded, redis_cluster: RedisCluster) -> None:
    redis_cluster.masters[1].command("CONFIG", "SET", "maxmemory-policy", "allkeys-random")

    with pytest.raises(StorageError, match=redis_cluster.masters[1].address):
        await guarded(redis_cluster.url).admit()


async def test_an_unreachable_node_is_a_finding_and_does_not_block_the_others(
    guarded: Guarded, redis_cluster: RedisCluster
) -> None:
    away = redis_cluster.masters[2]
    away.stop()
    guard = guarded(redis_cluster.url)

    await guard.admit()

    [finding] = [
        finding for finding in await guard.examine() if finding.level == "error" and finding.subject == "server"
    ]
    assert away.address in finding.message

    for node in redis_cluster.masters[:2]:
        node.stop()
    with pytest.raises(StorageUnavailableError):
        await guard.admit()


async def test_behind_sentinels_the_master_is_examined(guarded: Guarded, redis_sentinels: RedisSentinels) -> None:
    guard = guarded(redis_sentinels.url)

    await guard.admit()

    assert any(redis_sentinels.master.address in finding.message for finding in await guard.examine())

    heir = redis_sentinels.fail_over()
    heir.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    with pytest.raises(StorageError, match=heir.address):
        await guard.admit()
