"""Finds the server of a partition: the single one, the master that Sentinels name, or the owner of its hash slot."""

import asyncio
import binascii
from collections.abc import Sequence
from typing import Protocol, cast

from redis.exceptions import AuthenticationError, ClusterDownError, RedisError

from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.redis.address import RedisAddress, ServerAddress, instead
from tenure.storage.redis.connection import ServerConnection, error_of, text, why
from tenure.storage.redis.resp import Reply

SLOTS = 1 << 14

ASKING_AROUND = 2.0
"""Seconds that one Sentinel or node has to answer a look-up before the next one is asked."""


_SENTINEL_LOGIN = " (put sentinel_password=... into the URL, and sentinel_username=... if it knows users)"


class Routes(Protocol):
    """Maps partitions to servers. Answers are cached until `doubt` is called."""

    def known(self, base: str) -> ServerAddress | None:
        """Return the server of a partition if it is cached, otherwise None."""
        ...

    async def place(self, base: str) -> ServerAddress:
        """Return the server of a partition.

        Raises:
            RedisError: no Sentinel or node answers at the moment.
        """
        ...

    async def places(self) -> list[ServerAddress]:
        """Return every server that holds one of our partitions."""
        ...

    def moved(self, base: str, to: ServerAddress) -> None:
        """Record the server to which a MOVED reply has redirected a partition."""
        ...

    def doubt(self, silent: ServerAddress | None = None) -> None:
        """Look the servers up again before the next call. The argument is a server that has not answered a call."""
        ...


def routes(address: RedisAddress) -> Routes:
    """Return the routes for an address."""
    match address.kind:
        case "server":
            return _Server(address)
        case "sentinel":
            return _Sentinels(address)
        case "cluster":
            return _Cluster(address)


def slot(base: str) -> int:
    """Return the hash slot of a partition: the slot of the text between the braces."""
    return binascii.crc_hqx(base[1:-1].encode(), 0) % SLOTS


class _Server:
    def __init__(self, address: RedisAddress) -> None:
        self._place = address.places[0]

    def known(self, base: str) -> ServerAddress | None:
        return self._place

    async def place(self, base: str) -> ServerAddress:
        return self._place

    async def places(self) -> list[ServerAddress]:
        return [self._place]

    def moved(self, base: str, to: ServerAddress) -> None:
        pass

    def doubt(self, silent: ServerAddress | None = None) -> None:
        pass


class _Sentinels:
    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._sentinels = list(address.places)
        self._master: ServerAddress | None = None
        self._doubted = True

    def known(self, base: str) -> ServerAddress | None:
        return None if self._doubted else self._master

    async def place(self, base: str) -> ServerAddress:
        if self._doubted or self._master is None:
            try:
                self._master = await self._ask_around()
            except ClusterDownError:
                # Every new connection checks ROLE, so the last known master stays usable without Sentinels.
                if self._master is None:
                    raise
            self._doubted = False
        return self._master

    async def places(self) -> list[ServerAddress]:
        return [await self.place("")]

    def moved(self, base: str, to: ServerAddress) -> None:
        pass

    def doubt(self, silent: ServerAddress | None = None) -> None:
        self._doubted = True

    async def _ask_around(self) -> ServerAddress:
        troubles: list[str] = []
        ignorant = 0
        for sentinel in list(self._sentinels):
            try:
                reply = await _once(
                    sentinel, self._address, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service)
                )
            except (RedisError, OSError) as error:
                reply = error
            if isinstance(reply, BaseException):
                troubles.append(f"{sentinel}: {why(reply)}{_SENTINEL_LOGIN * isinstance(reply, AuthenticationError)}")
                continue
            if isinstance(reply, list):
                host, port = (text(part) for part in cast("list[object]", reply))
                # Ask the Sentinel that knew the master first the next time.
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
                return ServerAddress(host, int(port))
            troubles.append(f"{sentinel}: knows no master {self._address.service!r}")
            ignorant += 1
        if ignorant == len(self._sentinels):
            raise StorageUnavailableError(
                f"{self._address.shown}: no Sentinel there knows a master {self._address.service!r}; check the name "
                "after the hosts"
            )
        raise ClusterDownError(f"no Sentinel names a master ({'; '.join(troubles)})")


class _Cluster:
    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._owners: dict[int, ServerAddress] = {}
        self._last_source: ServerAddress | None = None
        """The node whose CLUSTER SLOTS answer was used last."""
        self._silent: set[ServerAddress] = set()
        """Nodes that did not answer the last request to them."""
        self._doubted = True
        self._asking = asyncio.Lock()

    def known(self, base: str) -> ServerAddress | None:
        return None if self._doubted else self._owners.get(slot(base))

    async def place(self, base: str) -> ServerAddress:
        await self._informed()
        owner = self._owners.get(slot(base))
        if owner is None:
            self._doubted = True
            raise ClusterDownError(f"no node owns hash slot {slot(base)}, which holds {base}")
        return owner

    async def places(self) -> list[ServerAddress]:
        await self._informed()
        return list(dict.fromkeys(self._owners.values()))

    def moved(self, base: str, to: ServerAddress) -> None:
        self._owners[slot(base)] = to

    def doubt(self, silent: ServerAddress | None = None) -> None:
        self._doubted = True
        if silent is not None:
            self._silent.add(silent)

    async def _informed(self) -> None:
        if not self._doubted:
            return
        async with self._asking:
            if self._doubted:
                self._owners = await self._ask_around()
                self._doubted = False

    async def _ask_around(self) -> dict[int, ServerAddress]:
        troubles: list[str] = []
        # Ask known owners before the nodes of the address, which may be outdated. Ask the node that answered last late,
        # because it may be cut off from the others. Ask unresponsive nodes last: waiting for one delays all calls.
        nodes = dict.fromkeys((*self._owners.values(), *self._address.places))
        for node in sorted(nodes, key=lambda node: (node in self._silent, node == self._last_source)):
            try:
                reply = await _once(node, self._address, ("CLUSTER", "SLOTS"))
            except AuthenticationError:
                # The node answers; the login in the address is wrong.
                raise
            except (RedisError, OSError) as error:
                self._silent.add(node)
                troubles.append(f"{node}: {why(error)}")
                continue
            self._silent.discard(node)
            if (trouble := error_of(reply)) is not None:
                if isinstance(trouble, AuthenticationError):
                    raise trouble
                if "cluster support disabled" in str(trouble):
                    right = instead(self._address, "server", node)
                    raise StorageError(f"{self._address.shown} ({node}) belongs to no Cluster; use {right}")
                troubles.append(f"{node}: {trouble}")
                continue
            owners = _owners(cast("list[list[object]]", reply), node, {slot(base) for base in self._address.bases})
            if owners:
                self._last_source = node
                return owners
            troubles.append(f"{node}: its Cluster has no slots yet")
        raise ClusterDownError(f"no node returned a slot map ({'; '.join(troubles)})")


def _owners(ranges: list[list[object]], answering: ServerAddress, ours: set[int]) -> dict[int, ServerAddress]:
    owners: dict[int, ServerAddress] = {}
    for first, last, master, *_ in ranges:
        host, port = cast("Sequence[object]", master)[:2]
        # A node that does not know its own host name leaves it out: then it is the node that was asked.
        at = ServerAddress(text(host) if host not in (None, b"", b"?") else answering.host, int(cast("int", port)))
        owners.update((slot, at) for slot in ours if cast("int", first) <= slot <= cast("int", last))
    return owners


async def _once(place: ServerAddress, address: RedisAddress, command: tuple[str, ...]) -> Reply:
    async with asyncio.timeout(ASKING_AROUND):
        login = address.sentinel_login if address.kind == "sentinel" else address.login
        link = await ServerConnection.open(place, address, login=login)
        [reply] = await link.ask([command], 1)
        await link.drop()
        return reply
