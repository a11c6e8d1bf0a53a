"""A Redis Cluster for the tests: slots that move under load, masters that fail."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure_testing.proxy import free_port
from tests.servers import REDIS, Brand, RedisServer, Startable, until

SLOTS = 16_384


@dataclass(frozen=True)
class Member:
    """What one node knows of another, or of itself."""

    name: str
    port: int
    role: str
    follows: str
    slots: tuple[tuple[int, int], ...]


class RedisCluster(Startable):
    """Three masters, each with this many replicas, on free ports of the loopback."""

    def __init__(
        self, folder: Path, *, masters: int = 3, replicas: int = 0, brand: Brand = REDIS, **config: Any
    ) -> None:
        config.setdefault("cluster_node_timeout", 1_000)
        config.setdefault("cluster_replica_validity_factor", 0)  # a replica may take over however old its data are
        self._masters = masters
        self._scheme = brand.name
        self.nodes = [
            RedisServer(
                folder / f"node-{number + 1}",
                brand=brand,
                cluster_enabled=True,
                cluster_port=free_port,  # if one is taken in between, another is tried
                **config,
            )
            for number in range(masters * (1 + replicas))
        ]

    @property
    def url(self) -> str:
        """The address, without a namespace."""
        return f"{self._scheme}+cluster://{','.join(node.address for node in self.nodes)}"

    @property
    def masters(self) -> list[RedisServer]:
        """The nodes that hold slots now, in the order of their slots."""
        holders = sorted((item for item in _view(self._up[0]) if item.slots), key=lambda node: node.slots)
        return [self._at(holder.port) for holder in holders]

    def start(self) -> None:
        """Start the nodes, give them slots, and return when each of them reports that all is well."""
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for other in self.nodes[:number]:  # each node meets each other, because gossip alone would take long
                bus = int(other.command("CONFIG", "GET", "cluster-port")[b"cluster-port"])
                node.command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        for number, node in enumerate(self.nodes[: self._masters]):
            first, behind = (SLOTS * edge // self._masters for edge in (number, number + 1))
            node.command("CLUSTER", "ADDSLOTSRANGE", first, behind - 1)
        until(lambda: all(len(_view(node)) == len(self.nodes) for node in self.nodes), "the nodes to meet")
        for number, node in enumerate(self.nodes[self._masters :]):
            node.command("CLUSTER", "REPLICATE", _name(self.nodes[number % self._masters]))
        self.settle()

    def kill(self) -> None:
        """Kill all nodes."""
        for node in self.nodes:
            node.kill()

    def settle(self) -> None:
        """Return when all running nodes report that all is well, agree, and have the data of their masters."""
        until(lambda: all(_well(node) for node in self._up), "the cluster to be well")
        until(lambda: len({_view(node) for node in self._up}) == 1, "the nodes to be of one mind")

    def holder(self, slot: int) -> RedisServer:
        """Return the master that has a slot."""
        return next(
            self._at(item.port)
            for item in _view(self._up[0])
            if any(first <= slot <= last for first, last in item.slots)
        )

    def move(self, slots: Iterable[int], to: RedisServer, *, batch: int = 100) -> None:
        """Move slots to another master, a batch of keys at a time, while other clients write."""
        heir = _name(to)
        for slot in slots:
            source = self.holder(slot)
            if source is to:
                continue
            to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _name(source))
            source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", heir)
            while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, batch):
                source.command("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
            # The new holder first: a client that asks the old one in between is still redirected to it.
            for node in (to, source, *(master for master in self.masters if master not in (to, source))):
                node.command("CLUSTER", "SETSLOT", slot, "NODE", heir)

    def fail_over(self, master: RedisServer) -> RedisServer:
        """Let a replica replace its master by a failover; return it when all nodes know."""
        heir = self.replica_of(master)
        heir.command("CLUSTER", "FAILOVER")
        return self._enthroned(heir)

    def lose(self, master: RedisServer) -> RedisServer:
        """Kill a master; return the replica that has taken its place when all nodes know."""
        heir = self.replica_of(master)
        master.kill()
        return self._enthroned(heir)

    def replica_of(self, master: RedisServer) -> RedisServer:
        """Return a replica of a master."""
        name = _name(master)
        return next(self._at(item.port) for item in _view(master) if item.follows == name)

    def _enthroned(self, heir: RedisServer) -> RedisServer:
        until(lambda: heir.command("ROLE")[0] == b"master", "the replica to take over")
        self.settle()
        return heir

    @property
    def _up(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.running]

    def _at(self, port: int) -> RedisServer:
        return next(node for node in self.nodes if node.port == port)


def _name(node: RedisServer) -> str:
    name: bytes = node.command("CLUSTER", "MYID")
    return name.decode()


def _well(node: RedisServer) -> bool:
    """Return whether a node sees all slots served, and, if it follows a master, has its data."""
    info: bytes = node.command("CLUSTER", "INFO")
    role = node.command("ROLE")
    return b"cluster_state:ok" in info and (role[0] == b"master" or role[3] == b"connected")


def _view(node: RedisServer) -> frozenset[Member]:
    """Return what a node knows of the cluster, without nodes in a handshake and failed ones."""
    text: bytes = node.command("CLUSTER", "NODES")
    view: list[Member] = []
    for line in text.decode().splitlines():
        name, address, flags, follows, _, _, _, _, *slots = line.split()
        if {"handshake", "fail", "noaddr"}.isdisjoint(flags.split(",")):
            port = int(address.partition("@")[0].rpartition(":")[2])
            role = "master" if "master" in flags else "replica"
            view.append(Member(name, port, role, follows, tuple(_range(slot) for slot in slots if slot[0] != "[")))
    return frozenset(view)


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
