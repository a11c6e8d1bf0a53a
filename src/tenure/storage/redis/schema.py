"""Records and checks a namespace's layout: the schema version and the number of partitions.

A namespace with another layout is left untouched.
"""

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

VERSION = 3
"""The schema version. In version 1, a record was one msgpack map of its fields. Version 3 renamed stored fields."""


async def settle_on(connections: Connections, bases: Sequence[str]) -> None:
    """Write our layout into each empty partition of a namespace. An unreachable one gets it at a later start.

    Raises:
        SchemaMismatchError: the namespace holds jobs of another version, or in another number of partitions.
        StorageError: no server answers, or one refuses us.
    """
    ours = layout_of(len(bases))
    # Read first: a full server accepts no SET, not even one that changes nothing, and workers that reconnect to it
    # must be able to settle jobs.
    looks = [ScriptCall(None, base, ("GET", f"{base}:schema")) for base in bases]
    found = await connections.outcomes(looks)
    _check(found, ours, connections.address.shown)
    empty = [base for base, layout in zip(bases, found, strict=True) if layout is None]
    if empty:
        request = _encode({"layout": ours, "fresh": new_identity()})
        notes = [ScriptCall(verb("create"), base, (b"", request)) for base in empty]
        _check(await connections.outcomes(notes), ours, connections.address.shown)


def _check(found: Sequence[Reply], ours: str, shown: str) -> None:
    """Check the layouts found, one for each partition.

    Raises:
        SchemaMismatchError: a layout is not ours.
        StorageError: a server refused us, or none answered.
    """
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
                "that wrote them and the same number of partitions, or another namespace"
            )


async def examine_layout(connections: Connections, base: str, *, partitions: int) -> list[Finding]:
    """Return a finding about a namespace's layout; none if the server cannot be asked, which is a finding elsewhere."""
    try:
        found = await connections.run_command(base, "GET", f"{base}:schema")
    except StorageError:
        return []
    if found is None:
        return [Finding("ok", "schema", "nothing lies in the namespace yet")]
    theirs, ours = cast(bytes, found).decode(errors="replace"), layout_of(partitions)
    if theirs == ours:
        return [Finding("ok", "schema", ours)]
    remedy = "use the Tenure that wrote them and the same number of partitions, or another namespace"
    return [Finding("error", "schema", f"jobs of {theirs} lie there, this was asked for {ours}", remedy)]


def layout_of(partitions: int) -> str:
    """Return the layout text that is stored in each partition."""
    return f"schema {VERSION} in {partitions} {'partition' if partitions == 1 else 'partitions'}"
