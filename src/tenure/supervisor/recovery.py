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
from tenure.processes.exit_status import describe
from tenure.processes.process import ProcessExit
from tenure.storage.protocol import ReclaimResult, RenewRequest, StalledLease, Storage
from tenure.supervisor.child import KillReason
from tenure.worker.scoreboard import KnownRuns

T = TypeVar("T")

RETRY_DELAY = ExponentialDelay(0.1, 0.5)
"""The delay between two calls to a storage that is out of reach; it is short, so that recovery resumes quickly."""


class DeadWorker(Struct, frozen=True):
    """A worker process that has died, and how."""

    owner: str
    pid: int
    exit: ProcessExit
    died_at: int
    kill_reason: KillReason | None = None
    """Why its supervisor killed it; None if the supervisor did not kill it."""
    oom_killed: bool = False
    """True if the kernel's OOM killer killed it."""
    workplace: Workplace = Workplace()
    """Its last report of itself."""
    runs: KnownRuns = KnownRuns()
    """What is known of its runs."""

    @property
    def evidence(self) -> CrashEvidence:
        """The evidence from which the post-mortems of its runs are written."""
        kill_reason = self.kill_reason
        causes = frozenset(ref for ref, _ in kill_reason.causes) if kill_reason is not None else frozenset[Ref]()
        return CrashEvidence(
            Ending(
                describe(
                    self.exit, oom_killed=self.oom_killed, kill_reason="" if kill_reason is None else str(kill_reason)
                ),
                self.exit.peak_memory,
                "" if kill_reason is None else kill_reason.stack,
            ),
            self.workplace,
            hung=kill_reason is not None and kill_reason.reason == "loop_blocked",
            suspects=self.runs.suspects,
            isolated=self.runs.isolated,
            waiting=self.runs.waiting,
            blameless=kill_reason is not None and kill_reason.charges_no_run,
            overdue=causes if kill_reason is not None and kill_reason.reason == "timeout" else frozenset(),
            causes=causes,
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

    def charged(self, evidence: CrashEvidence) -> int | None:
        """Return how many jobs may be charged for the death; None if it is not known whether it held any."""
        if self.incomplete and not self.refs:
            return None
        return sum(not evidence.clears(ref) for ref in self.refs)


class CrashRecovery:
    """Recovers the jobs of one supervisor's children, under its name."""

    def __init__(
        self, owner: Owner, *, clock: Clock, rng: Random, logger: logging.Logger, metrics: MetricsRegistry
    ) -> None:
        self._owner = owner
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._logger = logger
        self._takers: list[Owner] = []
        """Owner ids of completed recoveries, for reuse: they hold no jobs, and no call for them is under way."""

    async def recover(self, worker: DeadWorker, storage: Storage, *, within: float) -> int | None:
        """Recover the jobs of a dead child, and record its death. Work that exceeds `within` is left to the reapers.

        Return how many recovered jobs may be charged for the death, or None if that is not known. Errors of the
        storage are logged and not raised, because the next child must be started anyway.
        """
        recovered, evidence = RecoveredJobs(), worker.evidence
        max_block = None if worker.kill_reason is None else round(worker.kill_reason.limit * SECOND)
        try:
            async with asyncio.timeout(within):
                await self._retry(storage.open, worker.pid)
                await self._reclaim(
                    recovered,
                    worker.pid,
                    worker.owner,
                    storage,
                    evidence,
                    died_at=worker.died_at,
                    within=within,
                    max_block=max_block,
                )
                died = WorkerDied(
                    owner=worker.owner,
                    host=self._owner.host,
                    pid=worker.pid,
                    signal=worker.exit.signal,
                    status=worker.exit.status if worker.exit.signal is None else None,
                    peak_memory=worker.exit.peak_memory,
                    jobs=recovered.jobs,
                    how=evidence.ending.how,
                )
                kill_reason = worker.kill_reason
                hung = () if kill_reason is None else kill_reason.hung(worker.owner)
                beat = RenewRequest(self._owner, events=(*hung, died))
                await self._retry(partial(storage.renew, beat), worker.pid)
        except asyncio.CancelledError:
            self._log_abandoned(worker, "no time is left")
            raise
        except Exception as error:
            self._log_abandoned(worker, repr(error))
        else:
            took = (self._clock.now() - worker.died_at) / SECOND
            self._logger.warning(
                "worker %d %s; jobs recovered: %d, within %.3f s", worker.pid, evidence.ending.how, recovered.jobs, took
            )
        return recovered.charged(evidence)

    async def clean_up(
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
        how = "stopped without recording the outcomes of its runs"
        recovered = RecoveredJobs()
        evidence = CrashEvidence(Ending(how), blameless=True, waiting=runs.waiting, stopped=runs.stopped)
        # A child that the storage refused has logged that itself, and left nothing there.
        level = logging.WARNING if worked else logging.DEBUG
        try:
            async with asyncio.timeout(within):
                await self._retry(storage.open, pid, level=level)
                left_at = self._clock.now()
                await self._reclaim(recovered, pid, owner, storage, evidence, died_at=left_at, within=within)
        except Exception as error:
            self._logger.log(level, "cannot record the stop of worker %d: %r", pid, error)
        else:
            if recovered.jobs:
                self._logger.warning("worker %d stopped and left %d jobs, which were released", pid, recovered.jobs)

    async def _reclaim(
        self,
        recovered: RecoveredJobs,
        pid: int,
        dead: str,
        storage: Storage,
        evidence: CrashEvidence,
        *,
        died_at: int,
        within: float,
        max_block: int | None = None,
    ) -> None:
        look = min(LOOK, within / 4)
        taker, incomplete = self._takers.pop() if self._takers else self._new_taker(), False
        holders = [dead]

        async def reclaim() -> ReclaimResult:
            nonlocal taker, incomplete
            if incomplete:
                # Use another owner id, because a reclaim never returns the jobs that the caller already holds. Keep
                # this order of holders: a call that arrives late then takes only from earlier ones, which are empty.
                holders.append(taker.id)
                taker = self._new_taker()
            recovered.incomplete = incomplete = True
            some = await storage.reclaim(holder, taker)
            incomplete = some.incomplete
            recovered.incomplete = incomplete or len(holders) > 1
            return some

        for holder in holders:
            more = True
            while more:
                some = await self._retry(reclaim, pid)
                stalled = some.stalled if holder == dead else self._as_leases_of(dead, some.stalled, died_at)
                recovered.refs.update(lease.lease.ref for lease in stalled)
                seen = structs.replace(evidence, dead_for=max(0, self._clock.now() - died_at))
                settle = partial(self._settle, taker, stalled, storage, seen, look, max_block)
                # Jobs whose settlement was not answered are still held by this owner id.
                incomplete |= not await self._retry(settle, pid)
                more = some.more or incomplete
        recovered.incomplete = False
        self._takers.append(taker)

    def _new_taker(self) -> Owner:
        return structs.replace(self._owner, id=owner_id(self._rng))

    def _as_leases_of(self, dead: str, stalled: Sequence[StalledLease], died_at: int) -> Sequence[StalledLease]:
        """Return leases reclaimed from ourselves as leases of the dead owner, silent at least since its death."""
        silent_for = max(0, self._clock.now() - died_at)
        return [structs.replace(lease, owner=dead, silent_for=max(lease.silent_for, silent_for)) for lease in stalled]

    async def _settle(
        self,
        taker: Owner,
        stalled: Sequence[StalledLease],
        storage: Storage,
        evidence: CrashEvidence,
        look: float,
        max_block: int | None,
    ) -> bool:
        return await settle_stalled(
            storage,
            taker,
            stalled,
            self._rng,
            evidence=evidence,
            within=look,
            max_block=max_block,
            metrics=self._metrics,
        )

    async def _retry(self, call: Callable[[], Awaitable[T]], pid: int, *, level: int = logging.WARNING) -> T:
        """Make an idempotent call, and repeat it as long as the storage is out of reach and the caller waits."""
        failures = 0
        while True:
            try:
                return await call()
            except StorageUnavailableError as error:
                if not failures:
                    self._logger.log(level, "cannot recover the jobs of worker %d yet, retrying: %r", pid, error)
                failures += 1
                await asyncio.sleep(RETRY_DELAY.rest(failures, self._rng))

    def _log_abandoned(self, worker: DeadWorker, why: str) -> None:
        how = worker.evidence.ending.how
        self._logger.error("worker %d %s; reapers will recover its jobs: %s", worker.pid, how, why)
