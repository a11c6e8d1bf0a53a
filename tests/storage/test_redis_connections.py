"""The connections to Redis: one call, one reply, despite any fault on the way."""

import asyncio
import hashlib
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tenure.errors import NotDurableError, StorageError, StorageFullError, StorageUnavailableError
from tenure.storage.redis import connections as module
from tenure.storage.redis import resp
from tenure.storage.redis.address import read
from tenure.storage.redis.connections import Connections, ScriptCall
from tenure.storage.redis.routes import slot
from tenure.storage.redis.script_library import Script
from tenure_testing.proxy import Proxy, free_port
from tests import servers
from tests.servers import RedisServer
from tests.storage.forks import forked


def script(name: str, text: str) -> Script:
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


ECHO = script("echo", "return {KEYS[1], ARGV[1] or false, #ARGV}")
ADD = script("add", "return redis.call('INCRBY', KEYS[1] .. ':n', ARGV[1])")
READ = script("read", "return redis.call('GET', KEYS[1] .. ':n')")
BROKEN = script("broken", "local nothing\nreturn nothing.there")
GIVE = script("give", "return string.rep(string.rep('x', 1000), tonumber(ARGV[1]) / 1000)")
BIG = script("big", "redis.call('SET', KEYS[1] .. ':big', string.rep('x', tonumber(ARGV[1]))) return 1")


Connect = Callable[[str], Connections]


@pytest.fixture(params=["by hiredis", "without hiredis"])
def either_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without hiredis":
        monkeypatch.setattr(resp, "IN_C", None)


def base_of(connections: Connections) -> str:
    return connections.address.bases[0]


@pytest.mark.usefixtures("either_reader")
async def test_a_call_passes_partition_and_arguments_and_returns_bytes(connect: Connect, redis_url: str) -> None:
    connections = connect(redis_url)
    base = base_of(connections)

    assert await connections.call(ECHO, base, b"\x00\xff") == [base.encode(), b"\x00\xff", 1]
    assert await connections.call(ECHO, base, "grün") == [base.encode(), "grün".encode(), 1]
    assert await connections.call(ECHO, base, 7) == [base.encode(), b"7", 1]
    assert await connections.call(ECHO, base) == [base.encode(), None, 0]


@pytest.mark.usefixtures("either_reader")
async def test_several_calls_use_one_connection_and_return_in_order(
    connect: Connect, redis_server: RedisServer
) -> None:
    connections = connect(redis_server.url)
    base = base_of(connections)

    replies = await connections.call_all(
        [ScriptCall(ADD, base, (1,)), ScriptCall(ECHO, base, ("x",)), ScriptCall(ADD, base, (5,))]
    )

    assert replies == [1, [base.encode(), b"x", 1], 6]
    assert clients(redis_server) == 1


@pytest.mark.usefixtures("either_reader")
async def test_a_server_that_lost_its_scripts_gets_them_again_amid_many_calls(
    connect: Connect, redis_server: RedisServer
) -> None:
    connections = connect(redis_server.url)
    base = base_of(connections)
    assert await connections.call(ADD, base, 1) == 1

    redis_server.command("SCRIPT", "FLUSH")

    assert await connections.call(ADD, base, 1) == 2

    redis_server.command("SCRIPT", "FLUSH")
    await connections.call(ECHO, base)
    replies = await connections.call_all(
        [*[ScriptCall(ADD, base, (1,))] * 3, ScriptCall(ECHO, base), *[ScriptCall(ADD, base, (1,))] * 3]
    )

    # The echo was known at once; each addition took place once.
    assert replies[3] == [base.encode(), None, 0]
    assert sorted(reply for reply in replies if isinstance(reply, int)) == [3, 4, 5, 6, 7, 8]


async def test_a_restarted_server_is_used_again_by_the_next_call(connect: Connect, redis_server: RedisServer) -> None:
    connections = connect(redis_server.url)
    base = base_of(connections)
    await asyncio.gather(*(connections.call(ADD, base, 1) for _ in range(5)))

    redis_server.restart()

    assert await connections.call(ADD, base, 1) == 1


@pytest.mark.usefixtures("either_reader")
async def test_connections_that_the_server_has_cut_are_not_used_again(
    connect: Connect, redis_server: RedisServer
) -> None:
    connections = connect(redis_server.url)
    base = base_of(connections)
    await asyncio.gather(*(connections.call(ADD, base, 1) for _ in range(5)))

    redis_server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    for _ in range(10):
        await connections.call(ADD, base, 1)

    assert await connections.call(READ, base) == b"15"


async def test_an_unavailable_server_is_named_by_its_address_without_password(
    connect: Connect, redis_server: RedisServer
) -> None:
    connections = connect(redis_server.url.replace("//", "//:secret@"))
    redis_server.stop()

    with pytest.raises(StorageUnavailableError, match=r"127\.0\.0\.1") as caught:
        await connections.call(ECHO, base_of(connections))

    assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("either_reader")
async def test_a_cancelled_call_leaves_no_reply_behind_for_another(connect: Connect, redis_server: RedisServer) -> None:
    connections = connect(redis_server.url)
    base = base_of(connections)
    await connections.call(ECHO, base)
    redis_server.freeze()
    waiting = [asyncio.ensure_future(connections.call(ADD, base, 1)) for _ in range(3)]
    await turns(20)
    for call in waiting:
        call.cancel()

    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*waiting, return_exceptions=True)
    )

    redis_server.thaw()

    assert await connections.call(ECHO, base, "mine") == [base.encode(), b"mine", 1]
    assert await asyncio.gather(*(connections.call(ECHO, base, n) for n in range(20))) == [
        [base.encode(), b"%d" % n, 1] for n in range(20)
    ]


async def test_a_call_cancelled_while_it_connects_leaves_no_connection(
    connect: Connect, redis_server: RedisServer
) -> None:
    connections = connect(redis_server.url.replace("/0", "/3"))
    for after in range(12):
        call = asyncio.ensure_future(connections.call(ECHO, base_of(connections)))
        await turns(after)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    assert await connections.call(ECHO, base_of(connections)) == [base_of(connections).encode(), None, 0]
    await until(lambda: clients(redis_server) <= 2)


async def test_a_server_that_does_not_answer_in_time_is_unavailable(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERING", 0.2)
    connections = connect(redis_server.url)
    base = base_of(connections)
    await connections.call(ECHO, base)
    redis_server.freeze()

    with pytest.raises(StorageUnavailableError, match="no answer in time"):
        await connections.call(ADD, base, 1)

    redis_server.thaw()

    assert await connections.call(ECHO, base, "on") == [base.encode(), b"on", 1]


async def test_a_call_in_flight_ends_in_time_when_its_connections_close(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERING", 0.4)
    connections = connect(redis_server.url)
    base = base_of(connections)
    await connections.call(ECHO, base)
    redis_server.freeze()
    waiting = asyncio.ensure_future(connections.call(ADD, base, 1))
    await turns(20)
    await connections.close()

    with pytest.raises(StorageUnavailableError, match="no answer in time"):
        async with asyncio.timeout(20):
            await waiting

    redis_server.thaw()


@pytest.mark.usefixtures("either_reader")
async def test_a_cut_answer_raises_and_the_call_is_not_repeated(connect: Connect, redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        connections = connect(f"redis://{proxy.address}")
        base = base_of(connections)
        await connections.call(ADD, base, 1)
        proxy.set_faults(cut_after=1, cuts=1)

        with pytest.raises(StorageUnavailableError, match="cannot be reached"):
            await connections.call(ADD, base, 1)

        # Whether it took place is for the caller to find out: all our calls may be repeated.
        assert await connections.call(READ, base) == b"2"


async def test_one_silent_connection_discards_the_other_idle_ones(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERING", 0.3)
    with Proxy(redis_server.port) as proxy:
        connections = connect(f"redis://{proxy.address}")
        base = base_of(connections)
        await asyncio.gather(*(connections.call(ADD, base, 1) for _ in range(10)))
        proxy.abandon()

        with pytest.raises(StorageUnavailableError, match="no answer in time"):
            await connections.call(ADD, base, 1)

        assert await asyncio.gather(*(connections.call(READ, base) for _ in range(10))) == [b"10"] * 10


@pytest.mark.usefixtures("either_reader")
async def test_a_silent_connection_is_closed_early_if_another_is_answered(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT", 0.2)
    monkeypatch.setattr(module, "ANSWERING", 60.0)
    with Proxy(redis_server.port) as proxy:
        connections = connect(f"redis://{proxy.address}")
        base = base_of(connections)
        await connections.call(ADD, base, 1)
        proxy.abandon()

        async with asyncio.timeout(20):
            with pytest.raises(StorageUnavailableError, match="no answer in time"):
                await connections.call(ADD, base, 1)

            assert await connections.call(READ, base) == b"1"


async def test_a_busy_server_is_waited_for_though_a_call_takes_long(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT", 0.1)
    connections = connect(redis_server.url)

    # A script cannot do it: from Redis 7.2 on, and in Valkey, its TIME does not change.
    assert await connections.run_command(base_of(connections), "DEBUG", "SLEEP", "1.2") == b"OK"


async def test_an_answer_that_takes_long_is_waited_for(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT", 0.1)
    with Proxy(redis_server.port) as proxy:
        connections = connect(f"redis://{proxy.address}")
        base = base_of(connections)
        await connections.call(ECHO, base)
        proxy.set_faults(latency=0.3)

        assert await connections.call(ECHO, base, b"x" * 3_000_000) == [base.encode(), b"x" * 3_000_000, 1]


@pytest.mark.usefixtures("either_reader")
async def test_an_answer_may_take_longer_than_a_silence_while_its_bytes_flow(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERING", 0.5)
    with Proxy(redis_server.port) as proxy:
        connections = connect(f"redis://{proxy.address}")
        base = base_of(connections)
        await connections.call(GIVE, base, 1000)
        proxy.set_faults(rate=1_000_000)

        assert await connections.call(GIVE, base, 2_000_000) == b"x" * 2_000_000


async def test_an_answer_that_stops_half_way_has_the_usual_time_limit(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERING", 2.0)  # more than a busy machine delays the proxy
    with Proxy(redis_server.port) as proxy:
        connections = connect(f"redis://{proxy.address}")
        base = base_of(connections)
        await connections.call(GIVE, base, 1000)
        proxy.set_faults(rate=1_000_000)
        call = asyncio.ensure_future(connections.call(GIVE, base, 8_000_000))
        done, _ = await asyncio.wait([call], timeout=3)
        proxy.set_faults(hold=True)

        assert not done
        async with asyncio.timeout(20):
            with pytest.raises(StorageUnavailableError, match="no answer in time"):
                await call


async def test_an_answer_that_trickles_without_an_end_is_given_up(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERING", 0.5)
    monkeypatch.setattr(module, "LONGEST", 1.0)
    with Proxy(redis_server.port) as proxy:
        connections = connect(f"redis://{proxy.address}")
        base = base_of(connections)
        await connections.call(GIVE, base, 1000)
        proxy.set_faults(rate=1_000_000)

        async with asyncio.timeout(20):
            with pytest.raises(StorageUnavailableError, match="no answer in time"):
                await connections.call(GIVE, base, 8_000_000)


async def test_a_slow_network_slows_calls_and_fails_none(connect: Connect, redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        connections = connect(f"redis://{proxy.address}/2")
        base = base_of(connections)
        proxy.set_faults(latency=0.5, jitter=0.1)

        assert set(await asyncio.gather(*(connections.call(ADD, base, 1) for _ in range(5)))) == {1, 2, 3, 4, 5}


async def test_the_time_to_connect_does_not_count_as_answer_time(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERING", 1.6)
    with Proxy(redis_server.port) as proxy:
        connections = connect(f"redis://{proxy.address}/2")
        proxy.set_faults(latency=0.5)

        # A second each: to authenticate, and to answer.
        assert await connections.call(ADD, base_of(connections), 1) == 1


async def test_no_more_connections_are_opened_than_the_limit_and_few_are_kept(
    connect: Connect, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT", 6)
    monkeypatch.setattr(module, "KEPT", 2)
    connections = connect(redis_server.url)
    base = base_of(connections)

    # One is the test's own; the server refuses every connection after the eighth.
    redis_server.command("CONFIG", "SET", "maxclients", 8)

    await asyncio.gather(*(connections.call(ADD, base, 1) for _ in range(200)))

    assert await connections.call(READ, base) == b"200"
    await until(lambda: clients(redis_server) <= 2)


@pytest.mark.usefixtures("either_reader")
async def test_a_script_that_fails_says_which_it_is(connect: Connect, redis_url: str) -> None:
    connections = connect(redis_url)

    with pytest.raises(StorageError, match=r"the script broken failed: .*user_script:2") as caught:
        await connections.call(BROKEN, base_of(connections))

    assert type(caught.value) is StorageError


async def test_one_failing_call_of_several_does_not_stop_the_others(connect: Connect, redis_url: str) -> None:
    connections = connect(redis_url)
    base = base_of(connections)
    calls = [ScriptCall(ADD, base, (1,)), ScriptCall(BROKEN, base), ScriptCall(ADD, base, (1,))]

    first, second, third = await connections.outcomes(calls)

    assert (first, third) == (1, 2)
    assert isinstance(second, StorageError)

    with pytest.raises(StorageError, match="broken"):
        await connections.call_all(calls)

    assert await connections.call(READ, base) == b"4"


async def test_a_full_server_is_reported_and_wrote_nothing(connect: Connect, redis_server: RedisServer) -> None:
    connections = connect(redis_server.url)
    base = base_of(connections)
    await connections.call(BIG, base, 1)
    redis_server.command("CONFIG", "SET", "maxmemory", "1kb")

    with pytest.raises(StorageFullError, match="maxmemory"):
        await connections.call(BIG, base, 5_000_000)

    redis_server.command("CONFIG", "SET", "maxmemory", "0")

    assert redis_server.command("STRLEN", f"{base}:big") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_missing_server_is_reported_once_with_the_remedy(connect: Connect, host: str) -> None:
    url = f"redis://{host}:{free_port()}"
    gone = connect(url)

    with pytest.raises(StorageUnavailableError) as caught:
        await gone.call(ECHO, base_of(gone))

    assert str(caught.value) == (
        f"{url} cannot be reached: connection refused; check that it runs there, and that host and port are right"
    )


async def test_a_tls_connection_to_a_plain_port_is_reported_with_the_remedy(
    connect: Connect, redis_server: RedisServer
) -> None:
    plain = connect(redis_server.url.replace("://", "s://"))

    with pytest.raises(StorageUnavailableError, match="check that it runs and speaks TLS there"):
        await plain.call(ECHO, base_of(plain))


async def test_a_missing_database_is_reported_with_the_valid_numbers(
    connect: Connect, redis_server: RedisServer
) -> None:
    beyond = connect(f"redis://{redis_server.address}/99")

    with pytest.raises(StorageError, match=r"a database that the server does not have; use one from 0 to"):
        await beyond.call(ECHO, base_of(beyond))


async def test_a_master_name_unknown_to_sentinels_is_reported_with_the_remedy(
    connect: Connect, sentinel_url: str
) -> None:
    unknown = connect(f"redis+sentinel://{read(sentinel_url).places[0]}/unknown")

    with pytest.raises(StorageUnavailableError, match="knows a master 'unknown'; check the name after the hosts"):
        await unknown.call(ECHO, base_of(unknown))


async def test_a_wrong_password_is_reported_with_the_remedy(connect: Connect, redis_server: RedisServer) -> None:
    redis_server.command("ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all")

    wrong = connect(redis_server.url.replace("//", "//app:wrong@"))
    with pytest.raises(StorageError, match="put the right user and password into the URL") as caught:
        await wrong.call(ECHO, base_of(wrong))

    assert "wrong@" not in str(caught.value)

    right = connect(redis_server.url.replace("//", "//app:right@"))
    assert await right.call(ECHO, base_of(right))

    redis_server.command("ACL", "SETUSER", "app", "-evalsha")
    with pytest.raises(StorageError, match="not do everything"):
        await right.call(ECHO, base_of(right))


async def test_a_user_without_script_rights_gets_an_error_about_rights(
    connect: Connect, redis_server: RedisServer
) -> None:
    redis_server.command("ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all", "-script")
    connections = connect(redis_server.url.replace("//", "//app:right@"))

    with pytest.raises(StorageError, match="not do everything"):
        await connections.call(ECHO, base_of(connections))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on the PATH makes a certificate")
async def test_a_server_is_called_by_tls_and_only_if_its_certificate_is_valid(
    connect: Connect, start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    words = [*make.split(), "-out", str(cert), "-keyout", str(key)]
    await asyncio.to_thread(lambda: subprocess.run(words, check=True, capture_output=True))
    port = free_port()
    try:
        start_redis(tls_port=port, tls_cert_file=cert, tls_key_file=key, tls_ca_cert_file=cert, tls_auth_clients=False)
    except RuntimeError as error:
        if "TLS support" in str(error):
            pytest.skip("this server was built without TLS")
        raise

    trusting = connect(f"rediss://127.0.0.1:{port}?ssl_ca_certs={cert}")
    base = base_of(trusting)
    assert await trusting.call(ECHO, base, b"x" * 100_000) == [base.encode(), b"x" * 100_000, 1]
    assert await asyncio.gather(*(trusting.call(ADD, base, 1) for _ in range(3)))

    careless = connect(f"rediss://127.0.0.1:{port}?ssl_cert_reqs=none")
    assert await careless.call(READ, base) == b"3"

    for url in (f"rediss://127.0.0.1:{port}", f"rediss://localhost:{port}?ssl_ca_certs={cert}"):
        with pytest.raises(StorageUnavailableError, match=r"(?i)certificate|hostname"):
            await connect(url).call(ECHO, base)


async def test_a_replica_accepts_no_calls_until_its_promotion(
    connect: Connect, start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, replica = start_redis(), start_redis()
    replica.command("REPLICAOF", "127.0.0.1", master.port)
    await until(lambda: replica.command("INFO", "replication")["master_link_status"] == "up")
    connections = connect(replica.url)
    base = base_of(connections)

    with pytest.raises(StorageUnavailableError, match="fails over"):
        await connections.call(ADD, base, 1)

    # While the call pauses between its attempts.
    call = asyncio.ensure_future(connections.call(ADD, base, 1))
    await turns(50)
    replica.command("REPLICAOF", "NO", "ONE")

    assert await call == 1


async def test_a_durable_call_waits_for_a_replica_and_fails_if_none_confirms(
    connect: Connect, start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONFIRMING", 0.2)
    master = start_redis()
    connections = connect(master.url)
    base = base_of(connections)

    with pytest.raises(NotDurableError, match="no replica has confirmed"):
        await connections.call(ADD, base, 1, durable=True)

    assert await connections.call(READ, base) == b"1"

    monkeypatch.setattr(module, "CONFIRMING", 10.0)
    replica = start_redis()
    replica.command("REPLICAOF", "127.0.0.1", master.port)
    await until(lambda: replica.command("INFO", "replication")["master_link_status"] == "up")

    assert await connections.call(ADD, base, 1, durable=True) == 2
    assert replica.command("GET", f"{base}:n") == b"2"


async def test_each_event_loop_has_its_own_connections_and_all_are_closed(
    redis_server: RedisServer,
) -> None:
    connections = Connections(read(redis_server.url))
    base = base_of(connections)
    opened, leave = threading.Barrier(4), threading.Event()

    async def work() -> None:
        for _ in range(20):
            await connections.call(ADD, base, 1)
        await asyncio.to_thread(opened.wait)
        await asyncio.to_thread(leave.wait)

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(3)]
    for thread in threads:
        thread.start()
    await connections.call(ADD, base, 1)
    await asyncio.to_thread(opened.wait)

    assert await connections.call(READ, base) == b"61"
    assert clients(redis_server) == 4

    await connections.close()

    await until(lambda: clients(redis_server) == 0)

    assert await connections.call(READ, base) == b"61"

    leave.set()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await connections.close()


async def test_an_event_loop_that_ends_closes_its_connections(redis_server: RedisServer) -> None:
    connections = Connections(read(redis_server.url))
    base = base_of(connections)
    ends: list[Callable[[Callable[[], Awaitable[object]]], object]] = [run_by_asyncio, run_by_hand]

    for end in ends:
        await asyncio.to_thread(end, lambda: asyncio.gather(*(connections.call(ADD, base, 1) for _ in range(4))))

        await until(lambda: clients(redis_server) == 0)


async def test_a_forked_child_uses_none_of_its_parents_connections(redis_server: RedisServer) -> None:
    connections = Connections(read(redis_server.url))
    base = base_of(connections)
    await asyncio.gather(*(connections.call(ADD, base, 1) for _ in range(4)))

    assert await asyncio.to_thread(forked, lambda: asyncio.run(call_in_a_child(connections, base))) == 0
    # The parent's are unchanged.
    assert await asyncio.gather(*(connections.call(ECHO, base, n) for n in range(4))) == [
        [base.encode(), b"%d" % n, 1] for n in range(4)
    ]
    assert await connections.call(READ, base) == b"54"

    await connections.close()


def test_a_partition_lies_in_the_slot_of_its_hash_tag() -> None:
    assert slot("{foo}") == 12182
    assert slot("{user1000}") == 3443


async def call_in_a_child(connections: Connections, base: str) -> None:
    for _ in range(50):
        await connections.call(ADD, base, 1)


def run_by_asyncio(work: Callable[[], Awaitable[object]]) -> None:
    async def main() -> None:
        await work()

    asyncio.run(main())


def run_by_hand(work: Callable[[], Awaitable[object]]) -> None:
    async def main() -> None:
        await work()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def clients(server: RedisServer) -> int:
    """Return how many connections there are in addition to the test's own."""
    return int(server.command("INFO", "clients")["connected_clients"]) - 1


async def turns(count: int) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(servers.until, lambda: holds() or None, "what the test expects")
