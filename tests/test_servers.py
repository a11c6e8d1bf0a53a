"""The servers of the tests: none is left behind, no test sees another's keys, no skip is silent."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import redis
from redis.exceptions import MovedError, ReadOnlyError, TryAgainError

from tests.clusters import RedisCluster
from tests.sentinels import RedisSentinels
from tests.servers import VALKEY, Brand, Commons, RedisServer, client_of, command, until

ROOT = Path(__file__).parent.parent


def test_only_the_namespaces_of_the_session_are_deleted(redis_commons: Commons) -> None:
    elsewhere = Commons(redis_commons.url, redis_commons.nodes)
    mine, others = used(redis_commons, 2), used(elsewhere, 1)

    redis_commons.clear()

    assert [keys_of(redis_commons, namespace) for namespace in mine] == [0, 0]
    assert [keys_of(redis_commons, namespace) for namespace in others] == [40]

    elsewhere.clear()


def test_namespaces_are_deleted_on_a_cluster_and_behind_sentinels_too(
    cluster_commons: Commons, sentinel_commons: Commons
) -> None:
    for commons in (cluster_commons, sentinel_commons):
        namespaces = used(commons, 2)
        assert [keys_of(commons, namespace) for namespace in namespaces] == [40, 40]

        commons.clear()

        assert [keys_of(commons, namespace) for namespace in namespaces] == [0, 0]


def used(commons: Commons, count: int) -> list[str]:
    """Claim that many namespaces, and write forty keys to each, over all nodes."""
    namespaces = [parse_qs(urlsplit(commons.claim()).query)["namespace"][0] for _ in range(count)]
    for namespace in namespaces:
        for key in (f"{{{namespace}:{number}}}" for number in range(40)):
            for node in commons.nodes():
                with suppress(MovedError):
                    command(node, "SET", key, "left")
    return namespaces


def keys_of(commons: Commons, namespace: str) -> int:
    return sum(len(command(node, "KEYS", f"*{namespace}*")) for node in commons.nodes())


def test_a_killed_server_restarts_at_its_port_with_its_written_data(
    start_redis: Callable[..., RedisServer],
) -> None:
    forgets, remembers = start_redis(), start_redis(appendonly=True, appendfsync="always")
    for server in (forgets, remembers):
        before = server.address, server.pid
        server.command("SET", "key", b"\xff")
        server.restart(kill=True)

        assert server.address == before[0]
        assert server.pid != before[1]

    assert forgets.command("GET", "key") is None
    assert remembers.command("GET", "key") == b"\xff"


def test_a_frozen_server_keeps_its_connections_and_is_silent(redis_server: RedisServer) -> None:
    with client_of(redis_server.url, patience=0.2, tries=1) as client:
        assert command(client, "PING")
        redis_server.freeze()
        with pytest.raises(redis.TimeoutError):
            command(client, "PING")
        redis_server.thaw()

        assert command(client, "PING")


def test_keys_move_with_their_slots_and_the_nodes_agree(redis_cluster: RedisCluster) -> None:
    slot = redis_cluster.nodes[0].command("CLUSTER", "KEYSLOT", "{tag}")
    source = redis_cluster.holder(slot)
    target = next(node for node in redis_cluster.masters if node is not source)
    for number in range(250):
        source.command("SET", f"{{tag}}:{number}", number)

    redis_cluster.move([slot], target)
    redis_cluster.settle()

    assert redis_cluster.holder(slot) is target
    assert [target.command("GET", f"{{tag}}:{number}") for number in range(250)] == [b"%d" % n for n in range(250)]
    with pytest.raises(MovedError):
        source.command("GET", "{tag}:1")


def test_a_script_with_a_missing_key_does_not_start_while_its_slot_moves(
    redis_cluster: RedisCluster,
) -> None:
    # With one key it would: here half a script is done, and on the other side it would see half of the keys.
    slot = redis_cluster.nodes[0].command("CLUSTER", "KEYSLOT", "{tag}")
    source = redis_cluster.holder(slot)
    target = next(node for node in redis_cluster.masters if node is not source)
    source.command("SET", "{tag}", 0)
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.command("CLUSTER", "MYID"))
    script = "redis.call('INCR', KEYS[1]); redis.call('SET', KEYS[1] .. ':new', 1)"

    with pytest.raises(redis.ResponseError, match="non local key"):
        source.command("EVAL", script, 1, "{tag}")
    assert source.command("GET", "{tag}") == b"1"

    with pytest.raises(TryAgainError):
        source.command("EVAL", script, 2, "{tag}", "{tag}:never")
    assert source.command("GET", "{tag}") == b"1"


def test_a_replica_takes_over_from_a_master_of_a_cluster(start_cluster: Callable[..., RedisCluster]) -> None:
    cluster = start_cluster(replicas=1)
    first, second, third = cluster.masters

    heir = cluster.fail_over(first)
    assert cluster.masters == [heir, second, third]

    widow = cluster.lose(second)
    assert cluster.masters == [heir, widow, third]

    second.start()
    cluster.settle()
    assert cluster.replica_of(widow) is second


def test_sentinels_promote_another_server_in_place_of_a_master(redis_sentinels: RedisSentinels) -> None:
    first = redis_sentinels.master

    second = redis_sentinels.fail_over()
    assert second is not first

    third = redis_sentinels.lose()
    assert third is not second

    second.start()
    redis_sentinels.settle()
    with pytest.raises(ReadOnlyError):
        second.command("SET", "key", 1)


CHILD = """
import sys
from pathlib import Path
from tests.clusters import RedisCluster
from tests.sentinels import RedisSentinels
from tests.servers import Brand, RedisServer

server = RedisServer(Path(sys.argv[1]), brand=Brand(sys.argv[2]))
server.start()
print(server.url, flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("start_redis")
def test_a_server_does_not_outlive_a_test_run_that_is_killed(brand: Brand, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), brand.name],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        with client_of(url, tries=1) as client:
            assert command(client, "PING")
            os.kill(child.pid, signal.SIGKILL)

            def gone() -> bool:
                try:
                    command(client, "PING")
                except redis.ConnectionError:
                    return True
                return False

            assert until(gone, "the end of the server")


def outcome(
    *,
    path: str,
    chosen: str = "namespaces_of_the_session or frozen_server or run_that_is_killed",
    of: str = __file__,
    **more: str,
) -> str:
    """Return the output of a run of some tests; without `of` and `chosen`, of three of the tests above."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_TEST_")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", chosen, of],
        cwd=ROOT,
        env={**kept, "PATH": path, **more},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr

    return run.stdout


@pytest.mark.system
def test_a_run_without_a_server_reports_skipped_tests_and_the_remedy(tmp_path: Path) -> None:
    output = outcome(path=str(tmp_path))

    assert "3 skipped" in output
    assert "NOT TESTED" in output
    assert "2 skipped: no redis-server on the PATH\n" in output
    assert "1 skipped: no redis-server on the PATH and TENURE_TEST_REDIS_URL is not set\n" in output
    assert "NOT TESTED: valkey (no valkey-server on the PATH)" in output
    assert "make servers" in output


@pytest.mark.system
def test_a_test_for_valkey_only_is_reported_as_skipped_without_valkey(tmp_path: Path) -> None:
    output = outcome(path=str(tmp_path), chosen="once_it_is_on_both_disks", of="tests/storage/test_redis_replicated.py")

    assert "2 skipped: no valkey-server on the PATH\n" in output


@pytest.mark.system
def test_a_test_in_a_browser_is_reported_as_skipped_without_one(tmp_path: Path) -> None:
    output = outcome(path=str(tmp_path), chosen="markup_in_errors", of="tests/console/browser/test_pages.py")

    assert "1 skipped: a browser: none of chromium, " in output


@pytest.mark.system
def test_a_running_server_is_used_by_tests_that_share_one(redis_server: RedisServer, tmp_path: Path) -> None:
    output = outcome(path=str(tmp_path), TENURE_TEST_REDIS_URL=redis_server.url)

    assert "1 passed" in output


@pytest.mark.system
def test_tests_for_valkey_are_collected_only_with_a_valkey(
    brand: Brand, redis_server: RedisServer, tmp_path: Path
) -> None:
    # A folder with nothing but this: the machine may have a Valkey, too, or only that.
    only_redis = tmp_path / "bin"
    only_redis.mkdir()
    (only_redis / "redis-server").symlink_to(str(brand.program))

    without = outcome(path=str(only_redis))
    with_ = outcome(path=str(only_redis), TENURE_TEST_VALKEY="all", TENURE_TEST_VALKEY_URL=redis_server.url)

    assert "3 passed" in without
    assert "skipped" not in without
    assert "NOT TESTED: valkey" in without or VALKEY.program is not None
    assert "4 passed" in with_
    assert "skipped" not in with_
