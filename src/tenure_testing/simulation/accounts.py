"""What the checker of a simulated world knows apart from the storage: the history of each job, settings and limits."""

from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Literal, NoReturn

from tenure.clock import Clock
from tenure.core.job import JobRecord, RateKey, Ref
from tenure.core.lifecycle import TERMINAL
from tenure.core.rate import is_of_task
from tenure.core.retention import RetentionRules
from tenure.options import Timing
from tenure.storage.memory.model import Model
from tenure.storage.protocol import (
    Settings,
    Target,
)
from tenure_testing.simulation.call_checks import CallRecords
from tenure_testing.simulation.fairness_checks import FairnessChecks
from tenure_testing.simulation.fault_log import FaultLog
from tenure_testing.simulation.job_history import JobHistory
from tenure_testing.simulation.rate_checks import RateChecks
from tenure_testing.simulation.record_checks import may_be_forgotten
from tenure_testing.simulation.recovery_checks import RecoveryChecks, SimulatedRecovery
from tenure_testing.simulation.tick_checks import TickChecks
from tenure_testing.simulation.violation import Violation


class Accounts:
    """The accounts of one world, which all checks of it share."""

    def __init__(
        self,
        model: Model,
        clock: Clock,
        fault_log: FaultLog,
        timing: Timing,
        *,
        note: Callable[..., None],
        overruns: frozenset[str],
        died: Mapping[str, float],
        failed_workers: Set[str],
        slack: float,
    ) -> None:
        """Create the accounts of one world.

        `overruns`: the tasks whose handlers outlive their limits. `died`: when each owner's process was killed.
        `failed_workers`: the owners whose workers failed by themselves. `slack`: the seconds that messages add to a
        bound.
        """
        self.stories: dict[Ref, JobHistory] = {}
        self.verdicts: Counter[str] = Counter()
        self.receipts: Counter[str] = Counter()
        self.stalls: list[str] = []
        self.runs = 0
        self.again = 0
        """Number of runs that began because the run before them had stalled."""

        self.announced = 0
        """Number of those runs whose stall was recorded as an event before they began."""

        self.counted: list[tuple[Ref, int]] = []
        """The runs that were put back, uncharged or as a stall, because their workers failed after they had begun."""

        self.uncounted: list[tuple[Ref, int]] = []
        """The runs that were put back because their workers failed before the runs had begun."""

        self.repaired = 0
        self.calls = CallRecords(self.require)
        self.ticking = TickChecks(self.require)
        self.pacing = RateChecks(self.require)
        self.sharing = FairnessChecks(self.require)
        self.recovery_checks = RecoveryChecks(
            self.require, fault_log, timing, overruns=overruns, died=died, slack=slack
        )
        self.failed_workers = failed_workers
        self.model = model
        self.clock = clock
        self.fault_log = fault_log
        self.note = note
        self.stalled_runs: set[tuple[Ref, int]] = set()
        self.settings: dict[Target, Settings] = {}
        self.limits: dict[tuple[str, str], int] = {}
        self.recoverers: dict[str, str] = {}
        """The owner ids that recoveries use, each with the name of its supervisor."""

    @property
    def recoveries(self) -> list[SimulatedRecovery]:
        """The jobs that were taken from a lost holder and put back."""
        return self.recovery_checks.all

    def setting(self, kind: Literal["queue", "task"], name: str) -> Settings:
        """Return the settings of a queue or a task that are in force."""
        return self.settings.get(Target(kind, name), Settings())

    def closed(self, queue: str, now: int) -> bool:
        """Return True if the queue's own rate or a limit allows no start now."""
        if self.pacing.queue_is_limited(queue, now):
            return True
        rate = self.setting("queue", queue).rate
        return rate is not None and not self.pacing.open(queue, rate, now)

    def rates(self, job: JobRecord, *, queue: bool = False) -> list[RateKey]:
        """Return the rates that a start of the job uses, including its queue's own rate if `queue` is set."""
        task_rate = self.setting("task", job.task).rate
        rates = [rate for rate in job.rates if task_rate is None or not is_of_task(rate.name, job.task)]
        if task_rate is not None:
            rates.append(task_rate)
        own = self.setting("queue", job.queue).rate
        if queue and own is not None:
            rates.append(own)
        return [rate for rate in rates if rate.interval]

    def forgettable(self, job: JobRecord) -> bool:
        """Return True if a finished job has been kept for as long as it must be."""
        kept = self.setting("queue", job.queue).retention or RetentionRules()
        return job.state in TERMINAL and may_be_forgotten(job, kept.of(job.state), self.clock.now())

    def story(self, ref: Ref) -> JobHistory:
        """Return the history of a job. It is a violation if the job was never enqueued."""
        if ref not in self.stories:
            self.fail("I17", f"{ref} was never enqueued")
        return self.stories[ref]

    def raise_fence(self, story: JobHistory, fence: int) -> None:
        """Record a new fence of a job, which must be higher than its last one."""
        self.require(fence > story.fence, "I4", f"{story.ref}: fence {fence} was given after {story.fence}")
        story.fence = fence

    def require(self, fine: bool, number: str, message: str) -> None:
        """Fail with an invariant's number and a message unless the condition is true."""
        if not fine:
            self.fail(number, message)

    def fail(self, number: str, message: str) -> NoReturn:
        """Raise `Violation`, with the number of the violated invariant."""
        raise Violation(f"{number} at {self.clock.uptime():.3f} s: {message}")
