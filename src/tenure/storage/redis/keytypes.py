"""Which keys of a namespace hold the wrong type of value: named in errors, and by `tenure doctor`."""

import asyncio
import re
from contextlib import suppress
from typing import cast

from tenure.errors import StorageError
from tenure.storage.protocol import Finding
from tenure.storage.redis.connections import Connections

_KINDS = {
    "string": "job load result schema identity claims",
    "list": "runs log calls",
    "stream": "events",
    "hash": "limits named beats traces sweep settings discarded workers answers leader counters readers schedules "
    "window reach fair tenants",
    "zset": "queues in ages ready parked places opening delayed dues leases suspects held aging kept redrives over "
    "slots merge busy unknown queued running seen windows taken tags ticks reached resumed clock",
    "set": "",
}
TYPES = {kind: of for of, kinds in _KINDS.items() for kind in kinds.split()}
"""The type of each kind of key."""

WRONG_TYPE = "WRONGTYPE"
"""What a server's error begins with, or has in it, if a key holds the wrong type of value."""

_MOST = 10
_AT_ONCE = 1000


async def named(connections: Connections, base: str, error: StorageError) -> StorageError:
    """Return an error that also names the keys that hold the wrong type of value, as far as two seconds suffice."""
    wrong: list[str] = []
    with suppress(StorageError, TimeoutError):
        async with asyncio.timeout(2.0):
            await find_wrong(connections, base, wrong)
    return StorageError(f"{error}: {'; '.join(wrong)}. Run tenure doctor") if wrong else error


async def examine_types(connections: Connections, base: str) -> Finding:
    """Say which keys of a cell hold the wrong type of value."""
    wrong: list[str] = []
    await find_wrong(connections, base, wrong)
    if not wrong:
        return Finding("ok", "keys", f"all keys of {base} hold the right types of values")
    return Finding(
        "error",
        "keys",
        f"other programs wrote to the namespace: {'; '.join(wrong)}",
        "delete these keys (they hold nothing of ours), and give those programs another namespace or database",
    )


async def find_wrong(connections: Connections, base: str, wrong: list[str]) -> None:
    """Add the keys of a cell that hold the wrong type of value, the first ten.

    Raises:
        StorageError: the server cannot be asked.
    """
    pattern = re.sub(r"([\[\]*?\\^])", r"\\\1", base) + ":*"
    for of in _KINDS:
        cursor = b"0"
        while len(wrong) < _MOST:
            reply = await connections.tell(base, "SCAN", cursor, "MATCH", pattern, "COUNT", _AT_ONCE, "TYPE", of)
            if not isinstance(reply, list):
                break
            cursor, names = cast("tuple[bytes, list[bytes]]", reply)
            for name in names:
                shown = name.decode(errors="replace")
                right = TYPES.get(shown[len(base) + 1 :].partition(":")[0])
                if right is not None and right != of:
                    wrong.append(f"{shown!r} is a {of}, where a {right} must be")
            if cursor == b"0":
                break
