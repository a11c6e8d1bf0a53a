"""The servers of the tests do not lie: none is left behind, no test sees another's keys, no skip is silent."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import redis

from tests.servers import Brand, RedisServer, client_of, command, until

ROOT = Path(__file__).parent.parent


def test_a_namespace_is_empty_when_it_is_given_away(redis_urls: Callable[[], str]) -> None:
    first, second = redis_urls(), redis_urls()

    assert first != second

    with client_of(first.partition("?")[0]) as client:
        assert command(client, "SCAN", 0, "MATCH", "*test-*", "COUNT", 100_000)[1] == []

        # The next one to run this finds out whether these are deleted.
        for url in (first, second):
            namespace = parse_qs(urlsplit(url).query)["namespace"][0]
            command(client, "SET", f"{{{namespace}}}", "left")
            command(client, "SADD", f"{{{namespace}:3}}:more", "left")


test_nor_is_anything_left_from_the_test_before = test_a_namespace_is_empty_when_it_is_given_away


def test_a_killed_server_comes_back_at_its_port_with_what_it_has_written(
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


CHILD = """
import sys
from pathlib import Path
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

            def gone() -> bool | None:
                try:
                    command(client, "PING")
                except redis.ConnectionError:
                    return True
                return None

            assert until(gone, "the end of the server")


def outcome(*, path: str = os.environ["PATH"], **more: str) -> str:
    """Return what a run says of three of the tests above."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_TEST_")}
    chosen = "given_away or frozen_server or run_that_is_killed"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", chosen, str(Path(__file__))],
        cwd=ROOT,
        env={**kept, "PATH": path, **more},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr

    return run.stdout


@pytest.mark.system
def test_a_run_without_a_server_says_loudly_what_it_skipped_and_what_to_do(tmp_path: Path) -> None:
    said = outcome(path=str(tmp_path))

    assert "3 skipped" in said
    assert "NOT TESTED" in said
    assert "2 tests were skipped: no redis-server on the PATH\n" in said
    assert "1 tests were skipped: no redis-server on the PATH and HOLDFAST_TEST_REDIS_URL is not set\n" in said
    assert "make servers" in said


@pytest.mark.system
def test_a_server_that_runs_already_does_for_those_that_share_one(redis_server: RedisServer, tmp_path: Path) -> None:
    said = outcome(path=str(tmp_path), HOLDFAST_TEST_REDIS_URL=redis_server.url)

    assert "1 passed" in said


@pytest.mark.system
def test_what_needs_valkey_is_collected_only_where_there_is_one(redis_server: RedisServer, tmp_path: Path) -> None:
    without = outcome()
    with_ = outcome(HOLDFAST_TEST_VALKEY_URL=redis_server.url)

    assert "3 passed" in without
    assert "skipped" not in without
    assert "4 passed" in with_
    assert "skipped" not in with_
