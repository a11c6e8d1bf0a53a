"""Chaos on the command line: one act at a quick timing and one at the defaults; exit status 0 if both hold."""

import argparse
import asyncio
import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tenure.clock import SECOND, Clock, SystemClock, entropy
from tenure.errors import TenureError
from tenure.options import Timing
from tenure_testing import evidence
from tenure_testing.chaos.recoveries import ChaosRecovery
from tenure_testing.chaos.run import Act, Outcome, play
from tenure_testing.simulation.figures import spoken, spread

SHARES = {"quick": (Timing.fast(), 0.4), "default": (Timing(), 0.6)}
"""The acts: each timing, and its share of the time."""


def main(argv: Sequence[str] | None = None, *, clock: Clock | None = None) -> int:
    """Play the requested acts. Return 0 if every check of the audits passes."""
    parser = argparse.ArgumentParser(prog="python -m tenure_testing.chaos", description=__doc__)
    parser.add_argument(
        "--storage", default="sqlite", choices=("sqlite", "redis", "valkey", "postgres"), help="what to strike"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are committed, both acts together")
    parser.add_argument("--seed", type=int, help="which faults, in which order; drawn and printed unless given")
    parser.add_argument("--act", choices=tuple(SHARES), help="only this one")
    parser.add_argument(
        "--keep", action="store_true", help="leave the folder behind; it is in any case if all is not well"
    )
    parser.add_argument(
        "--control",
        action="store_true",
        help="on a server that keeps nothing: exit status 0 if the audit finds that out",
    )
    parser.add_argument("--evidence", type=Path, metavar="PATH", help="write the results to this page")
    args = parser.parse_args(argv)
    clock = clock or SystemClock()
    seed = entropy().getrandbits(32) if args.seed is None else args.seed
    commit = evidence.commit()
    _say(f"chaos on {args.storage}, seed {seed}")
    outcomes: list[Outcome] = []
    try:
        for name, (timing, share) in SHARES.items():
            if args.act in (None, name):
                seconds = args.minutes * 60 * (share if args.act is None else 1)
                act = Act(
                    name=name,
                    storage=args.storage,
                    timing=timing,
                    seconds=seconds,
                    seed=seed,
                    keep=args.keep,
                    control=args.control,
                )
                _say(f"\n{_title(act)}")
                outcomes.append(asyncio.run(play(act, clock=clock, say=_say)))
                _say("\n".join(outcome_lines(outcomes[-1])))
    except TenureError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        # At this point all processes have ended and the disk is unmounted.
        return 130
    ok = all(outcome.finding.ok for outcome in outcomes)
    if args.control:
        _say("\nthe audit did NOT find out" if ok else "\nthe audit found out that the server forgets, as it must")
        return 1 if ok else 0
    _say("\nall of it holds" if ok else f"\nNOT all of it holds; again: --storage {args.storage} --seed {seed}")
    if args.evidence is not None:
        date = datetime.fromtimestamp(clock.now() / SECOND, UTC).strftime("%Y-%m-%d %H:%M UTC")
        args.evidence.parent.mkdir(parents=True, exist_ok=True)
        args.evidence.write_text(_page(outcomes, date=date, commit=commit, minutes=args.minutes))
    return 0 if ok else 1


def _title(act: Act) -> str:
    lease, bound = act.timing.lease.total_seconds(), act.timing.recovery_bound.total_seconds()
    return f"act {act.name}: {act.seconds:.0f} s of faults; lease {lease:g} s, recovery bound {bound:g} s"


def _page(outcomes: Sequence[Outcome], *, date: str, commit: str, minutes: float) -> str:
    first = outcomes[0].act
    lines = [
        f"# What the chaos says of {first.storage}",
        "",
        "Generated, not typed. [Strike it yourself](../howto/chaos.md) describes the faults and",
        "what must hold.",
        "",
        f"    make chaos STORAGE={first.storage} MINUTES={minutes:g} SEED={first.seed}",
        "",
        f"{date}, commit {commit}, Python {platform.python_version()}, {os.cpu_count()} cores.",
    ]
    for outcome in outcomes:
        lines += ["", f"## {_title(outcome.act)}", "", "```", *outcome_lines(outcome), "```"]
    return "\n".join([*lines, ""])


def outcome_lines(outcome: Outcome) -> list[str]:
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
        *_recoveries("  nothing else wrong", [recovery for recovery in finding.recoveries if recovery.clear]),
    ]
    if finding.resumed:
        rows.append(("runs begin again", spoken(spread([item / SECOND for item in finding.resumed]))))
    lines = [f"{name:<24}  {row}" for name, row in rows]
    for check in finding.checks:
        lines.append(f"{'ok    ' if check.holds else 'FAILED'}  {check.name:<62}  {check.summary}")
        lines += [f"          {example}" for example in check.examples]
        if check.wrong > len(check.examples):
            lines.append(f"          and {check.wrong - len(check.examples):,} more")
    if outcome.folder is not None:
        lines.append(f"kept in {outcome.folder}")
    return lines + [f"    | {line}" for line in outcome.stderr]


def _recoveries(name: str, recoveries: Sequence[ChaosRecovery]) -> list[tuple[str, str]]:
    by_reason: dict[str, list[float]] = {}
    for recovery in recoveries:
        by_reason.setdefault("seen death" if recovery.seen else recovery.reason, []).append(recovery.delay / SECOND)
    return [(f"{name}, {reason}", spoken(spread(delays))) for reason, delays in sorted(by_reason.items())]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
