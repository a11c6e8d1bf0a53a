"""Finds keys of a namespace that hold a value of the wrong type, for error messages and `tenure doctor`."""

import asyncio
import re
from contextlib import suppress
from typing import cast

from tenure.errors import StorageError
from tenure.storage.protocol import Finding
from tenure.storage.redis.connections import Connections

_KINDS = {
    "string": "job load result data schema identity claims",
    "list": "runs log calls",
    "stream": "events",
    "hash": "limits named beats traces sweep settings discarded workers answers leader counters readers schedules "
    "window reach limited_for fair tenants moves tasks schemas act minutes hours",
    "zset": "queues in ages ready parked places opening delayed dues leases suspects held aging kept redrives over "
    "failed faults slots merge busy unknown queued running seen windows taken limited tags ticks reached resumed clock "
    "published acts",
    "set": "",
}
TYPES = {kind: of for of, kinds in _KINDS.items() for kind in kinds.split()}
"""The value type of each kind of key."""

WRONG_TYPE = "WRONGTYPE"
"""The text in a server's error if a key holds a value of the wrong type."""

_MOST = 10
_AT_ONCE = 1000


async def named(connections: Connections, base: str, error: StorageError) -> StorageError:
    """Return the error with the names of the keys that hold a wrong type, as many as are found within two seconds."""
    wrong: list[str] = []
    with suppress(StorageError, TimeoutError):
        async with asyncio.timeout(2.0):
            await find_wrong(connections, base, wrong)
    return StorageError(f"{error}: {'; '.join(wrong)}. Run tenure doctor") if wrong else error


async def examine_types(connections: Connections, base: str) -> Finding:
    """Return a finding about the keys of a partition that hold values of the wrong type."""
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
    """Append descriptions of a partition's keys with values of the wrong type to `wrong`, ten at most.

    Raises:
        StorageError: the server cannot be asked.
    """
    pattern = re.sub(r"([\[\]*?\\^])", r"\\\1", base) + ":*"
    for of in _KINDS:
        cursor = b"0"
        while len(wrong) < _MOST:
            reply = await connections.run_command(base, "SCAN", cursor, "MATCH", pattern, "COUNT", _AT_ONCE, "TYPE", of)
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
