"""Plans of simulated worlds: what a world consists of and which faults it has, drawn at random or predefined."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Self

from tenure.options import Timing
from tenure_testing.simulation.network import USUAL_DELAY, Rates
from tenure_testing.simulation.workload import LONGEST_GAP, LONGEST_QUIET, LONGEST_RUN

STEPS = (0.5, 5.0, 60.0, 600.0, 3600.0)
"""The steps in seconds by which the storage's clock is set forward or back."""

ALWAYS = ("kill", "pause", "block", "cut", "freeze", "step", "lid", "stop", "storm", "redrive", "delete")
FAULTS = (*ALWAYS, "hush", "fail")
"""All faults other than those of messages."""

MESSAGE_FAULTS = ("lost_request", "lost_answer", "late", "echo", "lost_notice")
"""The faults of messages: the names of their `Rates`."""

SOLOISTS = ("step", "step", "step", "step", "freeze", "freeze", "lid", "stop", "block", "kill", "cut", "pause")
"""Faults that may occur alone. Those that excuse no lost lease are listed most often."""

ALONE = 0.3
"""The share of worlds with only one kind of fault, so that another fault cannot excuse a violation."""

MERGING = ("unique", "window", "debounce", "collect", "throttle")
ORDER = ("rates", "fair", "lifo")
FEATURES = (*MERGING, *ORDER)
"""The optional features of calls."""

FEATURED = 0.3
"""The share of worlds in which calls use some of the features. The same share of worlds has schedules."""

FORESIGHTED = 0.3
"""The share of worlds in which workers prefetch."""

FAILING = 0.2
"""The share of the worlds with several kinds of fault in which workers fail by themselves."""

MIXED = 0.2
"""The share of worlds during a rolling deploy, in which some workers run old code."""

USUAL = Rates()


@dataclass(frozen=True)
class WorldPlan:
    """What a world consists of.

    `faults`: the average seconds between two faults of a kind. `at`: the seconds at which a fault is certain to occur.
    """

    workers: int = 3
    clients: int = 1
    jobs: int = 12
    fast: bool = False
    election: bool = True
    lone_reaper: bool = False
    supervised: float = 0.5
    hearing: bool = False
    concurrency: int = 3
    span: float = 80.0
    faults: dict[str, float] = field(default_factory=dict[str, float])
    at: tuple[tuple[float, str], ...] = ()
    rates: Rates = USUAL
    steps: Sequence[float] = STEPS
    freezes: tuple[float, float] = (1.0, 120.0)
    tasks: tuple[str, ...] = ()
    """The tasks to use, or all tasks if empty."""

    tick: float = 0.0
    """The step in seconds in which the storage's clock advances, so that many changes happen at one instant."""

    features: tuple[str, ...] = ()
    """The features that calls use."""

    plain: bool = False
    """If True, calls use only these features, and clients do not cancel them."""

    repeats: float = 0.0
    """The share of calls that a client makes again later, as a restarted client does."""

    schedules: int = 0

    ahead: bool = False
    """If True, workers prefetch although their runs take seconds, so that prefetched jobs wait for seconds."""

    old: int = 0
    """How many workers run old code, which knows only every second task."""

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        """Draw a plan: each fault is enabled or not, and has its own rate."""
        faults = {kind: rng.uniform(10, 80) for kind in ALWAYS if rng.random() < 0.35}
        lost_request, lost_answer, late, echo, lost_notice = (rng.choice((0.0, 0.0, 0.0, 0.02, 0.1)) for _ in range(5))
        rates = Rates(
            lost_request, lost_answer, late, echo, lost_notice, rng.choice((USUAL_DELAY, USUAL_DELAY, 0.05, 0.3))
        )
        plan = cls(
            workers=rng.choice((3, 3, 3, 4, 4, 5, 6)),
            clients=rng.randint(1, 2),
            jobs=rng.randint(6, 16),
            fast=rng.random() < 0.4,
            election=rng.random() < 0.8,
            lone_reaper=rng.random() < 0.2,
            supervised=rng.choice((0.0, 0.5, 1.0)),
            hearing=rng.random() < 0.15,
            concurrency=rng.randint(1, 4),
            span=rng.uniform(30, 80),
            faults=faults,
            rates=rates,
        )
        # Draw newer options last, so that all other options of an old seed stay the same.
        if rng.random() < 0.2:
            faults["hush"] = rng.uniform(10, 80)
        tick = rng.choice((0.0, 0.0, 0.0, 0.015, 0.25))
        alone = rng.random() < ALONE
        if alone:
            plan = replace(plan, faults={rng.choice(SOLOISTS): rng.uniform(10, 40)}, rates=Rates(delay=rates.delay))
        plan = replace(plan, tick=tick)
        if rng.random() < FEATURED:
            features = tuple(feature for feature in FEATURES if rng.random() < 0.5)
            plan = replace(plan, features=features, jobs=2 * plan.jobs, repeats=rng.choice((0.0, 0.1, 0.4)))
        if rng.random() < FEATURED:
            plan = replace(plan, schedules=rng.randint(1, 3))
        plan = replace(plan, ahead=rng.random() < FORESIGHTED)
        gap = rng.uniform(5, 40)
        if rng.random() < FAILING and not alone:
            plan = replace(plan, faults={**plan.faults, "fail": gap})
        old = rng.randint(1, plan.workers - 1)
        if rng.random() < MIXED:
            plan = replace(plan, old=old)
        return plan

    def without(self, kinds: Collection[str]) -> Self:
        """Return this plan without some kinds of fault."""
        rates = {kind: 0.0 for kind in MESSAGE_FAULTS if kind in kinds}
        return replace(
            self,
            faults={kind: gap for kind, gap in self.faults.items() if kind not in kinds},
            at=tuple((second, kind) for second, kind in self.at if kind not in kinds),
            rates=replace(self.rates, **rates),
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of fault that the plan enables."""
        enabled = [kind for kind in FAULTS if kind in self.faults or kind in {name for _, name in self.at}]
        return (*enabled, *(kind for kind in MESSAGE_FAULTS if getattr(self.rates, kind)))

    @property
    def timing(self) -> Timing:
        """The timing of all nodes."""
        return Timing.fast() if self.fast else Timing()

    @property
    def exact(self) -> bool:
        """True if the storage's clock is never stepped, so that every tick can be caught up and none comes twice."""
        return "step" not in self.kinds

    def bound(self, jobs: int) -> float:
        """Return the seconds after the end of the faults within which `jobs` jobs must be over.

        In that time each open run ends or is recovered once (twice if its reaper was lost too). After that there are no
        faults. So a job has its attempts, its longest delays and one stall by silence before it. It waits for all other
        jobs, which share the concurrency of all workers. Under a rate it also waits for each of their starts.
        """
        recovery = self.timing.recovery_bound.total_seconds() + self.timing.lease.total_seconds()
        each = 3 * (LONGEST_RUN + 10.0) + recovery
        starts = 6 * jobs * LONGEST_GAP if "rates" in self.features else 0.0
        return (
            2 * recovery + each * (1 + jobs / ((self.workers - self.old) * self.concurrency)) + LONGEST_QUIET + starts
        )


LONG = ("slow", "steady", "exclusive")

SCENARIOS: dict[str, WorldPlan] = {
    "calm": WorldPlan(workers=4, jobs=20, span=50.0),
    "calm and fast": WorldPlan(workers=4, jobs=20, span=50.0, fast=True),
    "freeze": WorldPlan(workers=6, jobs=24, tasks=LONG, freezes=(60.0, 60.0), at=((25.0, "freeze"),), span=100.0),
    "one step": WorldPlan(workers=6, jobs=24, tasks=LONG, at=((25.0, "step"),), span=50.0),
    "step and death": WorldPlan(
        jobs=9, tasks=("slow",), at=((20.0, "kill"), (30.0, "step")), supervised=0.0, span=60.0
    ),
    "clock": WorldPlan(workers=6, jobs=24, tasks=LONG, faults={"step": 30.0}, span=130.0),
    "clock and death": WorldPlan(workers=4, jobs=16, tasks=LONG, faults={"step": 40.0, "kill": 40.0}, supervised=0.0),
    "lid": WorldPlan(workers=4, jobs=20, faults={"lid": 30.0}, span=130.0),
    "rolling deploy": WorldPlan(
        workers=4, jobs=24, concurrency=2, faults={"stop": 4.0}, rates=Rates(delay=0.3), span=50.0
    ),
    "deploy on a frozen storage": WorldPlan(jobs=12, faults={"stop": 6.0, "freeze": 20.0}, span=60.0),
    "death": WorldPlan(workers=4, jobs=20, faults={"kill": 40.0}, supervised=0.0),
    "death under a supervisor": WorldPlan(workers=4, jobs=20, faults={"kill": 12.0}, supervised=1.0, span=60.0),
    "all lead": WorldPlan(workers=5, jobs=20, faults={"kill": 15.0}, election=False, lone_reaper=True, fast=True),
    "noise": WorldPlan(
        jobs=16, faults={"kill": 25.0, "pause": 25.0, "storm": 30.0}, rates=Rates(0.1, 0.1, 0.05, 0.3, 0.1)
    ),
    "lost claims": WorldPlan(
        workers=4,
        jobs=60,
        concurrency=3,
        tasks=("quick", "steady", "broken", "flaky"),
        rates=Rates(lost_request=0.05, lost_answer=0.15, echo=0.3, patience=0.5),
        span=60.0,
    ),
    "coarse clock": WorldPlan(
        jobs=16, faults={"kill": 25.0, "pause": 25.0, "storm": 40.0}, rates=Rates(0.02), tick=1.0
    ),
    "hush": WorldPlan(workers=4, jobs=20, faults={"hush": 8.0, "kill": 40.0}, span=60.0),
    "failing workers": WorldPlan(
        workers=3, jobs=16, tasks=(*LONG, "careful", "quick"), faults={"fail": 3.0, "hush": 20.0}, span=80.0
    ),
    "rules": WorldPlan(workers=4, jobs=30, faults={"kill": 40.0, "hush": 15.0}, span=60.0),
    "merging": WorldPlan(
        workers=4,
        clients=3,
        jobs=60,
        tasks=("quick", "steady", "broken", "flaky"),
        features=MERGING,
        repeats=0.3,
        faults={"delete": 4.0, "redrive": 10.0, "hush": 12.0, "kill": 40.0},
        rates=Rates(lost_answer=0.05),
        span=60.0,
    ),
    "one key and long runs": WorldPlan(
        clients=3,
        jobs=60,
        tasks=("steady",),
        features=("unique",),
        faults={"kill": 30.0},
        span=90.0,
    ),
    "windows": WorldPlan(
        clients=3,
        jobs=60,
        tasks=("quick", "steady"),
        features=("window",),
        faults={"delete": 1.0},
        span=50.0,
    ),
    "order": WorldPlan(
        workers=3,
        clients=3,
        jobs=60,
        concurrency=1,
        tasks=("quick", "steady", "flaky"),
        features=ORDER,
        faults={"kill": 40.0},
        span=60.0,
    ),
    "tenants": WorldPlan(
        workers=2, clients=3, jobs=60, concurrency=1, tasks=("steady",), features=("fair",), plain=True, span=40.0
    ),
    "schedules": WorldPlan(
        workers=5,
        jobs=8,
        schedules=4,
        lone_reaper=True,
        faults={"kill": 8.0, "pause": 12.0},
        rates=Rates(0.02, 0.05, 0.02, 0.1),
        fast=True,
        span=60.0,
    ),
    "all tick": WorldPlan(
        workers=5,
        jobs=8,
        schedules=4,
        election=False,
        lone_reaper=True,
        faults={"kill": 15.0, "delete": 5.0, "storm": 20.0},
        rates=Rates(0.02, 0.05, 0.02, 0.1),
        fast=True,
        span=60.0,
    ),
    "clock and schedules": WorldPlan(
        workers=3, jobs=8, schedules=4, lone_reaper=True, faults={"step": 8.0}, fast=True, span=60.0
    ),
    "old and new code": WorldPlan(
        workers=5, old=4, jobs=60, clients=2, features=ORDER, faults={"kill": 20.0}, span=60.0
    ),
    "hearing": WorldPlan(workers=4, jobs=16, tasks=("silent", "quick"), hearing=True, span=60.0),
}
"""Predefined plans, each with one fault or with a few that belong together."""
