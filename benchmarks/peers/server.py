"""A Redis of the run's own, on the loopback, that keeps nothing on disk."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as NotUp
from redis.retry import Retry

SETTINGS = {"bind": "127.0.0.1", "save": "", "appendonly": "no"}


class Server:
    """A started server: its address, its process, and the few things that are asked of it."""

    def __init__(self, port: int, pid: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self.pid = pid
        self._client = Redis(port=port, retry=Retry(ConstantBackoff(0.05), 200, supported_errors=(NotUp,)))
        self.version = self._told("redis_version")

    def empty(self) -> None:
        """Forget all jobs and all scripts, and who has been killed but still has commands under way."""
        for kind in ("normal", "pubsub"):
            self._client.client_kill_filter(_type=kind, skipme=True)  # pyright: ignore[reportUnknownMemberType]
        self._client.flushall()  # pyright: ignore[reportUnknownMemberType]
        self._client.script_flush()

    def used(self) -> int:
        """Return how many bytes of memory its data and buffers take."""
        return int(self._told("used_memory"))

    def commands(self) -> int:
        """Return how many commands it has run, those within scripts included."""
        return int(self._told("total_commands_processed"))

    def _told(self, name: str) -> str:
        info = self._client.info()  # pyright: ignore[reportUnknownMemberType]
        return str(info[name])


@contextmanager
def a_server() -> Generator[Server]:
    """Start one, keep it for as long as this is entered, and remove it.

    Raises:
        FileNotFoundError: the PATH has neither redis-server nor valkey-server.
    """
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise FileNotFoundError("there is no redis-server on the PATH: `make servers` installs one")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="tenure-peers-") as folder:
        words = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
        process = subprocess.Popen(
            [program, "--port", str(port), "--dir", folder, *words], stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield Server(port, process.pid)
        finally:
            process.kill()
            process.wait()
