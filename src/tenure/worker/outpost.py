"""A keeper of a worker's own in another process: started by the worker, replaced when it dies, told to end."""

import asyncio
import os
import sys
from logging import Logger
from random import Random
from typing import Literal

import msgspec
from msgspec import Struct

from tenure.clock import Clock
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import Owner
from tenure.processes.process import Process
from tenure.worker.scoreboard import Scoreboard

VARIABLE = "TENURE_KEEPER"
"""Carries the descriptor of the keeper's end of the line, and what `Posted` says."""

KeeperKind = Literal["thread", "process"]
"""What renews the leases of a worker that nobody supervises."""

COMMAND = (sys.executable, "-m", "tenure.worker.post")

LINES = 2_048
"""How many runs its slate has room for."""

PATIENCE = ExponentialDelay(0.5, 30.0)
"""Before one that has died is replaced."""

SETTLED_IN = 10.0
"""One that lived for so many seconds died of something new."""


class Posted(Struct, frozen=True):
    """What a keeper is told when it is started: whom it watches, how, and where the jobs are. Lengths in seconds."""

    url: str
    owner: Owner
    slate: int
    beat: float
    max_block: float


class Outpost:
    """The worker's side. The worker goes on without it, as one does whose leases are renewed from a thread only."""

    def __init__(
        self, url: str, owner: Owner, *, beat: float, max_block: float, clock: Clock, rng: Random, logger: Logger
    ) -> None:
        self.slate = Scoreboard.new(LINES)
        self._told = Posted(url, owner, self.slate.descriptor, beat, max_block)
        self._clock = clock
        self._rng = rng
        self._logger = logger

    async def run(self) -> None:
        """Have somebody there, until cancelled."""
        deaths = 0
        while True:
            began = self._clock.uptime()
            how = await self._once()
            deaths = deaths + 1 if self._clock.uptime() - began < SETTLED_IN else 1
            rest = PATIENCE.rest(deaths, self._rng)
            self._logger.warning("the keeper's process %s; another follows in %.1f s", how, rest)
            await asyncio.sleep(rest)

    async def _once(self) -> str:
        """Let one live; return what became of it."""
        try:
            keeper = Process.started(
                COMMAND,
                variable=VARIABLE,
                told=msgspec.json.encode(self._told).decode(),
                give=[self.slate.descriptor],
                env=os.environ,
            )
        except OSError as error:
            return f"cannot be started: {error!r}"
        try:
            return f"died: {await keeper.ended()}"
        finally:
            # The end of its line is the end of its work.
            keeper.sweep_up()
