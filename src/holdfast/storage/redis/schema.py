"""Which layout lies in a namespace: ours, and of our version, or it is left untouched."""

from typing import cast

from holdfast.errors import SchemaMismatchError
from holdfast.storage.redis.connections import Connections

VERSION = b"1"


async def settle_on(connections: Connections, base: str) -> None:
    """Note our version in a namespace that is empty.

    Raises:
        SchemaMismatchError: another version's jobs lie there.
        StorageError: the server is out of reach, or refuses us.
    """
    found = await connections.ask(await connections.place(base), "SET", f"{base}:schema", VERSION, "NX", "GET")
    if found is not None and cast(bytes, found) != VERSION:
        raise SchemaMismatchError(
            f"{connections.address.shown} holds jobs of schema {cast(bytes, found).decode(errors='replace')}, this "
            f"Holdfast is of schema {VERSION.decode()}; it was left untouched. Use the version that wrote them, or "
            "another namespace"
        )
