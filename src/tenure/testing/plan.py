"""What a simulated world is made of and what goes wrong in it: drawn from the dice, or one of the set pieces."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Self

from tenure.options import Timing
from tenure.testing.net import USUAL_DELAY, Rates
from tenure.testing.workload import LONGEST_GAP, LONGEST_QUIET, LONGEST_RUN

STEPS = (0.5, 5.0, 60.0, 600.0, 3600.0)
"""By so many seconds the storage's clock is stepped, forward or back."""

ALWAYS = ("kill", "pause", "block", "cut", "freeze", "step", "lid", "stop", "storm", "redrive", "delete")
FAULTS = (*ALWAYS, "hush", "fail")
"""What can happen to a world beside what its network does to messages."""

MESSAGE_FAULTS = ("lost_request", "lost_answer", "late", "echo", "lost_notice")
"""What can happen to messages: the names of their `Rates`."""

SOLOISTS = ("step", "step", "step", "step", "freeze", "freeze", "lid", "stop", "block", "kill", "cut", "pause")
"""What may have the stage for itself, the faults that are no excuse for anything most often."""

ALONE = 0.3
"""The share of worlds in which one kind of fault alone goes wrong, so that nothing is excused by another."""

MERGING = ("unique", "window", "debounce", "collect", "throttle")
ORDER = ("rates", "fair", "lifo")
FEATURES = (*MERGING, *ORDER)
"""What calls may ask for beside the usual."""

FEATURED = 0.3
"""The share of worlds in which some of that is asked for; in as many there are schedules."""

FORESIGHTED = 0.3
"""The share of worlds in which workers claim ahead."""

FAILING = 0.2
"""The share of the worlds with several kinds of fault in which workers fail by themselves."""

MIXED = 0.2
"""The share of worlds in the midst of a rolling deploy: some workers run old code."""

USUAL = Rates()


@dataclass(frozen=True)
class WorldPlan:
    """What a world is made of.

    `faults`: how many seconds lie between two of a kind, on average. `at`: at which second one comes for certain.
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
    """Only these tasks; all of them if empty."""

    tick: float = 0.0
    """By so many seconds at a time the storage's clock goes on, so that much happens at one instant."""

    features: tuple[str, ...] = ()
    """What calls ask for beside the usual."""

    plain: bool = False
    """They ask for nothing else, and nobody takes them back."""

    repeats: float = 0.0
    """How often a client makes a call once more that it has made before, as one that was started again."""

    schedules: int = 0

    ahead: bool = False
    """Workers claim ahead although their runs take seconds, and what is at hand waits for seconds, too."""

    old: int = 0
    """So many of the workers run old code: they know every second task only."""

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        """Draw a plan: each fault is enabled or not, and has a rate of its own."""
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
        # What is newer is drawn last: so the dice of a seed fall for all else as they did when it was kept.
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
        """Return this plan with some kinds of fault left out."""
        rates = {kind: 0.0 for kind in MESSAGE_FAULTS if kind in kinds}
        return replace(
            self,
            faults={kind: gap for kind, gap in self.faults.items() if kind not in kinds},
            at=tuple((second, kind) for second, kind in self.at if kind not in kinds),
            rates=replace(self.rates, **rates),
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of fault that it enables."""
        told = [kind for kind in FAULTS if kind in self.faults or kind in {name for _, name in self.at}]
        return (*told, *(kind for kind in MESSAGE_FAULTS if getattr(self.rates, kind)))

    @property
    def timing(self) -> Timing:
        """The timing of all nodes."""
        return Timing.fast() if self.fast else Timing()

    @property
    def exact(self) -> bool:
        """Whether the storage's clock only goes on, so that every tick may be made up for, and none too many."""
        return "step" not in self.kinds

    def bound(self, jobs: int) -> float:
        """Within so many seconds of the healing every one of so many jobs is over.

        Each run that is open then ends or is recovered once (twice where its reaper was lost in turn). From there on
        nothing goes wrong, so a job has its attempts, its longest rests and one stall by silence before it, and must
        wait for as many jobs before it as there are, shared by all slots; under a rate for each of their starts.
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
"""Set pieces: one thing goes wrong, or a few that belong together."""
