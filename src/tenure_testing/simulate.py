"""Simulated worlds on the command line: replay one and see what happened, or run many and see the figures."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tenure.clock import Clock, SystemClock
from tenure_testing import evidence
from tenure_testing.mutants import MUTANTS
from tenure_testing.mutants.trials import Trial, caught_of, tried
from tenure_testing.simulation.campaign import made, processor_seconds, run_worlds, shrunk, spread
from tenure_testing.simulation.figures import Failure, WorldFigures
from tenure_testing.simulation.plan import FAULTS, MESSAGE_FAULTS, SCENARIOS
from tenure_testing.simulation.violation import Violation

SHOWN = 60
"""How many lines of a trace are shown by default."""

SHRUNK = 3
"""How many failed worlds are shrunk. More of them rarely show more."""

REPORTED = 20
"""How many failed worlds are reported. The figures count all of them."""

CORPUS = Path("tests/simulation/seeds.txt")
"""The file of failed worlds, relative to the root of the repository."""


def main(argv: Sequence[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run the requested worlds. Return 0 if no invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tenure_testing.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=_range, default=range(300), help="run these: 1000 for 0-999, or 500-800")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="", help="a set piece instead of drawn plans")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=(*FAULTS, *MESSAGE_FAULTS),
        metavar="FAULT",
        help=f"leave a kind of fault out: {', '.join((*FAULTS, *MESSAGE_FAULTS))}",
    )
    parser.add_argument("--full", action="store_true", help="show the whole trace")
    parser.add_argument(
        "--within", type=float, help="fail if it takes longer than this many seconds, with one core per process"
    )
    parser.add_argument("--processes", type=int, default=0, help="processes at once (one a core)")
    parser.add_argument("--keep", type=Path, nargs="?", const=CORPUS, help=f"add failed worlds to this file ({CORPUS})")
    parser.add_argument(
        "--evidence", type=Path, metavar="PATH", help="try the mutants as well, and write PATH.md and PATH.json"
    )
    args = parser.parse_args(argv)
    if args.seed is not None:
        return _replay(args.seed, args.scenario, args.without, full=args.full)
    clock = clock or SystemClock()
    began, commit, figures = clock.uptime(), evidence.commit(), WorldFigures()
    for world in run_worlds(args.seeds, scenario=args.scenario, without=args.without, processes=args.processes):
        figures.add(world)
        for failure in world.failures:
            if len(figures.failures) <= REPORTED:
                _report(failure, args.without, shrink=len(figures.failures) <= SHRUNK)
            if args.keep is not None:
                keep(args.keep, failure)
    trials: list[Trial] = []
    if args.evidence is not None:
        trials += spread(tried, MUTANTS, args.processes)
    took, alone = clock.uptime() - began, processor_seconds(args.processes)
    rows = figures.rows()
    if trials:
        rows.append(("mutants caught", caught_of(trials)))
    rows.append(("speed", f"{figures.seeds / took:.1f} worlds a second, {took:.0f} s ({alone:.0f} s with a core each)"))
    _say("\n".join(f"{name:<20}  {row}" for name, row in rows))
    if args.evidence is not None:
        words = " ".join(["python -m tenure_testing.simulate", *(sys.argv[1:] if argv is None else argv)])
        written = evidence.write(args.evidence, figures, trials, command=words, at=commit, clock=clock, took=took)
        _say(f"{'written':<20}  {', '.join(map(str, written))}")
    if args.within is not None and alone > args.within:
        _say(f"{'too slow':<20}  {alone:.0f} s with a core each, more than {args.within:.0f} s")
        return 1
    return 1 if figures.failures or not all(trial.passed for trial in trials) else 0


def _replay(seed: int, scenario: str, without: Sequence[str], *, full: bool) -> int:
    world = made(seed, scenario=scenario, without=without)
    violation: Violation | None = None
    try:
        world.run()
    except Violation as one:
        violation = one
        _say(str(one))
    _say(str(world.plan))
    trace = world.trace_text().splitlines()
    _say("\n".join(trace if full else trace[-SHOWN:]))
    _say("\n".join(f"{name:<20}  {row}" for name, row in WorldFigures.of(world, violation).rows()))
    return 0 if violation is None else 1


def _report(failure: Failure, without: Sequence[str], *, shrink: bool) -> None:
    _say(failure.story)
    if shrink:
        world = shrunk(failure, without=without)
        _say(f"the least that fails has {', '.join(world.plan.kinds) or 'no fault at all'}: {world.command}")


def keep(corpus: Path, failure: Failure) -> None:
    """Add a failed world to the corpus unless it is already there."""
    line = f"{failure.seed} {failure.scenario}".strip()
    kept = corpus.read_text() if corpus.exists() else ""
    if line not in [known.partition("#")[0].strip() for known in kept.splitlines()]:
        corpus.write_text(f"{kept}{line:<31} # {failure.story.splitlines()[0][:120]}\n")


def _range(text: str) -> range:
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
