"""Notifications from Redis: they may come late and twice, but are not lost between two subscriptions."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from random import Random

import pytest

from tenure.core.exponential_delay import ExponentialDelay
from tenure.errors import StorageUnavailableError
from tenure.storage.notifications import Listener
from tenure.storage.redis import connections as calls
from tenure.storage.redis import subscriptions as module
from tenure.storage.redis.address import read
from tenure.storage.redis.connections import Connections
from tenure.storage.redis.subscriptions import Subscriptions, channel
from tenure_testing.proxy import Proxy
from tests import servers
from tests.servers import RedisServer
from tests.storage.forks import forked

LONG = 20
"""Seconds; only a fault takes this long."""

BASE = "{tenure}"

Hear = Callable[[str], Subscriptions]


@pytest.fixture
async def make_subscriptions() -> AsyncIterator[Hear]:
    made: list[tuple[Subscriptions, Connections]] = []

    def hearing(url: str) -> Subscriptions:
        connections = Connections(read(url), rng=Random(1))
        made.append((Subscriptions(connections, lambda topic: connections.address.bases, rng=Random(2)), connections))
        return made[-1][0]

    yield hearing
    for subscriptions, connections in made:
        await subscriptions.close()
        await connections.close()


async def woken(listener: Listener) -> None:
    async with asyncio.timeout(LONG):
        await anext(listener)


async def asleep(listener: Listener) -> bool:
    """Return whether a listener has no pending notification."""
    try:
        async with asyncio.timeout(0.05):
            await anext(listener)
    except TimeoutError:
        return True
    return False


def publish(server: RedisServer, topic: str) -> int:
    return int(server.command("SPUBLISH", channel(BASE, topic), ""))


async def subscribed(server: RedisServer, *topics: str) -> None:
    await until(lambda: all(subscribers(server, topic) for topic in topics))


def subscribers(server: RedisServer, topic: str) -> int:
    return int(dict_of(server.command("PUBSUB", "SHARDNUMSUB", channel(BASE, topic)))[channel(BASE, topic).encode()])


def dict_of(pairs: list[object]) -> dict[object, int]:
    return dict(zip(pairs[::2], [int(str(number)) for number in pairs[1::2]], strict=True))


def lines(server: RedisServer) -> int:
    """Return how many connections have subscriptions."""
    clients: bytes = server.command("CLIENT", "LIST")
    return sum(b" ssub=0 " not in client for client in clients.splitlines())


async def until(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(servers.until, lambda: holds() or None, "what the test expects")


async def test_a_notification_wakes_only_listeners_of_its_topic(
    make_subscriptions: Hear, redis_server: RedisServer
) -> None:
    subscriptions = make_subscriptions(redis_server.url)
    mail, news = subscriptions.listen(["queue:mail", "owner:1"]), subscriptions.listen(["queue:news"])
    # Earlier notifications were lost, so each listener is woken once when its subscription begins.
    await asyncio.gather(woken(mail), woken(news))
    await subscribed(redis_server, "queue:mail", "owner:1", "queue:news")
    await asleep(mail)

    publish(redis_server, "queue:mail")

    await woken(mail)
    assert await asleep(news)

    publish(redis_server, "queue:news")

    await woken(news)
    assert await asleep(mail)


async def test_a_notification_before_the_subscription_begins_is_not_lost(
    make_subscriptions: Hear, redis_server: RedisServer
) -> None:
    listener = make_subscriptions(redis_server.url).listen(["queue:mail"])

    assert publish(redis_server, "queue:mail") == 0

    await woken(listener)


async def test_a_listener_of_a_pending_subscription_is_woken_when_it_begins(
    make_subscriptions: Hear, redis_server: RedisServer
) -> None:
    subscriptions = make_subscriptions(redis_server.url)
    listeners: list[Listener] = []
    for _ in range(30):
        listeners.append(subscriptions.listen(["queue:mail"]))
        await asyncio.sleep(0)

    await asyncio.gather(*(woken(listener) for listener in listeners[:1]))
    await subscribed(redis_server, "queue:mail")
    publish(redis_server, "queue:mail")

    await asyncio.gather(*(woken(listener) for listener in listeners[1:]))


async def test_listeners_share_one_connection_and_one_subscription_per_topic(
    make_subscriptions: Hear, redis_server: RedisServer
) -> None:
    subscriptions = make_subscriptions(redis_server.url)
    topics = [f"queue:{number}" for number in range(1200)]
    listeners = [subscriptions.listen(topics) for _ in range(3)]
    await subscribed(redis_server, *topics[:3], *topics[-3:])

    assert lines(redis_server) == 1
    assert subscribers(redis_server, "queue:0") == 1
    assert redis_server.command("INFO", "commandstats")["cmdstat_ssubscribe"]["calls"] == 3

    for listener in listeners[:2]:
        listener.close()
    # Unsubscriptions are sent before subscriptions: by then the server would have got them.
    subscriptions.listen(["queue:late"])
    await subscribed(redis_server, "queue:late")

    assert subscribers(redis_server, "queue:0") == 1

    listeners[2].close()

    await until(lambda: subscribers(redis_server, "queue:0") == 0)


async def test_a_topic_can_be_left_and_subscribed_again(make_subscriptions: Hear, redis_server: RedisServer) -> None:
    subscriptions = make_subscriptions(redis_server.url)
    stays = subscriptions.listen(["queue:other"])
    await subscribed(redis_server, "queue:other")
    for turns in range(40):
        listener = subscriptions.listen(["queue:mail"])
        for _ in range(turns):
            await asyncio.sleep(0)
        listener.close()
        for _ in range(turns % 7):
            await asyncio.sleep(0)

    listener = subscriptions.listen(["queue:mail"])
    await subscribed(redis_server, "queue:mail")
    await woken(listener)
    await asleep(listener)
    publish(redis_server, "queue:mail")

    await woken(listener)
    assert lines(redis_server) == 1
    stays.close()


async def test_a_broken_connection_is_restored_and_wakes_listeners_once(
    make_subscriptions: Hear, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    listener = make_subscriptions(redis_server.url).listen(["queue:mail"])
    await subscribed(redis_server, "queue:mail")
    await woken(listener)
    assert await asleep(listener)

    with caplog.at_level(logging.INFO, "tenure"):
        redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")

        await woken(listener)
        await subscribed(redis_server, "queue:mail")
    publish(redis_server, "queue:mail")
    await woken(listener)

    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_server_that_returns_is_subscribed_again_with_one_warning(
    make_subscriptions: Hear,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_DELAY", ExponentialDelay(0.01, 0.05))
    redis_server.stop()
    listener = make_subscriptions(redis_server.url).listen(["queue:mail"])
    await until(lambda: bool(caplog.records))

    for _ in range(6):  # enough attempts
        assert await asleep(listener)
    assert [record.levelname for record in caplog.records] == ["WARNING"]

    await asyncio.to_thread(redis_server.start)

    await woken(listener)
    await subscribed(redis_server, "queue:mail")
    await asleep(listener)
    publish(redis_server, "queue:mail")
    await woken(listener)


async def test_an_idle_connection_is_pinged_and_kept_while_the_server_answers(
    make_subscriptions: Hear,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "PING_EVERY", 1.0)

    def pings() -> int:
        return int(redis_server.command("INFO", "commandstats").get("cmdstat_ping", {}).get("calls", 0))

    listener = make_subscriptions(redis_server.url).listen(["queue:mail"])
    await subscribed(redis_server, "queue:mail")
    await woken(listener)
    first, before = servers.subscribed(redis_server)[0]["id"], pings()
    await until(lambda: pings() >= before + 3)

    assert [line["id"] for line in servers.subscribed(redis_server)] == [first]
    assert await asleep(listener)
    assert caplog.records == []


async def test_a_server_that_stops_answering_is_given_up_and_used_again_later(
    make_subscriptions: Hear,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "PING_EVERY", 0.5)
    listener = make_subscriptions(redis_server.url).listen(["queue:mail"])
    await subscribed(redis_server, "queue:mail")
    await woken(listener)
    await asleep(listener)

    redis_server.freeze()
    await until(lambda: bool(caplog.records))
    redis_server.thaw()

    await woken(listener)


async def test_when_a_call_goes_unanswered_the_connection_is_pinged_at_once(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT", 0.2)
    monkeypatch.setattr(calls, "SILENT", 0.2)
    with Proxy(redis_server.port) as proxy:
        connections = Connections(read(f"redis://{proxy.address}"))
        subscriptions = Subscriptions(connections, lambda topic: [BASE])
        listener = subscriptions.listen(["queue:mail"])
        await subscribed(redis_server, "queue:mail")
        await woken(listener)
        await connections.run_command(BASE, "GET", f"{BASE}:n")
        assert await asleep(listener)
        proxy.abandon()

        with pytest.raises(StorageUnavailableError):
            await connections.run_command(BASE, "GET", f"{BASE}:n")

        await woken(listener)
        while not await asleep(listener):
            pass
        publish(redis_server, "queue:mail")
        await woken(listener)
        await subscriptions.close()
        await connections.close()


async def test_a_connection_silenced_without_a_reset_is_detected_within_15_s(
    make_subscriptions: Hear, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(redis_server.port) as proxy:
        listener = make_subscriptions(f"redis://{proxy.address}").listen(["queue:mail"])
        await subscribed(redis_server, "queue:mail")
        await woken(listener)
        await asleep(listener)
        proxy.abandon()
        began = time.monotonic()

        # It is woken when the next connection is open, because it may have missed notifications in between.
        await woken(listener)

        assert time.monotonic() - began < 15
        assert "has not answered" in caplog.text


async def test_an_idle_connection_costs_only_a_ping_at_intervals(
    make_subscriptions: Hear, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PING_EVERY", 0.2)
    subscriptions = make_subscriptions(redis_server.url)
    for number in range(200):
        subscriptions.listen([f"queue:{number}"])
    await subscribed(redis_server, "queue:199")
    redis_server.command("CONFIG", "RESETSTAT")
    await asyncio.sleep(1)

    stats = redis_server.command("INFO", "commandstats")

    assert set(stats) <= {"cmdstat_ping", "cmdstat_config|resetstat", "cmdstat_info"}
    assert stats["cmdstat_ping"]["calls"] <= 5


async def test_the_connection_is_closed_some_time_after_the_last_listener_left(
    make_subscriptions: Hear, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_WAIT", 0.1)
    subscriptions = make_subscriptions(redis_server.url)
    for _ in range(3):
        listener = subscriptions.listen(["queue:mail"])
        await subscribed(redis_server, "queue:mail")
        listener.close()

        await asyncio.wait(subscription_tasks(), timeout=LONG)

        assert not subscription_tasks()
        await until(lambda: redis_server.command("INFO", "clients")["connected_clients"] == 1)


async def test_closing_ends_every_task_and_listeners_are_notified_after_resume(
    make_subscriptions: Hear, redis_server: RedisServer
) -> None:
    subscriptions = make_subscriptions(redis_server.url)
    listener = subscriptions.listen(["queue:mail"])
    await subscribed(redis_server, "queue:mail")
    await woken(listener)

    await subscriptions.close()

    assert not subscription_tasks()
    await until(lambda: lines(redis_server) == 0)

    subscriptions.resume()
    await woken(listener)
    await subscribed(redis_server, "queue:mail")
    await asleep(listener)
    publish(redis_server, "queue:mail")
    await woken(listener)


async def test_each_event_loop_has_its_own_subscription_and_closes_it(
    make_subscriptions: Hear, redis_server: RedisServer
) -> None:
    subscriptions = make_subscriptions(redis_server.url)
    here = subscriptions.listen(["queue:mail"])
    listening, notified = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        listener = subscriptions.listen(["queue:mail"])
        await subscribed(redis_server, "queue:mail")
        await woken(listener)
        await asleep(listener)
        listening.set()
        await woken(listener)
        notified.set()

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(listening.wait)
    await until(lambda: subscribers(redis_server, "queue:mail") == 2)
    publish(redis_server, "queue:mail")
    await asyncio.to_thread(thread.join, LONG)

    assert notified.is_set()
    await woken(here)
    await until(lambda: lines(redis_server) == 1)


async def test_a_forked_child_subscribes_itself_and_keeps_its_parents_connection(
    make_subscriptions: Hear, redis_server: RedisServer
) -> None:
    subscriptions = make_subscriptions(redis_server.url)
    listener = subscriptions.listen(["queue:mail"])
    await subscribed(redis_server, "queue:mail")
    await woken(listener)
    assert await asleep(listener)

    async def in_the_child() -> None:
        await woken(subscriptions.listen(["queue:news"]))
        await subscriptions.close()

    assert await asyncio.to_thread(forked, lambda: asyncio.run(in_the_child())) == 0

    publish(redis_server, "queue:mail")
    await woken(listener)


def subscription_tasks() -> "list[asyncio.Task[object]]":
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("tenure-subscriptions")]
