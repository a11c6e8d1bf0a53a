"""Which layout lies in a namespace: ours, of our version, in so many cells, or it is left untouched."""

from typing import cast

from holdfast.errors import SchemaMismatchError, StorageError
from holdfast.storage.protocol import Finding
from holdfast.storage.redis.connections import Connections

VERSION = 2
"""1: a record was one msgpack map of its fields."""


async def settle_on(connections: Connections, base: str, *, cells: int) -> None:
    """Note our layout in a namespace that is empty.

    Raises:
        SchemaMismatchError: another version's jobs lie there, or they lie in another number of cells.
        StorageError: the server is out of reach, or refuses us.
    """
    ours = _layout(cells)
    key = f"{base}:schema"
    # Looked at first: a server that is full takes no SET, not even one that would change nothing, and those who come
    # back to it must be able to let jobs end.
    found = await connections.tell(base, "GET", key) or await connections.tell(base, "SET", key, ours, "NX", "GET")
    theirs = ours if found is None else cast(bytes, found).decode(errors="replace")
    if theirs != ours:
        raise SchemaMismatchError(
            f"{connections.address.shown} holds jobs of {theirs}, this was asked for {ours}; it was left untouched. "
            "Use the Holdfast that wrote them and the same number of cells, or another namespace"
        )


async def examine_layout(connections: Connections, base: str, *, cells: int) -> list[Finding]:
    """Say which layout lies in a namespace; nothing where that cannot be told, for that is a finding by itself."""
    try:
        found = await connections.tell(base, "GET", f"{base}:schema")
    except StorageError:
        return []
    if found is None:
        return [Finding("ok", "schema", "nothing lies in the namespace yet")]
    theirs, ours = cast(bytes, found).decode(errors="replace"), _layout(cells)
    if theirs == ours:
        return [Finding("ok", "schema", ours)]
    remedy = "use the Holdfast that wrote them and the same number of cells, or another namespace"
    return [Finding("error", "schema", f"jobs of {theirs} lie there, this was asked for {ours}", remedy)]


def _layout(cells: int) -> str:
    return f"schema {VERSION} in {cells} {'cell' if cells == 1 else 'cells'}"
