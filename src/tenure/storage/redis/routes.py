"""Which server holds a cell: the only one, the master that Sentinels name, or the one that owns its hash slot."""

import asyncio
import binascii
from collections.abc import Sequence
from typing import Protocol, cast

from redis.exceptions import AuthenticationError, ClusterDownError, RedisError

from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.redis.address import RedisAddress, ServerAddress, instead
from tenure.storage.redis.connection import ServerConnection, said, text, why
from tenure.storage.redis.resp import Reply

SLOTS = 1 << 14

ASKING_AROUND = 2.0
"""Seconds that one Sentinel or node gets to say who is who, before the next one is asked."""


_SENTINEL_LOGIN = " (put sentinel_password=... into the URL, and sentinel_username=... if it knows users)"


class Routes(Protocol):
    """The way to the servers. What is known is kept until it is doubted."""

    def known(self, base: str) -> ServerAddress | None:
        """Return where a cell is, if nobody has to be asked."""
        ...

    async def place(self, base: str) -> ServerAddress:
        """Return where a cell is.

        Raises:
            RedisError: nobody can tell at the moment.
        """
        ...

    async def places(self) -> list[ServerAddress]:
        """Return every server that holds cells of ours."""
        ...

    def moved(self, base: str, to: ServerAddress) -> None:
        """Take a server's word for where a cell is."""
        ...

    def doubt(self, mute: ServerAddress | None = None) -> None:
        """Ask anew before the next call; `mute`: who has not answered one."""
        ...


def routes(address: RedisAddress) -> Routes:
    """Return the way to the servers of an address."""
    match address.kind:
        case "server":
            return _Server(address)
        case "sentinel":
            return _Sentinels(address)
        case "cluster":
            return _Cluster(address)


def slot(base: str) -> int:
    """Return the hash slot of a cell: that of what stands between its braces."""
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

    def doubt(self, mute: ServerAddress | None = None) -> None:
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
                # Who was the master is asked for his role by whoever connects, and needs no Sentinel to go on.
                if self._master is None:
                    raise
            self._doubted = False
        return self._master

    async def places(self) -> list[ServerAddress]:
        return [await self.place("")]

    def moved(self, base: str, to: ServerAddress) -> None:
        pass

    def doubt(self, mute: ServerAddress | None = None) -> None:
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
                # Who could tell now is asked first the next time.
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
        self._told: ServerAddress | None = None
        """Who has told last who owns what."""
        self._mute: set[ServerAddress] = set()
        """Who said nothing when last asked for anything."""
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

    def doubt(self, mute: ServerAddress | None = None) -> None:
        self._doubted = True
        if mute is not None:
            self._mute.add(mute)

    async def _informed(self) -> None:
        if not self._doubted:
            return
        async with self._asking:
            if self._doubted:
                self._owners = await self._ask_around()
                self._doubted = False

    async def _ask_around(self) -> dict[int, ServerAddress]:
        troubles: list[str] = []
        # Who is known to be in it before those who were once, when the address was written. What was told last is in
        # doubt, and who told it may be cut off from the others; to wait for one that says nothing holds up all calls.
        nodes = dict.fromkeys((*self._owners.values(), *self._address.places))
        for node in sorted(nodes, key=lambda node: (node in self._mute, node == self._told)):
            try:
                reply = await _once(node, self._address, ("CLUSTER", "SLOTS"))
            except AuthenticationError:
                # It is there, and so is the mistake, which is the address's.
                raise
            except (RedisError, OSError) as error:
                self._mute.add(node)
                troubles.append(f"{node}: {why(error)}")
                continue
            self._mute.discard(node)
            if (trouble := said(reply)) is not None:
                if isinstance(trouble, AuthenticationError):
                    raise trouble
                if "cluster support disabled" in str(trouble):
                    right = instead(self._address, "server", node)
                    raise StorageError(f"{self._address.shown} ({node}) belongs to no Cluster; use {right}")
                troubles.append(f"{node}: {trouble}")
                continue
            owners = _owners(cast("list[list[object]]", reply), node, {slot(base) for base in self._address.bases})
            if owners:
                self._told = node
                return owners
            troubles.append(f"{node}: its Cluster has no slots yet")
        raise ClusterDownError(f"no node tells who owns which slot ({'; '.join(troubles)})")


def _owners(ranges: list[list[object]], asked: ServerAddress, ours: set[int]) -> dict[int, ServerAddress]:
    owners: dict[int, ServerAddress] = {}
    for first, last, master, *_ in ranges:
        host, port = cast("Sequence[object]", master)[:2]
        # A node that was not told its own name leaves it out: it is who was asked.
        at = ServerAddress(text(host) if host not in (None, b"", b"?") else asked.host, int(cast("int", port)))
        owners.update((one, at) for one in ours if cast("int", first) <= one <= cast("int", last))
    return owners


async def _once(place: ServerAddress, address: RedisAddress, command: tuple[str, ...]) -> Reply:
    async with asyncio.timeout(ASKING_AROUND):
        login = address.sentinel_login if address.kind == "sentinel" else address.login
        link = await ServerConnection.open(place, address, login=login)
        [reply] = await link.ask([command], 1)
        await link.drop()
        return reply
