"""Faults of the network between the processes and a server, which all servers can have."""

from collections.abc import Awaitable, Callable

from tenure_testing.chaos.faults import Fault, Field
from tenure_testing.chaos.networks import Networks
from tenure_testing.proxy import Proxy

AWAY = (2.0, 10.0)
"""Seconds for which a server is unreachable for one member or for all."""

BAD = (3.0, 15.0)
"""Seconds for which a network is slow, and drops connections and replies."""

LATENCY, JITTER = 0.5, 0.2
"""Seconds that are added in each direction."""

RESETS = (0.5, 3.0)
"""Seconds between two lost connections in a bad network."""

CUT = 40
"""The largest number of bytes of a reply that pass before it is cut."""


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
    server = _networks_of(field)
    if server is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        deed = field.note("refusing network", "outage", "storage")
        try:
            for network in server.networks():
                network.set_faults(refuse=True)
            await field.rest(AWAY)
        finally:
            for network in server.networks():
                network.clean()
        await field.healed(deed)
    return True


NETWORK: dict[str, Fault] = {
    "bad network": bad_network,
    "black hole": black_hole,
    "partition": partition,
    "half-open connections": half_open,
    "refusing network": refusing_network,
}
"""Faults of a network, by name."""


async def _cut_off(field: Field, kind: str, strike: Callable[[Proxy], Awaitable[None]]) -> bool:
    """Change the network of one host. The other hosts are not affected."""
    server, member = _networks_of(field), field.free("host")
    # Skip a host during an outage for all. The end of that outage would clear this fault too early.
    if server is None or member is None or field.is_struck("storage"):
        return False
    with field.striking(member.name, "storage"):
        network = server.network(member.name)
        deed = field.note(kind, "outage", member.name, member.pids())
        try:
            await strike(network)
        finally:
            network.clean()
        field.over(deed)
    return True


def _networks_of(field: Field) -> Networks | None:
    return field.storage if isinstance(field.storage, Networks) else None
