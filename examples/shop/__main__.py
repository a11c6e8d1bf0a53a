"""Starts the shop: a PostgreSQL if DATABASE_URL names none, the web application, two workers. Ctrl-C stops all."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.shop.database import STARTED
from tests.postgres_servers import PostgresServer, missing_postgres
from tests.servers import guard

PATIENCE = 60.0


def start(*words: str) -> "subprocess.Popen[bytes]":
    """Start a Python program that ends with this process, even if this process is killed."""
    # In a session of its own, Ctrl-C does not reach it: this process stops it.
    process = subprocess.Popen([sys.executable, "-m", *words], start_new_session=True)  # noqa: S603
    guard("hold", process.pid, signal.SIGTERM)
    return process


def stop(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Stop the processes, and wait for their ends."""
    for process in processes:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    for process in processes:
        process.wait(PATIENCE)
        guard("free", process.pid)


def start_database(stack: ExitStack) -> None:
    """Start a PostgreSQL that ends with the stack, and note its address for the other processes."""
    if missing := missing_postgres(own=True):
        raise SystemExit(f"{missing}: install PostgreSQL, or set DATABASE_URL=postgresql://...")
    if STARTED.exists():
        raise SystemExit(f"the shop runs already; if it does not, delete {os.path.relpath(STARTED)}")
    server = stack.enter_context(PostgresServer(Path(stack.enter_context(TemporaryDirectory()))))
    STARTED.parent.mkdir(exist_ok=True)
    stack.callback(STARTED.unlink, missing_ok=True)
    STARTED.touch(0o600)  # the address has a password
    STARTED.write_text(server.url)


def serves(port: int) -> bool:
    """Return True if a server takes connections at the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(port: int) -> int:
    with ExitStack() as stack:
        if serves(port):
            raise SystemExit(f"port {port} is in use; choose another one with --port")
        if not os.environ.get("DATABASE_URL"):
            start_database(stack)
        web = start("uvicorn", "examples.shop.shop:api", "--port", str(port), "--log-level", "warning")
        processes = [web]
        stack.callback(stop, processes)
        deadline = time.monotonic() + PATIENCE
        while not serves(port):
            if web.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the web application did not start")
            time.sleep(0.05)
        processes += [start("tenure", "worker", "examples.shop.shop:app", "--log-level", "warning") for _ in range(2)]
        print(f"The shop is open: http://127.0.0.1:{port}/docs (two workers).")
        print(f"In a second terminal: python -m examples.shop.storm{'' if port == 8000 else f' --port {port}'}")
        print("Ctrl-C stops all of it.", flush=True)
        while all(process.poll() is None for process in processes):
            time.sleep(0.2)
        print("a process of the shop has ended", file=sys.stderr)
        return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="of the web application, on 127.0.0.1")
    port = parser.parse_args().port
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(port))
    except KeyboardInterrupt:
        print("\nthe shop is closed")
