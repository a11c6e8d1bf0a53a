"""Which layout lies in a namespace: ours, of our version, in so many cells, or it is left untouched."""

from collections.abc import Sequence
from typing import cast

import msgspec

from tenure.errors import SchemaMismatchError, StorageError, StorageUnavailableError
from tenure.storage.protocol import Finding
from tenure.storage.redis.connections import Connections, ScriptCall
from tenure.storage.redis.renew import new_identity
from tenure.storage.redis.resp import Reply
from tenure.storage.redis.script_library import verb

_encode = msgspec.msgpack.Encoder().encode

VERSION = 2
"""1: a record was one msgpack map of its fields."""


async def settle_on(connections: Connections, bases: Sequence[str]) -> None:
    """Note our layout in each cell of a namespace that is empty; a cell that is out of reach does so at another start.

    Raises:
        SchemaMismatchError: another version's jobs lie there, or they lie in another number of cells.
        StorageError: no server answers, or one refuses us.
    """
    ours = layout_of(len(bases))
    # Looked at first: a server that is full takes no SET, not even one that would change nothing, and those who come
    # back to it must be able to let jobs end.
    looks = [ScriptCall(None, base, ("GET", f"{base}:schema")) for base in bases]
    found = await connections.outcomes(looks)
    _check(found, ours, connections.address.shown)
    empty = [base for base, layout in zip(bases, found, strict=True) if layout is None]
    if empty:
        asked = _encode({"layout": ours, "fresh": new_identity()})
        notes = [ScriptCall(verb("create"), base, (b"", asked)) for base in empty]
        _check(await connections.outcomes(notes), ours, connections.address.shown)


def _check(found: Sequence[Reply], ours: str, shown: str) -> None:
    """Raise what keeps us from working with these layouts, one of each cell."""
    away = [layout for layout in found if isinstance(layout, StorageUnavailableError)]
    if len(away) == len(found):
        raise away[0]
    for layout in found:
        if isinstance(layout, BaseException) and not isinstance(layout, StorageUnavailableError):
            raise layout
        theirs = layout.decode(errors="replace") if isinstance(layout, bytes) else ours
        if theirs != ours:
            raise SchemaMismatchError(
                f"{shown} holds jobs of {theirs}, this was asked for {ours}; it was left untouched. Use the Tenure "
                "that wrote them and the same number of cells, or another namespace"
            )


async def examine_layout(connections: Connections, base: str, *, cells: int) -> list[Finding]:
    """Say which layout lies in a namespace; nothing where that cannot be told, for that is a finding by itself."""
    try:
        found = await connections.tell(base, "GET", f"{base}:schema")
    except StorageError:
        return []
    if found is None:
        return [Finding("ok", "schema", "nothing lies in the namespace yet")]
    theirs, ours = cast(bytes, found).decode(errors="replace"), layout_of(cells)
    if theirs == ours:
        return [Finding("ok", "schema", ours)]
    remedy = "use the Tenure that wrote them and the same number of cells, or another namespace"
    return [Finding("error", "schema", f"jobs of {theirs} lie there, this was asked for {ours}", remedy)]


def layout_of(cells: int) -> str:
    """Return what is written down in each of so many cells."""
    return f"schema {VERSION} in {cells} {'cell' if cells == 1 else 'cells'}"
