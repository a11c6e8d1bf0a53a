"""Runs worlds with each mutant until one world catches it. That world must pass without the mutation.

`python -m tenure_testing.mutants` prints the table. It fails if a mutant was not caught or a harmless one was.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from tenure.clock import SystemClock
from tenure_testing.mutants import MUTANTS
from tenure_testing.simulation.campaign import made, processor_seconds, spread
from tenure_testing.simulation.violation import Violation
from tenure_testing.simulation.world import World

SEEDS = 500
"""The number of seeds within which each mutant must be caught."""

HARMLESS_SEEDS = 200
"""The number of seeds in which a harmless mutant must not be caught: more than any other mutant has needed so far."""


@dataclass(frozen=True)
class Trial:
    """The result of one mutant.

    `seed`: the seed that caught it, if one did. `crashed`: the mutant's own code failed, and no invariant. `sound`: the
    same world passes without the mutant.
    """

    name: str
    guard: str
    scenario: str
    harmless: bool
    seed: int | None
    invariant: str
    story: str
    crashed: bool
    sound: bool
    seconds: float

    @property
    def passed(self) -> bool:
        """True if the result is as expected: caught if harmful, not caught if harmless."""
        return self.sound and not self.crashed and self.harmless == (self.seed is None)

    def as_data(self) -> dict[str, object]:
        """Return the trial as plain data."""
        return asdict(self)


def tried(name: str, *, seeds: int = SEEDS) -> Trial:
    """Run worlds with a mutant until one of them catches it."""
    mutant, clock = MUTANTS[name], SystemClock()
    began, seed, invariant, story, crashed, sound = clock.uptime(), None, "", "", False, True
    for number in range(min(seeds, HARMLESS_SEEDS) if mutant.harmless else seeds):
        try:
            made(number, scenario=mutant.scenario, model=mutant.model).run()
        except Violation as violation:
            seed, crashed = number, violation.crashed
            invariant, story = violation.invariant, str(violation).splitlines()[0]
            sound = _holds(made(number, scenario=mutant.scenario))
            break
    took = round(clock.uptime() - began, 1)
    return Trial(name, mutant.guard, mutant.scenario, mutant.harmless, seed, invariant, story, crashed, sound, took)


def table(trials: Sequence[Trial]) -> list[str]:
    """Return the trials as the lines of a table."""
    rows = [("mutant", "what is taken out", "worlds", "caught at seed", "by", "seconds")]
    rows += [
        (
            trial.name,
            trial.guard,
            trial.scenario or "drawn",
            _said(trial),
            trial.invariant or "-",
            f"{trial.seconds:.1f}",
        )
        for trial in trials
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def caught_of(trials: Sequence[Trial]) -> str:
    """Return how many of the harmful mutants were caught, and how many of the harmless ones were not."""
    harmful = [trial for trial in trials if not trial.harmless]
    harmless = [trial for trial in trials if trial.harmless]
    return (
        f"{sum(trial.passed for trial in harmful)} of {len(harmful)}; "
        f"{sum(trial.passed for trial in harmless)} of {len(harmless)} harmless ones left alone"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Try the given mutants, or all. Return 0 if each result is as expected."""
    parser = argparse.ArgumentParser(prog="python -m tenure_testing.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"worlds each may take ({SEEDS})")
    parser.add_argument(
        "--within", type=float, help="fail if it takes longer than this many seconds, with one core per process"
    )
    parser.add_argument("--processes", type=int, default=0, help="processes at once (one a core)")
    parser.add_argument("--stories", action="store_true", help="show what each was caught at")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in MUTANTS]:
        parser.error(f"no mutant is called {', '.join(unknown)}; there are {', '.join(MUTANTS)}")
    trials = list(spread(partial(tried, seeds=args.seeds), args.names or list(MUTANTS), args.processes))
    lines = table(trials)
    if args.stories:
        lines += [f"{trial.name}: {trial.story}" for trial in trials if trial.story]
    lines.append(f"{'caught':<10}  {caught_of(trials)}")
    lines += [f"{'FAILED':<10}  {trial.name}: {_wrong(trial)}" for trial in trials if not trial.passed]
    alone = processor_seconds(args.processes)
    slow = args.within is not None and alone > args.within
    lines.append(f"{'TOO SLOW' if slow else 'took':<10}  {alone:.0f} s with a core for each process")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if slow or not all(trial.passed for trial in trials) else 0


def _holds(world: World) -> bool:
    try:
        world.run()
    except Violation:
        return False
    return True


def _said(trial: Trial) -> str:
    if trial.seed is not None:
        return str(trial.seed)
    return "never, as it must be" if trial.harmless else "NEVER"


def _wrong(trial: Trial) -> str:
    if trial.crashed:
        return f"its own code broke: {trial.story}"
    if not trial.sound:
        return f"seed {trial.seed} fails without it, too"
    return f"harmless, and caught: {trial.story}" if trial.harmless else "no world has found it out"
