"""The servers to measure on, started for this run: a Redis or Valkey, and a PostgreSQL."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as NotUp
from redis.retry import Retry

from tenure_testing.postgres_programs import postgres_programs, version_of
from tests.postgres_servers import PostgresServer, missing_postgres


class Server(Struct, frozen=True):
    """Its address and its version."""

    url: str
    version: str


@contextmanager
def a_server() -> Generator[Server | None]:
    """Start one, keep it for the duration of the block, and remove it; None if the PATH has none."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        settings = ("--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "yes")
        process = subprocess.Popen([program, *settings], stdout=subprocess.DEVNULL)
        try:
            with Redis(port=port, retry=Retry(ConstantBackoff(0.05), 200, supported_errors=(NotUp,))) as client:
                client.script_load("return 1")
            output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
            version = output.partition("v=")[2].partition(" ")[0]
            yield Server(f"redis://127.0.0.1:{port}/0", version)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def a_postgres(**more: object) -> Generator[PostgresServer | None]:
    """Start one that writes through to the disk; None if this machine has none. `more`: further settings."""
    if missing_postgres(own=True) is not None:
        yield None
        return
    settings = {"max_wal_size": "1GB", "shared_buffers": "256MB", **more}
    with (
        tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder,
        PostgresServer(Path(folder), durable=True, **settings) as server,
    ):
        yield server


def postgres_version() -> str | None:
    """Return the version of the PostgreSQL of this machine."""
    programs = postgres_programs()
    return None if programs is None else ".".join(map(str, version_of(programs / "postgres")))
