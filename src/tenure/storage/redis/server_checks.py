"""Checks that servers are fit to hold jobs: at the start, about once a minute later, and for `tenure doctor`.

refused   a server that may drop jobs (an eviction policy), that accepts no writes (a replica), that is too old, that is
          not what the address says, or that cannot be inspected (unless `allow_unchecked=1`)
warned    a server that keeps nothing on disk, that has no replica to confirm writes (durability=replicated), or that
          does not let the user publish notifications
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from redis.exceptions import AuthenticationError, NoPermissionError

from tenure.errors import NotDurableError, StorageError, StorageUnavailableError
from tenure.storage.protocol import Finding
from tenure.storage.redis.address import RedisAddress, ServerAddress, instead
from tenure.storage.redis.connection import error_of, text
from tenure.storage.redis.connections import Connections
from tenure.storage.redis.errors import ours
from tenure.storage.redis.resp import Reply
from tenure.storage.redis.script_library import verb
from tenure.storage.redis.subscriptions import channel

OLDEST: dict[str, tuple[int, int]] = {"Redis": (7, 0), "Valkey": (7, 2)}
"""The oldest supported versions. Earlier ones lack sharded pub/sub, or the script flags that ours need."""

LOOK_AGAIN = 60.0
"""Seconds between two checks while workers run."""

FULL = 0.9
"""The used share of maxmemory from which `tenure doctor` warns."""

VERBS = (
    "create",
    "enqueue",
    "events",
    "exchange",
    "find",
    "get",
    "plan",
    "publish",
    "published",
    "reclaim",
    "renew",
    "resign",
    "revise",
    "survey",
    "sweep",
    "tune",
)
"""The names of all scripts: one for each verb, and `create`."""

NEEDED = (
    *("APPEND", "EVALSHA", "EXISTS", "GET", "HDEL", "HEXISTS", "HGET", "HGETALL", "HINCRBY", "HKEYS", "HMGET", "HSET"),
    *(
        "HSETNX",
        "HVALS",
        "LLEN",
        "LPOP",
        "LRANGE",
        "LTRIM",
        "MGET",
        "MSET",
        "PEXPIRE",
        "RPUSH",
        "SCRIPT",
        "SET",
        "SPUBLISH",
    ),
    *("SSUBSCRIBE", "TIME", "UNLINK", "XADD", "XINFO", "XLEN", "XRANGE", "XTRIM", "ZADD", "ZCARD", "ZCOUNT"),
    *(
        "ZINCRBY",
        "ZMSCORE",
        "ZRANDMEMBER",
        "ZRANGE",
        "ZRANGEBYLEX",
        "ZRANGEBYSCORE",
        "ZREM",
        "ZREMRANGEBYRANK",
        "ZREVRANGEBYSCORE",
        "ZSCORE",
    ),
)
"""The commands that every server must support: those of the scripts and those of the Python code."""

_SETTINGS = ("maxmemory-policy", "appendonly", "appendfsync", "save", "min-replicas-to-write")

_UNCHECKED = "; if you know that all is well there, say so with allow_unchecked=1 in the URL"

logger = logging.getLogger("tenure")


@dataclass(frozen=True)
class ServerFacts:
    """A server's report about itself. `info`: None if the user may not call INFO; hidden settings are missing."""

    place: ServerAddress
    info: Mapping[str, str] | None
    settings: Mapping[str, str]
    refusal: str = ""
    gone: StorageError | None = None
    """The error, if the server cannot be asked at all. Then its partitions wait, and the others go on."""

    @property
    def brand(self) -> str:
        """The product name: Redis or Valkey."""
        info = self.info or {}
        if "valkey_version" in info or info.get("server_name") == "valkey":
            return "Valkey"
        return "Redis"

    @property
    def version(self) -> str:
        """The version that it reports, or "unknown"."""
        info = self.info or {}
        return info.get("valkey_version") or info.get("redis_version") or "unknown"

    @property
    def mode(self) -> str:
        """Its mode: `standalone`, `cluster` or `sentinel`."""
        info = self.info or {}
        return info.get("redis_mode") or info.get("server_mode") or "standalone"  # Valkey has renamed it

    @property
    def policy(self) -> str | None:
        """Its maxmemory-policy; None if it is hidden."""
        return self.settings.get("maxmemory-policy") or (self.info or {}).get("maxmemory_policy")

    @property
    def replica(self) -> bool:
        """True if it is a replica."""
        return (self.info or {}).get("role") == "slave"

    @property
    def appends(self) -> bool:
        """True if it keeps an append-only file."""
        return (self.settings.get("appendonly") or {"1": "yes"}.get(self._info_value("aof_enabled"), "no")) == "yes"

    @property
    def snapshots(self) -> bool | None:
        """True if it is configured to write snapshots; None if the setting is hidden."""
        save = self.settings.get("save")
        return None if save is None else bool(save)

    def number(self, name: str) -> int:
        """Return a number from its INFO, or 0."""
        value = self._info_value(name)
        return int(value) if value.isdecimal() else 0

    def _info_value(self, name: str) -> str:
        return (self.info or {}).get(name, "")


class ServerChecks:
    """Checks every server of a storage."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._address = connections.address
        self._next_look = 0.0
        self._briefly = False
        self._troubles: set[str] = set()
        self._fleeting: set[ServerAddress] = set()
        self._alone: set[ServerAddress] = set()
        self._cannot_publish: set[ServerAddress] = set()

    async def admit(self) -> None:
        """Check the servers before the first job.

        Raises:
            StorageError: a server is unfit to hold jobs, or all are unreachable.
        """
        servers = await inspect(self._connections)
        self._next_look = asyncio.get_running_loop().time() + LOOK_AGAIN
        self._briefly = all("maxmemory_policy" in (server.info or {}) for server in servers if server.gone is None)
        check(servers, self._address)
        await self._try_abilities([server.place for server in servers if server.gone is None])
        fleeting = [server for server in servers if not server.appends and server.snapshots is False]
        if new := _new(fleeting, self._fleeting):
            logger.warning(
                "%s keeps NOTHING on disk: when it restarts, all jobs are gone. Turn appendonly on there, or use "
                "it for tests only",
                new,
            )
        alone = [server for server in servers if server.info and not server.number("connected_slaves")]
        if self._address.durability == "replicated" and (new := _new(alone, self._alone)):
            logger.warning(
                "%s has no replica, so no write can be confirmed (durability=replicated): bring a replica back, or "
                "use durability=ack",
                new,
            )
        for place in await self._without_notifications():
            if place not in self._cannot_publish:
                self._cannot_publish.add(place)
                logger.warning(
                    "%s does not let the user of the URL publish notifications, so workers find new jobs late: %s",
                    place,
                    self._channels,
                )

    @property
    def _channels(self) -> str:
        """The remedy for a user that may not publish and receive notifications."""
        namespace = self._address.namespace
        pattern = f"&{{{namespace}:*" if self._address.kind == "cluster" else f"&{{{namespace}}}*"
        return f"allow it the channels of the namespace (ACL SETUSER its-name '{pattern}', and in the ACL file)"

    async def _without_notifications(self) -> list[ServerAddress]:
        """Return the servers that refuse the user our channels: an ACL user has none unless they are granted."""
        # In a Cluster, each server has its own users, and publishes only on channels of its own slots.
        silent: list[ServerAddress] = []
        try:
            for place, base in (await self._bases()).items():
                [reply] = await self._connections.ask_all(place, [("SPUBLISH", channel(base, "check"), "")])
                if isinstance(reply, NoPermissionError):
                    silent.append(place)
        except StorageError:
            # The next verb raises this error.
            return silent
        return silent

    async def _bases(self) -> dict[ServerAddress, str]:
        """Return one partition of each server."""
        bases: dict[ServerAddress, str] = {}
        for base in self._address.bases:
            bases.setdefault(await self._connections.place(base), base)
        return bases

    async def _try_abilities(self, places: Sequence[ServerAddress]) -> None:
        """Check for missing commands: a service may have renamed or removed one that scripts use only rarely."""
        for place in places:
            [known] = await self._connections.ask_all(place, [("COMMAND", "INFO", *NEEDED)])
            if not isinstance(known, list):
                # A server that hides COMMAND may still support everything.
                continue
            missing = [name for name, info in zip(NEEDED, cast("list[object]", known), strict=True) if not info]
            if missing:
                raise StorageError(
                    f"{self._address.shown} ({place}) does not know {', '.join(missing)}, which the scripts need; undo "
                    "rename-command there, or use another server"
                )

    async def look_again(self) -> list[str]:
        """Return the servers' current troubles, one line each. Checks at most once a minute; logs each trouble once."""
        now = asyncio.get_running_loop().time()
        if now < self._next_look:
            return []
        self._next_look = now + LOOK_AGAIN
        try:
            servers = await inspect(self._connections, briefly=self._briefly)
        except StorageError:
            # The next verb raises this error, too.
            return []
        refusals = [_refusal(server, self._address) for server in servers]
        troubles = [str(refusal) for refusal in refusals if refusal is not None]
        for trouble in troubles:
            if trouble not in self._troubles:
                logger.warning("%s", trouble)
        self._troubles = set(troubles)
        return troubles

    async def examine(self) -> list[Finding]:
        """Return the findings for `tenure doctor`, each problem with its remedy."""
        servers = await inspect(self._connections)
        findings = [finding for server in servers for finding in _findings(server, self._address)]
        there = [server.place for server in servers if server.gone is None]
        if self._address.kind == "cluster":
            findings.append(await self._state(there[0]))
        findings += [await self._scripts(place) for place in there]
        if self._address.durability == "replicated":
            findings += await self._confirmations(
                {server.place for server in servers if server.number("connected_slaves")}
            )
        silent = await self._without_notifications()
        return [*findings, *[self._notifications(place, allowed=place not in silent) for place in there]]

    def _notifications(self, place: ServerAddress, *, allowed: bool) -> Finding:
        if allowed:
            return Finding("ok", "notifications", f"{place} lets the user publish notifications")
        return Finding(
            "warning",
            "notifications",
            f"{place} does not let the user of the URL publish notifications, so workers find new jobs late",
            self._channels,
        )

    async def _confirmations(self, replicated: set[ServerAddress]) -> list[Finding]:
        """Test that replicas confirm a write of ours: a server waits only for writes of the same connection."""
        findings: list[Finding] = []
        try:
            for place, base in (await self._bases()).items():
                if place not in replicated:
                    continue
                try:
                    await self._connections.run_command(base, "SET", f"{base}:asked", "", "PX", 1, durable=True)
                    findings.append(Finding("ok", "replication", f"a replica of {place} confirms writes"))
                except NotDurableError as error:
                    message, _, remedy = str(error).partition(". ")
                    trouble = message.partition(", but ")[2] or message
                    findings.append(Finding("error", "replication", f"{place}: {trouble}", remedy))
        except StorageError:
            # Other findings report this error.
            return findings
        return findings

    async def _state(self, place: ServerAddress) -> Finding:
        try:
            state = _lines(text(await self._connections.ask(place, "CLUSTER", "INFO")))
        except StorageError as error:
            return Finding(
                "warning",
                "cluster",
                f"the Cluster does not report its state: {error}",
                "let the user of the URL call CLUSTER INFO",
            )
        if state.get("cluster_state") == "ok":
            return Finding("ok", "cluster", f"all {state.get('cluster_slots_ok')} slots are served")
        return Finding(
            "error",
            "cluster",
            f"the Cluster is not healthy: {state.get('cluster_slots_ok', '0')} of 16384 slots are served",
            "bring the missing masters back, or let replicas take over (redis-cli --cluster fix)",
        )

    async def _scripts(self, place: ServerAddress) -> Finding:
        replies = await self._connections.ask_all(place, [("SCRIPT", "LOAD", verb(name).text) for name in VERBS])
        troubles = [
            f"{name}: {error}" for name, reply in zip(VERBS, replies, strict=True) if (error := error_of(reply))
        ]
        if not troubles:
            return Finding("ok", "scripts", f"{place} takes all {len(VERBS)} scripts")
        return Finding(
            "error",
            "scripts",
            f"{place} does not take the scripts ({troubles[0]})",
            "let the user of the URL load and run scripts (+@scripting), on a server of a version that is supported",
        )


async def inspect(connections: Connections, *, briefly: bool = False) -> list[ServerFacts]:
    """Ask every server about itself; `briefly`: with INFO only, without CONFIG GET.

    Raises:
        StorageError: all servers are unreachable or refuse the login.
    """
    places = await connections.places()
    commands = [("INFO",)] if briefly else [("INFO",), ("CONFIG", "GET", *_SETTINGS)]
    outcomes = await asyncio.gather(*(connections.ask_all(place, commands) for place in places), return_exceptions=True)
    servers: list[ServerFacts] = []
    for place, outcome in zip(places, outcomes, strict=True):
        if isinstance(outcome, StorageError):
            servers.append(ServerFacts(place, None, {}, gone=outcome))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            servers.append(_read(place, connections.address.shown, *outcome))
    if all(server.gone is not None for server in servers):
        raise servers[0].gone or StorageUnavailableError(f"{connections.address.shown} has no servers")
    return servers


def check(servers: Sequence[ServerFacts], address: RedisAddress) -> None:
    """Refuse servers that would lose jobs.

    Raises:
        StorageUnavailableError: a server is a replica.
        StorageError: a server is of the wrong kind, is too old, evicts keys, or hides its settings.
    """
    for server in servers:
        error = _refusal(server, address)
        if error is not None:
            raise error


def _read(place: ServerAddress, shown: str, info: Reply, settings: Reply = None) -> ServerFacts:
    if isinstance(info, AuthenticationError):
        return ServerFacts(place, None, {}, gone=cast("StorageError", ours(info, shown)))
    refusal = error_of(info) or error_of(settings)
    parsed = None if error_of(info) is not None else _lines(text(info))
    words = [text(word) for word in cast("list[object]", settings)] if isinstance(settings, list) else []
    return ServerFacts(place, parsed, dict(zip(words[::2], words[1::2], strict=True)), str(refusal or ""))


def _lines(info: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in info.splitlines() if not line.startswith("#"))
    return {name: value.strip() for name, colon, value in pairs if colon}


def _refusal(server: ServerFacts, address: RedisAddress) -> StorageError | None:
    at = f"{address.shown} ({server.place})"
    if server.gone is not None:
        return None
    if server.info is None:
        if address.allow_unchecked:
            return None
        return StorageError(
            f"{at} does not show its kind and version ({server.refusal}); let the user of the URL call INFO{_UNCHECKED}"
        )
    if server.mode == "sentinel":
        return StorageError(
            f"{at} is a Sentinel; use {instead(address, 'sentinel', server.place)}, NAME being the master's"
        )
    if server.mode == "cluster" and address.kind != "cluster":
        return StorageError(f"{at} belongs to a Cluster; use {instead(address, 'cluster', server.place)}")
    if server.mode != "cluster" and address.kind == "cluster":
        return StorageError(f"{at} belongs to no Cluster; use {instead(address, 'server', server.place)}")
    oldest = OLDEST[server.brand]
    if _version(server.version) < oldest:
        return StorageError(
            f"{at} is {server.brand} {server.version}; Tenure needs Redis 7.0 or newer, or Valkey 7.2 or newer"
        )
    if server.replica:
        return StorageUnavailableError(
            f"{at} is a read replica and takes no jobs; name its master "
            f"({server.info.get('master_host', 'unknown')}:{server.info.get('master_port', '')}) in the URL"
        )
    if server.policy is None and not address.allow_unchecked:
        return StorageError(
            f"{at} hides what it does when its memory is full ({server.refusal or 'no maxmemory-policy'}); let the "
            f"user of the URL call CONFIG GET{_UNCHECKED}"
        )
    if server.policy is not None and server.policy != "noeviction":
        return StorageError(
            f"{at} throws keys away when its memory is full, and jobs with them (maxmemory-policy {server.policy}); "
            "set it to noeviction: CONFIG SET maxmemory-policy noeviction, and in redis.conf"
        )
    return None


def _new(servers: Sequence[ServerFacts], known: set[ServerAddress]) -> str:
    """Add the servers to `known`; return those that were not in it before, as one line of text."""
    new = [server.place for server in servers if server.place not in known]
    known.update(new)
    return ", ".join(map(str, new))


def _version(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


def _findings(server: ServerFacts, address: RedisAddress) -> Iterator[Finding]:
    if server.gone is not None:
        if isinstance(server.gone, StorageUnavailableError):
            yield Finding("error", "server", f"{server.place} is out of reach: {server.gone}", "check that it runs")
        else:
            message, _, remedy = str(server.gone).partition("; ")
            yield Finding("error", "server", f"{server.place}: {message}", remedy)
        return
    refusal = _refusal(server, address)
    name = f"{server.brand} {server.version} at {server.place}"
    if refusal is not None:
        message, _, remedy = str(refusal).partition("; ")
        yield Finding("error", "server", message, remedy)
    else:
        yield Finding("ok", "server", f"{name}, maxmemory-policy {server.policy or 'unknown'}")
    if server.refusal:
        yield Finding(
            "warning",
            "server",
            f"{name} hides settings ({server.refusal}), so not all of this can be checked",
            "let the user of the URL call INFO and CONFIG GET, or see to it in the console of the service",
        )
    if server.info is not None:
        yield _persistence(server, name)
        yield _replication(server, name, address)
        yield _memory(server, name)


def _persistence(server: ServerFacts, name: str) -> Finding:
    info = server.info or {}
    if info.get("aof_last_write_status") == "err" or info.get("rdb_last_bgsave_status") == "err":
        return Finding(
            "error",
            "persistence",
            f"{name} cannot write to its disk",
            "see its log; free space, or fix the permissions of its folder",
        )
    fsync = server.settings.get("appendfsync")
    match (server.appends, fsync, server.snapshots):
        case (True, "always", _):
            return Finding("ok", "persistence", f"{name} has every write on disk before it is acknowledged")
        case (True, "no", _):
            return Finding(
                "warning",
                "persistence",
                f"{name} leaves it to its host when the append-only file reaches the disk: if the host dies, half a "
                "minute of acknowledged writes may be gone",
                "CONFIG SET appendfsync everysec (or always), and in its configuration",
            )
        case (True, _, _):
            return Finding(
                "ok",
                "persistence",
                f"{name} writes an append-only file to disk every second: if its host dies, the last one or two "
                "seconds of acknowledged writes may be gone; appendfsync always loses none",
            )
        case (False, _, True):
            return Finding(
                "warning",
                "persistence",
                f"{name} writes snapshots only: when it crashes, all jobs since the last one are gone",
                "CONFIG SET appendonly yes, and in its configuration",
            )
        case (False, _, None):
            return Finding(
                "warning",
                "persistence",
                f"{name} keeps no append-only file, and does not say whether it writes snapshots",
                "turn its append-only file (AOF) on in the console of the service",
            )
        case _:
            return Finding(
                "warning",
                "persistence",
                f"{name} keeps nothing on disk: when it restarts, all jobs are gone",
                "CONFIG SET appendonly yes, and in its configuration; without it, use this server for tests only",
            )


def _replication(server: ServerFacts, name: str, address: RedisAddress) -> Finding:
    replicas = server.number("connected_slaves")
    demanded = server.settings.get("min-replicas-to-write", "0")
    if not replicas and address.durability == "replicated":
        return Finding(
            "error",
            "replication",
            f"{name} has no replica, so no write can be confirmed (durability=replicated)",
            "bring a replica back, or use durability=ack",
        )
    if not replicas and address.kind != "server":
        return Finding(
            "warning",
            "replication",
            f"{name} has no replica: when it is lost, so are its jobs, or they wait until it is back",
            "bring a replica back",
        )
    if replicas and demanded == "0":
        return Finding(
            "warning" if address.kind != "server" else "ok",
            "replication",
            f"{name} has {_some(replicas)}, and goes on without: cut off from them it acknowledges writes that a "
            "failover throws away",
            "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 10 bound that to about ten seconds",
        )
    return Finding("ok", "replication", f"{name} has {_some(replicas)}")


def _some(replicas: int) -> str:
    return "one replica" if replicas == 1 else f"{replicas or 'no'} replicas"


def _memory(server: ServerFacts, name: str) -> Finding:
    used, most = server.number("used_memory"), server.number("maxmemory")
    if not most:
        return Finding("ok", "memory", f"{name} uses {used >> 20:,} MiB, without a maxmemory")
    message = f"{name} uses {used >> 20:,} of {most >> 20:,} MiB"
    if used < most * FULL:
        return Finding("ok", "memory", message)
    return Finding(
        "error" if used >= most else "warning",
        "memory",
        f"{message}: {'enqueueing is refused' if used >= most else 'soon enqueueing is refused'}",
        "raise its maxmemory, or delete ended jobs sooner (app.queue(name).set_retention)",
    )
