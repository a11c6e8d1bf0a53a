"""Eight threads on one server, each with its own storage and the real clock: the invariants must hold."""

import pytest

from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tests.servers import RedisServer
from tests.storage.concurrent_threads import run_threads

ABOUT_THE_UNFINISHED = (
    *("aging", "ages", "delayed", "dues", "held", "in", "leases", "limits", "merge", "busy", "named", "opening"),
    *("parked", "places", "queued", "ready", "running", "slots", "suspects", "tenants"),
)
"""Kinds of keys that exist only while a job is unfinished. Keys that end in the name of a final state do not count."""


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.statement(76, 77, 78)
def test_eight_threads_on_one_server_keep_the_invariants(redis_server: RedisServer) -> None:
    run_threads(lambda: RedisStorage(read(redis_server.url)))

    over = (b"completed", b"failed", b"cancelled", b"expired")
    keys: list[bytes] = redis_server.command("KEYS", "*")
    left = [key for key in keys if key.split(b":")[1].decode() in ABOUT_THE_UNFINISHED and not key.endswith(over)]
    assert not left
