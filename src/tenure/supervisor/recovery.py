"""Recovers the jobs of a worker process that has died: reclaims them, decides, settles, and records the death.

    the dead owner ──reclaim──► an owner id of this recovery ──decide, settle──► free
                                   │
                                   └─ the answer was lost ──reclaim──► another owner id ──decide, settle──► free

If the answer to a reclaim is lost, its jobs are held by an owner id that only this recovery uses. The next reclaim
finds them there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import TypeVar

from msgspec import Struct, structs

from tenure.clock import SECOND, Clock
from tenure.core.events import WorkerDied
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import Owner, Ref
from tenure.core.postmortem import Ending, Workplace
from tenure.errors import StorageUnavailableError
from tenure.ids import owner_id
from tenure.maintenance.lost_runs import LOOK, CrashEvidence, settle_stalled
from tenure.metrics import MetricsRegistry
from tenure.processes.exit_status import told
from tenure.processes.process import ProcessExit
from tenure.storage.protocol import ReclaimResult, RenewRequest, StalledLease, Storage
from tenure.supervisor.kill_reason import KillReason
from tenure.worker.scoreboard import KnownRuns

T = TypeVar("T")

PATIENCE = ExponentialDelay(0.1, 0.5)
"""The delay between two calls to a storage that is out of reach; it is short, so that recovery resumes quickly."""


class DeadWorker(Struct, frozen=True):
    """A worker process that has died, and how."""

    owner: str
    pid: int
    death: ProcessExit
    died_at: int
    killed_for: KillReason | None = None
    """Why its supervisor killed it; None if the supervisor did not kill it."""
    for_memory: bool = False
    """True if the kernel's OOM killer killed it."""
    workplace: Workplace = Workplace()
    """Its last report of itself."""
    runs: KnownRuns = KnownRuns()
    """What is known of its runs."""

    @property
    def witness(self) -> CrashEvidence:
        """The evidence from which the post-mortems of its runs are written."""
        sentence = self.killed_for
        culprits = frozenset(ref for ref, _ in sentence.culprits) if sentence is not None else frozenset[Ref]()
        return CrashEvidence(
            Ending(
                told(self.death, for_memory=self.for_memory, sentence="" if sentence is None else str(sentence)),
                self.death.peak_memory,
                "" if sentence is None else sentence.stack,
            ),
            self.workplace,
            hung=sentence is not None and sentence.reason == "loop_blocked",
            suspects=self.runs.suspects,
            apart=self.runs.apart,
            waiting=self.runs.waiting,
            blameless=sentence is not None and sentence.blames_none,
            overdue=culprits if sentence is not None and sentence.reason == "timeout" else frozenset(),
            culprits=culprits,
            stopped=self.runs.stopped,
        )


class RecoveredJobs:
    """The jobs recovered from one child."""

    def __init__(self) -> None:
        self.refs: set[Ref] = set()
        self.incomplete = False
        """True while an answer is missing: the storage may have given us jobs that we have not found yet."""

    @property
    def jobs(self) -> int:
        """The number of jobs found so far."""
        return len(self.refs)

    def charged(self, witness: CrashEvidence) -> int | None:
        """Return how many jobs may be charged for the death; None if it is not known whether it held any."""
        if self.incomplete and not self.refs:
            return None
        return sum(not witness.clears(ref) for ref in self.refs)


class CrashRecovery:
    """Recovers the jobs of one supervisor's children, under its name."""

    def __init__(
        self, owner: Owner, *, clock: Clock, rng: Random, logger: logging.Logger, figures: MetricsRegistry
    ) -> None:
        self._owner = owner
        self._figures = figures
        self._clock = clock
        self._rng = rng
        self._logger = logger
        self._takers: list[Owner] = []
        """Owner ids of completed recoveries, for reuse: they hold no jobs, and no call for them is under way."""

    async def bury(self, one: DeadWorker, storage: Storage, *, within: float) -> int | None:
        """Recover the jobs of a dead child, and record its death. Work that exceeds `within` is left to the reapers.

        Return how many recovered jobs may be charged for the death, or None if that is not known. Errors of the
        storage are logged and not raised, because the next child must be started anyway.
        """
        taken, witness = RecoveredJobs(), one.witness
        max_block = None if one.killed_for is None else round(one.killed_for.limit * SECOND)
        try:
            async with asyncio.timeout(within):
                await self._insist(storage.open, one.pid)
                await self._take_back(
                    taken, one.pid, one.owner, storage, witness, died_at=one.died_at, within=within, max_block=max_block
                )
                died = WorkerDied(
                    owner=one.owner,
                    host=self._owner.host,
                    pid=one.pid,
                    signal=one.death.signal,
                    status=one.death.status if one.death.signal is None else None,
                    peak_memory=one.death.peak_memory,
                    jobs=taken.jobs,
                    how=witness.ending.how,
                )
                sentence = one.killed_for
                hung = () if sentence is None else sentence.hung(one.owner)
                beat = RenewRequest(self._owner, events=(*hung, died))
                await self._insist(partial(storage.renew, beat), one.pid)
        except asyncio.CancelledError:
            self._log_left(one, "no time is left")
            raise
        except Exception as error:
            self._log_left(one, repr(error))
        else:
            took = (self._clock.now() - one.died_at) / SECOND
            self._logger.warning(
                "worker %d %s; %d jobs taken back within %.3f s", one.pid, witness.ending.how, taken.jobs, took
            )
        return taken.charged(witness)

    async def part(
        self,
        owner: str,
        pid: int,
        storage: Storage,
        *,
        within: float,
        worked: bool,
        runs: KnownRuns,
    ) -> None:
        """Clean up after a child that left in order: settle, in its place, the runs that it could not settle itself.

        `worked`: whether it may have held jobs. `runs`: what is known of its runs. Two kinds matter: exclusive runs
        that it had stopped while their handlers continued, whose rights the exit has freed; and runs that had not
        begun, which run again even if their jobs must not run twice. Errors of the storage are logged and not raised,
        because the next child must be started anyway.
        """
        how = "left, and could not tell the storage what became of its runs"
        taken = RecoveredJobs()
        witness = CrashEvidence(Ending(how), blameless=True, waiting=runs.waiting, stopped=runs.stopped)
        try:
            async with asyncio.timeout(within):
                await self._insist(storage.open, pid)
                left_at = self._clock.now()
                await self._take_back(taken, pid, owner, storage, witness, died_at=left_at, within=within)
        except Exception as error:
            # A child that the storage refused has logged that itself, and left nothing there.
            level = logging.WARNING if worked else logging.DEBUG
            self._logger.log(level, "cannot tell the storage that worker %d has left: %r", pid, error)
        else:
            if taken.jobs:
                self._logger.warning("worker %d left; %d jobs that it held were handed back for it", pid, taken.jobs)

    async def _take_back(
        self,
        taken: RecoveredJobs,
        pid: int,
        dead: str,
        storage: Storage,
        witness: CrashEvidence,
        *,
        died_at: int,
        within: float,
        max_block: int | None = None,
    ) -> None:
        look = min(LOOK, within / 4)
        taker, incomplete = self._takers.pop() if self._takers else self._another(), False
        holders = [dead]

        async def reclaim() -> ReclaimResult:
            nonlocal taker, incomplete
            if incomplete:
                # Use another owner id, because a reclaim never returns the jobs that the caller already holds. Keep
                # this order of holders: a call that arrives late then takes only from earlier ones, which are empty.
                holders.append(taker.id)
                taker = self._another()
            taken.incomplete = incomplete = True
            some = await storage.reclaim(holder, taker)
            incomplete = some.incomplete
            taken.incomplete = incomplete or len(holders) > 1
            return some

        for holder in holders:
            more = True
            while more:
                some = await self._insist(reclaim, pid)
                stalled = some.stalled if holder == dead else self._of(dead, some.stalled, died_at)
                taken.refs.update(one.lease.ref for one in stalled)
                seen = structs.replace(witness, dead_for=max(0, self._clock.now() - died_at))
                settle = partial(self._settle, taker, stalled, storage, seen, look, max_block)
                # Jobs whose settlement was not answered are still held by this owner id.
                incomplete |= not await self._insist(settle, pid)
                more = some.more or incomplete
        taken.incomplete = False
        self._takers.append(taker)

    def _another(self) -> Owner:
        return structs.replace(self._owner, id=owner_id(self._rng))

    def _of(self, dead: str, stalled: Sequence[StalledLease], died_at: int) -> Sequence[StalledLease]:
        """Return leases reclaimed from ourselves as leases of the dead owner, silent at least since its death."""
        silent_for = max(0, self._clock.now() - died_at)
        return [structs.replace(one, owner=dead, silent_for=max(one.silent_for, silent_for)) for one in stalled]

    async def _settle(
        self,
        taker: Owner,
        stalled: Sequence[StalledLease],
        storage: Storage,
        witness: CrashEvidence,
        look: float,
        max_block: int | None,
    ) -> bool:
        return await settle_stalled(
            storage,
            taker,
            stalled,
            self._rng,
            witness=witness,
            within=look,
            max_block=max_block,
            figures=self._figures,
        )

    async def _insist(self, call: Callable[[], Awaitable[T]], pid: int) -> T:
        """Make an idempotent call, and repeat it as long as the storage is out of reach and the caller waits."""
        failures = 0
        while True:
            try:
                return await call()
            except StorageUnavailableError as error:
                if not failures:
                    self._logger.warning("cannot take back the jobs of worker %d yet, trying again: %r", pid, error)
                failures += 1
                await asyncio.sleep(PATIENCE.rest(failures, self._rng))

    def _log_left(self, one: DeadWorker, why: str) -> None:
        how = one.witness.ending.how
        self._logger.error("worker %d %s; its jobs are left to the reapers: %s", one.pid, how, why)
