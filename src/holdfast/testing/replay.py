"""Simulated worlds on the command line: replay one and see what happened, or run many and see the figures."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from holdfast.clock import Clock, SystemClock
from holdfast.testing.invariants import Violation
from holdfast.testing.plan import FAULTS, SCENARIOS, Plan
from holdfast.testing.world import World

SHOWN = 60
"""Lines of a trace that are shown unless all are asked for."""


class Figures:
    """What many worlds came to."""

    def __init__(self) -> None:
        self.seeds = 0
        self.failed: list[int] = []
        self.seconds = 0.0
        self.faults: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self.stalls = 0
        self.steps = 0
        self.verdicts: Counter[str] = Counter()
        self.recoveries: dict[str, list[float]] = {}

    def add(self, world: World) -> None:
        """Take in a world that has run its course."""
        stage = world.stage
        self.seeds += 1
        self.seconds += stage.loop.time()
        self.faults.update({kind: n for kind, n in stage.weather.counts().items() if kind != "farewell"})
        self.faults.update(stage.server.counts)
        self.jobs.update(str(job.state) for job in stage.model.records.values())
        self.stalls += len(stage.witness.stalls)
        self.steps += stage.witness.steps
        self.verdicts.update(stage.witness.verdicts)
        for recovery in stage.witness.recoveries:
            if recovery.clear:
                self.recoveries.setdefault(recovery.reason, []).append(recovery.seconds)

    def lines(self) -> list[str]:
        """Return the figures as text."""
        told = [
            f"seeds       {self.seeds} ({len(self.failed)} failed{f': {self.failed}' if self.failed else ''})",
            f"simulated   {self.seconds / 3600:.1f} hours, {self.steps:,} storage calls",
            f"faults      {_listed(self.faults)}",
            f"jobs        {sum(self.jobs.values()):,}: {_listed(self.jobs)}",
            f"settled     {_listed(self.verdicts)}",
            f"stalls      {self.stalls}, each with its event",
        ]
        if not self.failed:
            told.append("lost 0, double outcomes 0, unexpected 0, silent overlaps 0")
        for reason, seconds in sorted(self.recoveries.items()):
            seconds.sort()
            told.append(
                f"recovery    {reason}: p50 {seconds[len(seconds) // 2]:.2f} s, max {seconds[-1]:.2f} s "
                f"({len(seconds)} with nothing else wrong)"
            )
        return told


def main(argv: Sequence[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run the worlds that are asked for; return 0 if no invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.world", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=_range, help="run these: 1000 for 0-999, or 500-800")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="a set piece instead of a plan from the dice")
    parser.add_argument("--without", action="append", default=[], choices=FAULTS, help="leave a kind of fault out")
    parser.add_argument("--full", action="store_true", help="show the whole trace")
    asked = parser.parse_args(argv)
    clock = clock or SystemClock()
    began, figures = clock.uptime(), Figures()
    for seed in [asked.seed] if asked.seed is not None else asked.seeds or range(300):
        plan = SCENARIOS[asked.scenario] if asked.scenario else Plan.drawn(Random(f"plan {seed}"))
        kept = {kind: gap for kind, gap in plan.faults.items() if kind not in asked.without}
        world = World(seed, replace(plan, faults=kept), name=asked.scenario or "")
        try:
            world.run()
        except Violation as violation:
            figures.failed.append(seed)
            _say(str(violation))
        figures.add(world)
        if asked.seed is not None:
            _say(str(world.plan))
            trace = world.told().splitlines()
            _say("\n".join(trace if asked.full else trace[-SHOWN:]))
    took = clock.uptime() - began
    _say("\n".join([*figures.lines(), f"speed       {figures.seeds / took:.1f} worlds a second"]))
    return 1 if figures.failed else 0


def _range(text: str) -> range:
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())) or "none"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
