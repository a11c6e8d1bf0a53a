"""A master watched by sentinels, for the tests: it fails, and another is promoted."""

from pathlib import Path
from typing import Any

from tests.servers import REDIS, Brand, RedisServer, Startable, until

SERVICE = "jobs"
"""The name under which the sentinels know the master."""

HASTE = ("INFO-PERIOD", 200, "PUBLISH-PERIOD", 200, "PING-PERIOD", 400, "ASK-PERIOD", 100)
"""How often sentinels ping, in milliseconds; by default every 1 to 10 s, which is too long for tests.

Once a master is down its replicas are asked for their state each second, and a state is valid for five pings: with
shorter ones there would sometimes be no replica fit for promotion.
"""


class RedisSentinels(Startable):
    """A master, its replicas, and three sentinels with short timeouts, on free ports of the loopback."""

    def __init__(
        self, folder: Path, *, replicas: int = 2, down_after: int = 500, brand: Brand = REDIS, **config: Any
    ) -> None:
        self._scheme = brand.name
        self._folder = folder
        self._down_after = down_after
        self._brand = brand
        self._config = config
        self.servers = [RedisServer(folder / "server-1", brand=brand, **config)]
        self.sentinels: list[RedisServer] = []
        self._replicas = replicas

    @property
    def url(self) -> str:
        """The address, without a namespace."""
        return f"{self._scheme}+sentinel://{','.join(sentinel.address for sentinel in self.sentinels)}/{SERVICE}/0"

    @property
    def master(self) -> RedisServer:
        """The server that the first sentinel names as the master."""
        return self._at(_master_port(self.sentinels[0]))

    @property
    def replicas(self) -> list[RedisServer]:
        """The other servers."""
        return [server for server in self.servers if server is not self.master]

    def start(self) -> None:
        """Start them all, and return when each sentinel knows the servers and the other sentinels."""
        first = self.servers[0]
        first.start()
        for number in range(self._replicas):
            folder = self._folder / f"server-{number + 2}"
            self.servers.append(
                RedisServer(folder, brand=self._brand, replicaof=f"127.0.0.1 {first.port}", **self._config)
            )
            self.servers[-1].start()
        self.settle()
        for number in range(3):
            watch = {
                f"sentinel monitor {SERVICE}": f"127.0.0.1 {first.port} 2",
                f"sentinel down-after-milliseconds {SERVICE}": self._down_after,
                f"sentinel failover-timeout {SERVICE}": 1_000,
            }
            folder = self._folder / f"sentinel-{number + 1}"
            self.sentinels.append(RedisServer(folder, brand=self._brand, mode="--sentinel", **watch))
            self.sentinels[-1].start()
            self.sentinels[-1].command("SENTINEL", "DEBUG", *HASTE)
        until(
            lambda: all(self._acquainted(sentinel) for sentinel in self.sentinels), "the sentinels to know each other"
        )

    def kill(self) -> None:
        """Kill them all, the sentinels first."""
        for sentinel in (*self.sentinels, *self.servers):
            sentinel.kill()

    def settle(self) -> None:
        """Return when one server is the master, and all others that are up follow it."""
        until(self._settled, "one master, and replicas that follow it")

    def fail_over(self) -> RedisServer:
        """Have the sentinels promote another server by a failover; return it when all know."""
        before = self.master
        self.sentinels[0].command("SENTINEL", "FAILOVER", SERVICE)
        return self.successor(before)

    def lose(self) -> RedisServer:
        """Kill the master; return the one that was promoted when all know."""
        before = self.master
        before.kill()
        return self.successor(before)

    def successor(self, before: RedisServer) -> RedisServer:
        """Wait until all sentinels name another master than this one, and return it."""
        until(
            lambda: (
                len(ports := {_master_port(sentinel) for sentinel in self.sentinels}) == 1 and ports != {before.port}
            ),
            "another master",
        )
        self.settle()
        # One that still handles the old master would not notice the new one's death.
        until(lambda: all(_calm(sentinel) for sentinel in self.sentinels), "the sentinels to be done with the change")
        return self.master

    def _settled(self) -> bool:
        up = [server for server in self.servers if server.running]
        roles = [server.command("ROLE") for server in up]
        masters = [server.port for server, role in zip(up, roles, strict=True) if role[0] == b"master"]
        followed = {(role[2], role[3]) for role in roles if role[0] != b"master"}
        return len(masters) == 1 and followed <= {(masters[0], b"connected")}

    def _acquainted(self, sentinel: RedisServer) -> bool:
        state = sentinel.command("SENTINEL", "MASTER", SERVICE)
        return (int(state[b"num-slaves"]), int(state[b"num-other-sentinels"])) == (self._replicas, 2)

    def _at(self, port: int) -> RedisServer:
        return next(server for server in self.servers if server.port == port)


def _calm(sentinel: RedisServer) -> bool:
    """Return whether a sentinel sees nothing wrong with the master, and does nothing about it."""
    flags: bytes = sentinel.command("SENTINEL", "MASTER", SERVICE)[b"flags"]
    return flags == b"master"


def _master_port(sentinel: RedisServer) -> int:
    """Return the port of the server that a sentinel names as the master."""
    _, port = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
    return int(port)
