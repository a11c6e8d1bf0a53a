"""The audit log on a real server: a page is one script, and an act is recorded although the memory is full."""

import pytest

from tenure.core.audit import OperatorAct
from tenure.core.job import NewJob
from tenure.errors import StorageFullError
from tenure.storage.protocol import ActsQuery
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tests.servers import RedisServer


def new_act(id: str, *, verdict: str | None = None) -> OperatorAct:  # noqa: A002 - the field's own name
    return OperatorAct(id=id, actor="ann", role="admin", via="api", action="dead.purge", target="mail", verdict=verdict)


async def test_an_act_is_recorded_on_a_server_whose_memory_is_full(redis_server: RedisServer) -> None:
    storage = RedisStorage(read(redis_server.url))
    await storage.open()
    redis_server.command("CONFIG", "SET", "maxmemory", "1kb")
    try:
        with pytest.raises(StorageFullError):
            await storage.enqueue([NewJob(queue="mail", id="1", task="send", payload=b"{}")])
        await storage.record_act(new_act("1"))
        await storage.record_act(new_act("1", verdict="done"))
    finally:
        redis_server.command("CONFIG", "SET", "maxmemory", "0")
    [act] = (await storage.acts(ActsQuery())).acts
    await storage.close()

    assert act.verdict == "done"


async def test_a_page_of_the_audit_log_is_one_script(redis_server: RedisServer) -> None:
    storage = RedisStorage(read(redis_server.url))
    for number in range(120):
        await storage.record_act(new_act(f"{number}"))
    # The first call of a script loads it.
    await storage.acts(ActsQuery())
    before = calls(redis_server)
    page = await storage.acts(ActsQuery(limit=100))
    used = calls(redis_server) - before
    rest = await storage.acts(ActsQuery(limit=100, after=page.next))
    await storage.close()

    assert used == 1
    assert [int(act.id) for act in page.acts + rest.acts] == list(range(119, -1, -1))


def calls(server: RedisServer) -> int:
    """Return how many scripts it has run so far."""
    return int(server.command("INFO", "commandstats")["cmdstat_evalsha"]["calls"])
