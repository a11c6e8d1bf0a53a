"""The process of a worker's own keeper: it renews for its worker what that cannot renew itself, and ends with it."""

import asyncio
import contextlib
import logging
import os
import signal
import socket

import msgspec

from tenure.clock import SystemClock, entropy
from tenure.errors import StorageError
from tenure.processes.process import stands_still
from tenure.storage.urls import locate
from tenure.supervisor.external_renewer import ExternalRenewer
from tenure.worker.outpost import VARIABLE, Posted
from tenure.worker.scoreboard import Scoreboard
from tenure.worker.stop_signals import DRAINING, SIGNALS, UNUSED


class Parent:
    """The worker that has started this process."""

    def __init__(self) -> None:
        self.pid = os.getppid()

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it."""
        return stands_still(self.pid)

    @property
    def lives(self) -> bool:
        """Whether it is still there; a process that loses its parent gets another."""
        return os.getppid() == self.pid


async def keep(line: socket.socket, told: Posted, parent: Parent) -> None:
    """Watch over a worker until it closes the line, or is gone."""
    storage = locate(told.url)
    watcher = ExternalRenewer(
        storage,
        told.owner,
        Scoreboard(told.slate),
        parent,
        beat=told.beat,
        max_block=told.max_block,
        clock=SystemClock(),
        rng=entropy(),
        logger=logging.getLogger("tenure.keeper"),
        ask=None,
        condemn=None,
        tally=None,
    )
    line.setblocking(False)
    closed = asyncio.create_task(_closed(line))
    # So that the first renewal finds it open; whatever is wrong with it, that one tells.
    with contextlib.suppress(StorageError):
        await storage.open()
    while parent.lives and not closed.done():
        wait = await watcher.turn()
        await asyncio.wait({closed}, timeout=wait)


async def _closed(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_recv(line, 1)


def main() -> None:
    """Be the keeper of the process that has started this one."""
    parent = Parent()
    descriptor, _, text = os.environ.pop(VARIABLE, "").partition(":")
    line, told = socket.socket(fileno=int(descriptor)), msgspec.json.decode(text, type=Posted)
    # Whoever tells all processes of a service to stop means the worker, which may need its leases for as long as it
    # drains.
    for number in (*SIGNALS, *DRAINING, *UNUSED):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Never closed: closing waits for threads, and a storage that hangs may hold one.
    asyncio.Runner().run(keep(line, told, parent))
    os._exit(0)


if __name__ == "__main__":
    main()
