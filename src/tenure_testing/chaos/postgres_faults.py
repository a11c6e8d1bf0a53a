"""Faults of a PostgreSQL server: ended, frozen, full, without free connections, with conflicts or old snapshots."""

import asyncio
import contextlib
import signal
from typing import Any

import psycopg

from tenure.errors import StorageUnavailableError
from tenure_testing.chaos.faults import RESTART, Fault, Field
from tenure_testing.chaos.network_faults import NETWORK
from tenure_testing.chaos.postgres_storage import CONNECTIONS, ROLE, ChaosPostgres
from tenure_testing.chaos.storage import fill

FROZEN = (1.0, 10.0)
FULL = (1.0, 8.0)
EXHAUSTED = (2.0, 10.0)
CONFLICTS = (3.0, 15.0)
"""Seconds for which a server is frozen, has no space, has no free connection, or lets transactions fail."""

HELD = (60.0, 120.0)
"""Seconds for which a snapshot is held."""

ROUND = 0.5
"""Seconds between two times at which the connections of all processes are ended, while none is free."""

CAUGHT = 5.0
"""Seconds for which a deadlock is attempted."""


async def restart_server(field: Field) -> bool:
    """Shut the server down in order, and start it again."""
    return await _down(field, "restart server", signal.SIGINT)


async def immediate_shutdown(field: Field) -> bool:
    """Shut the server down without a checkpoint, and start it again: it recovers what it had written."""
    return await _down(field, "immediate shutdown", signal.SIGQUIT)


async def kill_server(field: Field) -> bool:
    """Kill all processes of the server, and start it again."""
    return await _down(field, "kill server", signal.SIGKILL)


async def frozen_server(field: Field) -> bool:
    """Stop all processes of the server for some time, with all connections open."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        deed = field.note("frozen server", "outage", "storage")
        storage.freeze()
        try:
            await field.rest(FROZEN)
        finally:
            storage.thaw()
        await field.healed(deed)
    return True


async def terminate_backends(field: Field) -> bool:
    """Let the server end all connections, in the middle of any transaction."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        deed = field.note("terminate backends", "outage", "storage")
        for _ in range(field.rng.choice((1, 3, 10))):
            await storage.terminate()
            await field.rest((0.0, 0.2))
        await field.healed(deed)
    return True


async def exhausted_connections(field: Field) -> bool:
    """Take every free connection of the server, and end those that the processes have, again and again."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        held: list[psycopg.AsyncConnection[Any]] = []
        deed = field.note("exhausted connections", "outage", "storage")
        until = field.now() + field.length(EXHAUSTED) * 1_000_000
        try:
            while field.now() < until:
                await _take_all(storage, held)
                await storage.terminate()
                await _take_all(storage, held)
                await field.rest((ROUND, ROUND))
        finally:
            for connection in held:
                await connection.close()
        await field.healed(deed)
    return True


async def held_snapshot(field: Field) -> bool:
    """Hold a snapshot for a minute or more. Vacuum removes nothing meanwhile; nothing is excused by it."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("snapshot"):
        return False
    with field.striking("snapshot"):
        try:
            connection = await storage.connect()
        except StorageUnavailableError:
            return False
        deed = field.note("held snapshot", "none", "storage")
        with contextlib.suppress(psycopg.Error):
            # Another fault may end the connection.
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await connection.execute("SELECT txid_current_snapshot()")
        await field.rest(HELD)
        await connection.close()
        field.over(deed)
    return True


async def full_disk(field: Field) -> bool:
    """Fill the server's disk to its last byte. The server may end; it is then started again."""
    storage = _storage_of(field)
    if storage is None or "full disk" in storage.without or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        filler = storage.disk / "filler"
        deed = field.note("full disk", "outage", "storage")
        try:
            await asyncio.to_thread(fill, filler)
            await field.rest(FULL)
        finally:
            filler.unlink(missing_ok=True)
            await storage.start()
        await field.healed(deed)
    return True


async def conflicts(field: Field) -> bool:
    """Let statements and commits fail with serialization failures and deadlocks, at random."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        deed = field.note("conflicts", "outage", "storage")
        try:
            await storage.sabotage(on=True)
            await field.rest(CONFLICTS)
        finally:
            await storage.sabotage(on=False)
        await field.healed(deed)
    return True


async def deadlock(field: Field) -> bool:
    """Lock a table, and ask for the lock that a transaction has which waits for it. The server ends one of the two."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        deed = field.note("deadlock", "outage", "storage")
        connection = await storage.connect()
        try:
            # The other transaction, which waits already, is to find the deadlock.
            await connection.execute("SET deadlock_timeout = '10s'")
            await connection.execute("BEGIN")
            await connection.execute(f"LOCK TABLE {storage.schema}.job IN SHARE ROW EXCLUSIVE MODE".encode())
            until = field.now() + field.length((CAUGHT, CAUGHT)) * 1_000_000
            while field.now() < until:
                waiting = await connection.execute(
                    "SELECT FROM pg_locks WHERE NOT granted AND relation = %s::regclass", [f"{storage.schema}.job"]
                )
                if waiting.rowcount:
                    await connection.execute("SELECT pg_advisory_xact_lock(%s)", [storage.gate])
                    break
            await connection.rollback()
        finally:
            await connection.close()
        await field.healed(deed)
    return True


POSTGRES: dict[str, Fault] = {
    "restart server": restart_server,
    "immediate shutdown": immediate_shutdown,
    "kill server": kill_server,
    "frozen server": frozen_server,
    "terminate backends": terminate_backends,
    "exhausted connections": exhausted_connections,
    "held snapshot": held_snapshot,
    "full disk": full_disk,
    "conflicts": conflicts,
    "deadlock": deadlock,
    **NETWORK,
}
"""Faults of a PostgreSQL server and its network, by name."""


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


async def _take_all(storage: ChaosPostgres, held: list[psycopg.AsyncConnection[Any]]) -> None:
    while len(held) < CONNECTIONS:
        try:
            held.append(await storage.connect(ROLE))
        except StorageUnavailableError:
            # All connections are taken.
            return


def _storage_of(field: Field) -> ChaosPostgres | None:
    return field.storage if isinstance(field.storage, ChaosPostgres) else None
