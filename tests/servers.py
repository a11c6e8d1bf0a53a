"""Real servers for the tests: found on this machine, started on free ports of the loopback, ended with the tests."""

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import Any, Literal, Self, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tenure_testing.proxy import free_port

Found = TypeVar("Found")

PATIENCE = 20.0
"""Seconds within which a server obeys, or the test fails."""


@dataclass(frozen=True)
class Brand:
    """A make of server that Tenure is tested with, and where this machine finds it."""

    name: str

    @property
    def variable(self) -> str:
        """The environment variable that names a running server."""
        return f"TENURE_TEST_{self.name.upper()}_URL"

    @property
    def url(self) -> str | None:
        """The URL of a running server, for tests that share one."""
        return os.environ.get(self.variable) or None

    @property
    def program(self) -> str | None:
        """The program that starts one, also as a node of a cluster and as a sentinel."""
        return shutil.which(f"{self.name}-server")

    def missing(self, *, own: bool) -> str | None:
        """Return why it is missing here, or None; `own`: one that a test may kill."""
        if self.url is not None and not own:
            return None
        remedy = "" if own else f" and {self.variable} is not set"
        if self.program is None:
            return f"no {self.name}-server on the PATH{remedy}"
        version = version_of(self.program)
        if version < (7, 0):
            return f"{self.program} is too old ({'.'.join(map(str, version))}, not 7.0){remedy}"
        return None

    @property
    def untested(self) -> str:
        """The tests that are left out without the program: all, or with a running server those that kill one."""
        return self.name if self.url is None else f"{self.name}, where a test needs one of its own"


REDIS = Brand("redis")
VALKEY = Brand("valkey")


@cache
def version_of(program: str) -> tuple[int, ...]:
    """Return the version that a server's program reports."""
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bv=([0-9.]+)", output)
    assert found is not None, output
    return tuple(map(int, found[1].split(".")))


class Startable(ABC):
    """Something that runs inside a `with` block."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @abstractmethod
    def start(self) -> None:
        """Start all of it, and return when it answers."""

    @abstractmethod
    def kill(self) -> None:
        """Kill all of it."""


class RedisServer(Startable):
    """A server of the test's own, on a free port of the loopback.

    `config`: settings, with `_` for `-`, or a function that returns them at each attempt to start.
    """

    def __init__(self, folder: Path, *, brand: Brand = REDIS, mode: str = "", **config: Any) -> None:
        if brand.program is None:
            raise FileNotFoundError(brand.missing(own=True))
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "server.log"
        self.port = 0
        self._scheme = brand.name
        self._program = brand.program
        self._mode = mode
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._client: redis.Redis | None = None

    @property
    def url(self) -> str:
        """The address, without a namespace."""
        return f"{self._scheme}://127.0.0.1:{self.port}/0"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that serves."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and not ended by the test."""
        return self._process is not None

    def start(self) -> None:
        """Start it, at the port it had before if any, and return when it answers."""
        assert self._process is None, "the server runs already"
        for _ in range(10):
            port = self.port or free_port()
            if self._come_up(port):
                self.port = port
                return
        raise RuntimeError(f"the server did not come up:\n{self.log.read_text()}")

    def stop(self) -> None:
        """Stop it as a service manager does; it writes what its settings require."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it; unwritten data are lost."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> None:
        """End it, by a kill or not, and start it at the same port with the same files."""
        (self.kill if kill else self.stop)()
        self.start()

    def freeze(self) -> None:
        """Freeze it: connections stay open, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one continue."""
        os.kill(self.pid, signal.SIGCONT)

    def command(self, *words: object) -> Any:
        """Send a command and return its answer, as redis-py reads it; texts stay bytes."""
        return command(self.client, *words)

    @property
    def client(self) -> redis.Redis:
        """A connection for the test's own commands."""
        if self._client is None:
            self._client = client_of(self.url)
        return self._client

    def _come_up(self, port: int) -> bool:
        file = self.folder / "server.conf"
        if not self.port:  # afterwards the server keeps there what sentinels have configured
            settings: dict[str, object] = {"port": port, "bind": "127.0.0.1", "dir": self.folder, "daemonize": "no"}
            if not self._mode:
                settings |= _DEFAULTS
            settings |= {name.replace("_", "-"): _chosen(value) for name, value in self._config.items()}
            file.write_text("".join(f"{name} {_quoted(value)}\n" for name, value in settings.items()))

        with self.log.open("ab") as log:
            arguments = [self._program, str(file), *filter(None, [self._mode])]
            # A session of its own, so that Ctrl-C reaches the tests and not the server under them.
            self._process = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)
        guard("hold", self._process.pid)
        self._drop_client()
        with client_of(f"redis://127.0.0.1:{port}/0", tries=1) as client:
            until(lambda: self._ended or _answers(client), f"{self._program} to answer; its log: {self.log}")
        if self._ended:  # the port was taken in between, or a setting is wrong
            self._forget_process()
        return self.running

    @property
    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _end(self, with_: signal.Signals) -> None:
        if self._process is None:
            return
        self._drop_client()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, with_)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._forget_process()

    def _forget_process(self) -> None:
        assert self._process is not None
        guard("free", self._process.pid)
        self._process.wait()
        self._process = None

    def _drop_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


_DEFAULTS: dict[str, object] = {
    "save": "",
    "appendonly": "no",
    "maxmemory-policy": "noeviction",
    "enable-debug-command": "yes",
    "shutdown-timeout": 0,  # otherwise one with replicas waits for them when it is stopped
    "repl-diskless-sync-delay": 0,
}


class Commons:
    """A server that many tests share: each has its own namespaces there, and leaves none of their keys behind."""

    def __init__(self, url: str, nodes: Callable[[], Iterable[redis.Redis]]) -> None:
        self.url = url
        self.nodes = nodes
        self._claimed: list[str] = []

    def claim(self) -> str:
        """Return the address of an unused namespace."""
        namespace = f"test-{SystemRandom().getrandbits(48):012x}"
        self._claimed.append(namespace)
        return f"{self.url}{'&' if '?' in self.url else '?'}namespace={namespace}"

    def clear(self) -> None:
        """Delete the keys of all claimed namespaces, and nothing else: the server may be used for other things."""
        claimed, self._claimed = self._claimed, []
        for node in self.nodes() if claimed else ():
            for namespace in claimed:
                for keys in _scanned(node, f"*{namespace}*"):
                    _deleted(node, keys)


def _answers(client: redis.Redis) -> bool:
    try:
        command(client, "PING")
    except (redis.ConnectionError, redis.TimeoutError):
        return False
    return True


def _scanned(node: redis.Redis, pattern: str) -> Iterator[list[bytes]]:
    cursor: object = 0
    while True:
        cursor, keys = command(node, "SCAN", cursor, "MATCH", pattern, "COUNT", 10_000)
        yield keys
        if not cursor:
            return


def _deleted(node: redis.Redis, keys: list[bytes]) -> None:
    """Delete these in one round trip, but one by one, because on a cluster they lie in different slots."""
    untyped: Any = node
    with untyped.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.execute_command("UNLINK", key)
        pipeline.execute()


def until(holds: Callable[[], Found | None], what: str, patience: float = PATIENCE) -> Found:
    """Ask again and again, until the answer is true, and return it."""
    deadline = time.monotonic() + patience
    while True:
        if answer := holds():
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience:.0f} s in vain for {what}")
        time.sleep(0.005)


def command(client: redis.Redis, *words: object) -> Any:
    """Send a command and return its answer."""
    untyped: Any = client
    return untyped.execute_command(*words)


def subscribed(server: RedisServer) -> list[dict[str, str]]:
    """Return the connections of clients that subscribe to sharded channels there."""
    clients_text = str(server.command("CLIENT", "LIST"), "utf-8")
    clients = [dict(pair.split("=", 1) for pair in line.split()) for line in clients_text.splitlines()]
    return [client for client in clients if int(client.get("ssub", 0))]


def client_of(url: str, *, patience: float = 60, tries: int = 2) -> redis.Redis:
    """Return a connection with a long timeout, for frozen servers, and a second attempt, for restarted ones."""
    untyped: Any = redis.Redis
    known = re.sub("^valkey", "redis", url)  # redis-py makes no difference between them
    client: redis.Redis = untyped.from_url(
        known, socket_timeout=patience, socket_connect_timeout=5, retry=Retry(NoBackoff(), tries - 1)
    )
    return client


def _chosen(value: object) -> object:
    return value() if callable(value) else value


def _quoted(value: object) -> str:
    text = "yes" if value is True else "no" if value is False else str(value)
    return text if text and set(text) <= _PLAIN else f'"{text}"'


_PLAIN = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./: ")

_GUARDIAN = """
import json, os, shutil, signal, sys, time
from pathlib import Path
processes, folders = {}, set()
for line in sys.stdin:
    verb, what, end_with = json.loads(line)
    if isinstance(what, str):
        (folders.add if verb == "hold" else folders.discard)(what)
    elif verb == "hold":
        processes[what] = end_with
    else:
        processes.pop(what, None)

def send(pid, *numbers):
    try:
        for number in numbers:
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True

def ended(pid):
    status = Path(f"/proc/{pid}/status")
    try:
        return not send(pid, 0) or status.exists() and "State:\\tZ" in status.read_text()
    except OSError:
        return True

for pid, end_with in processes.items():
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for path in lists for child in path.read_text().split()]
    send(pid, end_with, signal.SIGCONT)
    for child in children:  # a frozen one would make the server wait
        send(child, signal.SIGCONT)
orderly = [pid for pid, end_with in processes.items() if end_with != signal.SIGKILL]
patience = time.monotonic() + 6
while time.monotonic() < patience and not all(map(ended, orderly)):
    time.sleep(0.02)
for pid in orderly:
    send(pid, signal.SIGKILL)
for folder in folders:
    shutil.rmtree(folder, ignore_errors=True)
"""


def guard(verb: Literal["hold", "free"], what: int | Path, end_with: signal.Signals = signal.SIGKILL) -> None:
    """Register a process or folder that must not outlive this process with the guardian, or one that has ended.

    `end_with`: the signal that ends the process. If it has not ended 6 s later, it is killed.
    """
    stdin = _guardian().stdin
    assert stdin is not None
    name = str(what) if isinstance(what, Path) else what
    stdin.write(json.dumps([verb, name, end_with]).encode() + b"\n")
    stdin.flush()


@cache
def _guardian() -> "subprocess.Popen[bytes]":
    """Start the guardian: when this process ends, however it ends, their pipe breaks, and it kills our servers."""
    guardian = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARDIAN], stdin=subprocess.PIPE, start_new_session=True
    )
    atexit.register(guardian.communicate)
    return guardian
