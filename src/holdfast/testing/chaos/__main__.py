"""Chaos on the command line: one act at a quick timing and one at the defaults; exit status 0 if both hold."""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

from holdfast.clock import Clock, SystemClock, entropy
from holdfast.errors import HoldfastError
from holdfast.options import Timing
from holdfast.testing.chaos.audit import Recovery
from holdfast.testing.chaos.run import Act, Outcome, play
from holdfast.testing.figures import spoken, spread

QUICK = 0.4
"""The share of the time that the quick timing gets."""


def main(argv: Sequence[str] | None = None, *, clock: Clock | None = None) -> int:
    """Play the acts that are asked for; return 0 if nothing speaks against the promise."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.chaos", description=__doc__)
    parser.add_argument("--storage", default="sqlite", choices=("sqlite", "redis", "valkey"), help="what to strike")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are committed, both acts together")
    parser.add_argument("--seed", type=int, help="which faults, in which order; drawn and told unless given")
    parser.add_argument("--act", choices=("quick", "default"), help="only this one")
    parser.add_argument(
        "--keep", action="store_true", help="leave the folder behind; it is in any case if all is not well"
    )
    asked = parser.parse_args(argv)
    clock = clock or SystemClock()
    seed = entropy().getrandbits(32) if asked.seed is None else asked.seed
    _say(f"chaos on {asked.storage}, seed {seed}")
    shares = {"quick": (Timing.fast(), QUICK), "default": (Timing(), 1 - QUICK)}
    ok = True
    for name, (timing, share) in shares.items():
        if asked.act not in (None, name):
            continue
        act = Act(
            name=name,
            storage=asked.storage,
            timing=timing,
            seconds=asked.minutes * 60 * (share if asked.act is None else 1),
            seed=seed,
            keep=asked.keep,
        )
        _say(
            f"\nact {name}: {act.seconds:.0f} s of faults; lease {timing.lease.total_seconds():g} s, "
            f"recovery bound {timing.recovery_bound.total_seconds():g} s"
        )
        try:
            outcome = asyncio.run(play(act, clock=clock, say=_say))
        except HoldfastError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        _say("\n".join(told(outcome)))
        ok = ok and outcome.finding.ok
    _say("\nall of it holds" if ok else f"\nNOT all of it holds; again: --storage {asked.storage} --seed {seed}")
    return 0 if ok else 1


def told(outcome: Outcome) -> list[str]:
    """Return an outcome as lines: the figures, then a verdict for each check."""
    finding = outcome.finding
    kinds = Counter(deed.kind for deed in outcome.deeds)
    rows = [
        ("faults", f"{kinds.total():,}: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))),
        *((f"without {kind}", why) for kind, why in outcome.without.items()),
        (
            "jobs",
            f"{sum(finding.jobs.values()):,}: " + ", ".join(f"{s} {n:,}" for s, n in sorted(finding.jobs.items())),
        ),
        ("runs", f"{finding.runs:,}"),
        ("at rest", f"{outcome.resting:.1f} s after the healing"),
        *_recoveries("recovery", finding.recoveries),
        *_recoveries("  nothing else wrong", [one for one in finding.recoveries if one.clear]),
    ]
    if finding.resumed:
        rows.append(("runs begin again", spoken(spread([one / 1_000_000 for one in finding.resumed]))))
    lines = [f"{name:<24}  {said}" for name, said in rows]
    for check in finding.checks:
        lines.append(f"{'ok    ' if check.holds else 'FAILED'}  {check.name:<62}  {check.told}")
        lines += [f"          {example}" for example in check.examples]
        if check.wrong > len(check.examples):
            lines.append(f"          and {check.wrong - len(check.examples):,} more")
    if outcome.folder is not None:
        lines.append(f"kept in {outcome.folder}")
    return lines + [f"    | {line}" for line in outcome.stderr]


def _recoveries(name: str, recoveries: Sequence[Recovery]) -> list[tuple[str, str]]:
    by_reason: dict[str, list[float]] = {}
    for one in recoveries:
        by_reason.setdefault("seen death" if one.seen else one.reason, []).append(one.delay / 1_000_000)
    return [(f"{name}, {reason}", spoken(spread(delays))) for reason, delays in sorted(by_reason.items())]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
