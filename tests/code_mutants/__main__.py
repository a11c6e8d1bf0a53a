"""`make mutants-code`: applies each mutant to a copy of the package and fails if one survives its tests."""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.code_mutants.catalog import Mutant, changed_files, chosen, head, load
from tests.code_mutants.trial import Trial, tried


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="make mutants-code", description=__doc__)
    parser.add_argument("names", nargs="*", help="run these only (a part of a name or of a file does)")
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--processes", type=int, default=2, help="how many run at a time (2)")
    parser.add_argument(
        "--within", type=float, help="start no mutant after this many seconds; report how many are left"
    )
    parser.add_argument(
        "--changed", type=int, metavar="HOURS", help="run those of files changed in the last HOURS, and a tenth"
    )
    args = parser.parse_args(arguments)
    mutants = load()
    if args.names:
        mutants = [item for item in mutants if any(name in item.name or name in item.file for name in args.names)]
    if args.changed is not None:
        mutants = chosen(mutants, changed_files(args.changed), head())
    if args.list:
        for mutant in mutants:
            print(f"{mutant.name:48} {mutant.file:40} {mutant.breaks}")
        print(f"{len(mutants)} mutants")
        return 0
    return _run(mutants, processes=args.processes, within=args.within)


def _run(mutants: Sequence[Mutant], *, processes: int, within: float | None) -> int:
    stale = [(mutant, why) for mutant in mutants if (why := mutant.stale()) is not None]
    for mutant, why in stale:
        print(f"STALE     {mutant.name}: {why}")
    began = time.monotonic()

    def trial(mutant: Mutant) -> Trial | None:
        if within is not None and time.monotonic() - began > within:
            return None
        return tried(mutant)

    fitting = [mutant for mutant in mutants if mutant.stale() is None]
    bad: list[Trial] = []
    left = 0
    with ThreadPoolExecutor(processes) as pool:
        for done in pool.map(trial, fitting):
            if done is None:
                left += 1
                continue
            print(f"{done.verdict:9} {done.mutant.name} ({done.seconds:.1f} s)", flush=True)
            if done.verdict != "found":
                bad.append(done)
    for done in bad:
        print(f"\n{done.verdict.upper()}: {done.mutant.name} ({done.mutant.file}): {done.mutant.breaks}")
        print(f"tests: {' '.join(done.mutant.tests)}\n{done.output}")
    found = len(fitting) - left - len(bad)
    print(f"\n{found} of {len(mutants)} mutants found in {time.monotonic() - began:.0f} s", end="")
    print(f", {left} not run for lack of time" if left else "")
    return 1 if bad or stale else 0


if __name__ == "__main__":
    sys.exit(main())
