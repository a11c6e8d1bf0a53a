"""Faults of a Redis server: killed, shut down, blocked or full, without its scripts, clients or network."""

import contextlib
import signal
from collections.abc import Awaitable, Callable

from tenure.errors import StorageUnavailableError
from tenure.storage.redis.connection import text
from tenure_testing.chaos.faults import RESTART, Fault, Field
from tenure_testing.chaos.redis_storage import ChaosRedis
from tenure_testing.proxy import Proxy

ASLEEP = (1.0, 10.0)
FULL = (1.0, 8.0)
AWAY = (2.0, 10.0)
"""Seconds for which a server is blocked, is out of memory, or is unreachable for one member or for all."""

BAD = (3.0, 15.0)
"""Seconds for which a network is slow, and drops connections and replies."""

LATENCY, JITTER = 0.5, 0.2
"""Seconds that are added in each direction."""

RESETS = (0.5, 3.0)
"""Seconds between two lost connections in a bad network."""

CUT = 40
"""The largest number of bytes of a reply that pass before it is cut."""


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


async def bad_network(field: Field) -> bool:
    """Make the network of a host slow, and lose connections and replies."""

    async def strike(network: Proxy) -> None:
        until = field.now() + field.length(BAD) * 1_000_000
        while field.now() < until:
            network.set_faults(latency=LATENCY, jitter=JITTER, cuts=1, cut_after=field.rng.randrange(CUT))
            await field.rest(RESETS)
            if field.rng.random() < 0.5:
                network.reset()

    return await _cut_off(field, "bad network", strike)


async def black_hole(field: Field) -> bool:
    """Let the network of a host drop all data."""

    async def strike(network: Proxy) -> None:
        network.set_faults(swallow=True)
        await field.rest(AWAY)

    return await _cut_off(field, "black hole", strike)


async def partition(field: Field) -> bool:
    """Hold back all data between a host and the server, and then deliver it at once."""

    async def strike(network: Proxy) -> None:
        network.set_faults(hold=True)
        await field.rest(AWAY)

    return await _cut_off(field, "partition", strike)


async def half_open(field: Field) -> bool:
    """Make the connections of a host silent forever. New ones work."""

    async def strike(network: Proxy) -> None:
        network.abandon()
        await field.rest(AWAY)

    return await _cut_off(field, "half-open connections", strike)


async def refusing_network(field: Field) -> bool:
    """Make the server unreachable: reset and refuse all connections."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        deed = field.note("refusing network", "outage", "storage")
        try:
            for network in storage.networks():
                network.set_faults(refuse=True)
            await field.rest(AWAY)
        finally:
            for network in storage.networks():
                network.clean()
        await field.healed(deed)
    return True


REDIS: dict[str, Fault] = {
    "kill server": kill_server,
    "shut down server": shut_down_server,
    "sleeping server": sleeping_server,
    "flush scripts": flush_scripts,
    "kill clients": kill_clients,
    "full memory": full_memory,
    "bad network": bad_network,
    "black hole": black_hole,
    "partition": partition,
    "half-open connections": half_open,
    "refusing network": refusing_network,
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


async def _cut_off(field: Field, kind: str, strike: Callable[[Proxy], Awaitable[None]]) -> bool:
    """Change the network of one host. The other hosts are not affected."""
    storage, member = _storage_of(field), field.free("host")
    # Skip a host during an outage for all. The end of that outage would clear this fault too early.
    if storage is None or member is None or field.is_struck("storage"):
        return False
    with field.striking(member.name, "storage"):
        network = storage.network(member.name)
        deed = field.note(kind, "outage", member.name, member.pids())
        try:
            await strike(network)
        finally:
            network.clean()
        field.over(deed)
    return True


def _storage_of(field: Field) -> ChaosRedis | None:
    return field.storage if isinstance(field.storage, ChaosRedis) else None
