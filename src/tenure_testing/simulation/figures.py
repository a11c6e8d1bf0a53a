"""Figures of simulated worlds: computed for each world, and added up for many."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tenure.core.job import JobRecord
from tenure_testing.simulation.violation import Violation
from tenure_testing.simulation.world import World

PARTING = frozenset({"farewell"})
"""Entries in the record of faults that are not faults: the stops at the end of a world."""

OUTCOMES = {"lost": "I8", "double outcomes": "I2", "unexpected runs": "I17", "silent overlaps": "I5"}
"""Outcomes that must never occur, each with the invariant that detects it."""


@dataclass(frozen=True)
class Failure:
    """A world in which an invariant was violated."""

    seed: int
    scenario: str
    invariant: str
    story: str
    command: str
    """The shell command that replays the world."""


@dataclass
class WorldFigures:
    """The figures of some worlds. They can be added up and sent between processes."""

    seeds: int = 0
    seconds: float = 0.0
    calls: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    jobs: Counter[str] = field(default_factory=Counter[str])
    features: Counter[str] = field(default_factory=Counter[str])
    """How many of the recorded jobs used each feature. A feature that is missing here was not simulated."""

    verdicts: Counter[str] = field(default_factory=Counter[str])
    receipts: Counter[str] = field(default_factory=Counter[str])
    """The answers to calls, including those of ticks."""

    ticks: Counter[str] = field(default_factory=Counter[str])
    """The results of the ticks of schedules, including tick requests that came too late."""

    runs: int = 0
    again: int = 0
    """Runs that began because the run before them had stalled."""

    announced: int = 0
    """Those of them whose stall was recorded as an event before they began."""

    repaired: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The seconds from the loss of a holder until its job was free again, by reason."""

    clear: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The recoveries without another fault at the time. Each of them was compared with its bound."""

    failures: list[Failure] = field(default_factory=list[Failure])

    @classmethod
    def of(cls, world: World, violation: Violation | None = None) -> "WorldFigures":
        """Return the figures of a world that has ended or was stopped by a violation."""
        environment, records = world.environment, world.environment.model.records
        accounts = environment.accounts
        faults = Counter({kind: n for kind, n in environment.fault_log.counts().items() if kind not in PARTING})
        figures = cls(
            seeds=1,
            seconds=environment.loop.time(),
            calls=environment.checker.steps,
            faults=faults + Counter(environment.server.counts) + environment.deeds,
            # Jobs that were deleted, discarded or kept long enough are gone. The checker has verified the reason of
            # each.
            jobs=Counter(str(job.state) if (job := records.get(ref)) else "forgotten" for ref in accounts.stories),
            features=Counter(name for job in records.values() for name in _features(job)),
            verdicts=Counter(accounts.verdicts),
            receipts=Counter(accounts.receipts),
            ticks=accounts.ticking.counts(),
            runs=accounts.runs,
            again=accounts.again,
            announced=accounts.announced,
            repaired=accounts.repaired,
        )
        for recovery in accounts.recoveries:
            figures.recoveries.setdefault(recovery.reason, []).append(recovery.seconds)
            if recovery.clear:
                figures.clear.setdefault(recovery.reason, []).append(recovery.seconds)
        if violation is not None:
            failure = Failure(world.seed, world.name, violation.invariant, str(violation), world.command)
            figures.failures.append(failure)
        return figures

    def add(self, other: "WorldFigures") -> None:
        """Add the figures of other worlds."""
        self.seeds += other.seeds
        self.seconds += other.seconds
        self.calls += other.calls
        self.faults.update(other.faults)
        self.jobs.update(other.jobs)
        self.features.update(other.features)
        self.verdicts.update(other.verdicts)
        self.receipts.update(other.receipts)
        self.ticks.update(other.ticks)
        self.runs += other.runs
        self.again += other.again
        self.announced += other.announced
        self.repaired += other.repaired
        for mine, others in ((self.recoveries, other.recoveries), (self.clear, other.clear)):
            for reason, seconds in others.items():
                mine.setdefault(reason, []).extend(seconds)
        self.failures += other.failures

    @property
    def violations(self) -> dict[str, int]:
        """How many worlds violated each invariant."""
        return dict(sorted(Counter(failure.invariant for failure in self.failures).items()))

    @property
    def outcomes(self) -> dict[str, int]:
        """How often each outcome occurred that must never occur."""
        broken = self.violations
        return {what: broken.get(number, 0) for what, number in OUTCOMES.items()} | {"repaired": self.repaired}

    def as_data(self) -> dict[str, object]:
        """Return the figures as plain data."""
        return {
            "seeds": self.seeds,
            "simulated_hours": round(self.seconds / 3600, 2),
            "storage_calls": self.calls,
            "faults": dict(sorted(self.faults.items())),
            "jobs": {"in_all": sum(self.jobs.values()), **dict(sorted(self.jobs.items()))},
            "features": dict(sorted(self.features.items())),
            "calls": dict(sorted(self.receipts.items())),
            "ticks": dict(sorted(self.ticks.items())),
            "settlements": dict(sorted(self.verdicts.items())),
            "runs": self.runs,
            "extra_runs": self.again,
            "extra_runs_announced": self.announced,
            **{what.replace(" ", "_"): n for what, n in self.outcomes.items()},
            "recovery_seconds": _spreads(self.recoveries),
            "recovery_seconds_with_nothing_else_wrong": _spreads(self.clear),
            "failed_seeds": [failure.seed for failure in self.failures],
            "violations": self.violations,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return the figures as text, each with its name."""
        failed = ", ".join(str(failure.seed) for failure in self.failures[:20])
        rows = [
            ("seeds", f"{self.seeds:,} ({len(self.failures)} failed{f': {failed}' if failed else ''})"),
            ("simulated", f"{self.seconds / 3600:,.1f} hours, {self.calls:,} storage calls"),
            ("faults", f"{sum(self.faults.values()):,}: {_listed(self.faults)}"),
            ("jobs", f"{sum(self.jobs.values()):,}: {_listed(self.jobs)}"),
            ("features", _listed(self.features)),
            ("calls", f"{sum(self.receipts.values()):,}: {_listed(self.receipts)}"),
            ("ticks", _listed(self.ticks)),
            ("settlements", _listed(self.verdicts)),
            ("runs", f"{self.runs:,}, of them {self.again:,} after a stall, {self.announced:,} of these announced"),
            ("never", ", ".join(f"{what} {n}" for what, n in self.outcomes.items())),
        ]
        for reason, of_all in _spreads(self.recoveries).items():
            rows.append((f"recovery, {reason}", spoken(of_all)))
            if reason in self.clear:
                rows.append(("  nothing else wrong", spoken(spread(self.clear[reason]))))
        if self.failures:
            rows.append(("violations", _listed(self.violations)))
        return rows


def _features(job: JobRecord) -> Iterator[str]:
    used = {
        "concurrency key": job.keys,
        "rate": job.rates,
        "fair key": job.fair_key is not None,
        "schedule": job.schedule is not None,
        "ttl": job.ttl is not None,
        "timeout": job.timeout is not None,
        "heartbeat timeout": job.heartbeat_timeout is not None,
        "last in first out": job.lifo,
        "redrive rule": job.policy.redrive is not None,
        "stalled": job.stalls,
        "retried": job.failures,
        job.merge.__class__.__name__.removesuffix("Key").lower(): job.merge is not None,
    }
    return (name for name, is_used in used.items() if is_used)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())) or "none"


def _spreads(recoveries: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    return {reason: spread(seconds) for reason, seconds in sorted(recoveries.items())}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the number of values, and their median, 99th percentile and maximum."""
    ranked = sorted(seconds)
    return {
        "count": len(ranked),
        "p50": round(ranked[(len(ranked) - 1) // 2], 2),
        "p99": round(ranked[-(-len(ranked) * 99 // 100) - 1], 2),
        "max": round(ranked[-1], 2),
    }


def spoken(found: Mapping[str, float]) -> str:
    """Return a spread as text."""
    return f"{found['count']:,}: p50 {found['p50']:.2f} s, p99 {found['p99']:.2f} s, max {found['max']:.2f} s"
