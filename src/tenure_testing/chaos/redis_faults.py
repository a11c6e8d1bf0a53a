"""Faults of a Redis server: killed, shut down, blocked or full, without its scripts or clients."""

import contextlib
import signal

from tenure.errors import StorageUnavailableError
from tenure.storage.redis.connection import text
from tenure_testing.chaos.faults import RESTART, Fault, Field
from tenure_testing.chaos.network_faults import NETWORK
from tenure_testing.chaos.redis_storage import ChaosRedis

ASLEEP = (1.0, 10.0)
FULL = (1.0, 8.0)
"""Seconds for which a server is blocked, or is out of memory."""


async def kill_server(field: Field) -> bool:
    """Kill the server, and start it again with the data that it had written."""
    return await _down(field, "kill server", signal.SIGKILL)


async def shut_down_server(field: Field) -> bool:
    """Shut the server down gracefully, and start it again."""
    return await _down(field, "shut down server", signal.SIGTERM)


async def sleeping_server(field: Field) -> bool:
    """Block the server for some time, with all connections open."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        deed = field.note("sleeping server", "outage", "storage")
        with contextlib.suppress(StorageUnavailableError):
            await storage.command("DEBUG", "SLEEP", str(round(field.length(ASLEEP), 2)))
        await field.healed(deed)
    return True


async def flush_scripts(field: Field) -> bool:
    """Let the server forget its scripts. This must have no effect."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    deed = field.note("flush scripts", "none", "storage")
    await storage.command("SCRIPT", "FLUSH")
    field.over(deed)
    return True


async def kill_clients(field: Field) -> bool:
    """Let the server close all connections, in the middle of any reply."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        deed = field.note("kill clients", "outage", "storage")
        for kind in ("normal", "pubsub"):
            await storage.command("CLIENT", "KILL", "TYPE", kind)
        await field.healed(deed)
    return True


async def full_memory(field: Field) -> bool:
    """Leave no memory for new data. Calls for existing jobs must still succeed, so this fault excuses nothing."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        used = text(await storage.command("INFO", "memory")).partition("used_memory:")[2].split()[0]
        deed = field.note("full memory", "none", "storage")
        try:
            await storage.command("CONFIG", "SET", "maxmemory", int(used) // 2)
            await field.rest(FULL)
        finally:
            await storage.command("CONFIG", "SET", "maxmemory", 0)
        field.over(deed)
    return True


REDIS: dict[str, Fault] = {
    "kill server": kill_server,
    "shut down server": shut_down_server,
    "sleeping server": sleeping_server,
    "flush scripts": flush_scripts,
    "kill clients": kill_clients,
    "full memory": full_memory,
    **NETWORK,
}
"""Faults of a Redis server and its network, by name."""


async def _down(field: Field, kind: str, number: signal.Signals) -> bool:
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        deed = field.note(kind, "outage", "storage")
        try:
            await storage.end(number)
            await field.rest(RESTART)
        finally:
            await storage.start()
        await field.healed(deed)
    return True


def _storage_of(field: Field) -> ChaosRedis | None:
    return field.storage if isinstance(field.storage, ChaosRedis) else None
