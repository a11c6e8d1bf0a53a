"""Writes the results of a simulation as a page and as data, with their date and commit."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tenure.clock import SECOND, Clock
from tenure_testing.mutants.trials import Trial, caught_of, table
from tenure_testing.simulation.figures import WorldFigures


def commit() -> str:
    """Return the commit that is checked out here, and whether the tree differs from it."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head} with uncommitted changes" if changed else head


def write(
    path: Path, figures: WorldFigures, trials: Sequence[Trial], *, command: str, at: str, clock: Clock, took: float
) -> list[Path]:
    """Write the page and the data file, and return their paths. `at`: the commit. `took`: the seconds."""
    date = datetime.fromtimestamp(clock.now() / SECOND, UTC).strftime("%Y-%m-%d %H:%M UTC")
    origin = {
        "date": date,
        "commit": at,
        "python": platform.python_version(),
        "command": command,
        "seconds": round(took),
    }
    page, data = path.with_suffix(".md"), path.with_suffix(".json")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(_page(figures, trials, origin))
    content = {**origin, **figures.as_data(), "mutants": [trial.as_data() for trial in trials]}
    data.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    return [page, data]


def _page(figures: WorldFigures, trials: Sequence[Trial], origin: Mapping[str, object]) -> str:
    lines = [
        "# What the simulation says",
        "",
        "Generated, not typed: run the command to write it again. For what is simulated and what must hold, read",
        "`src/tenure_testing/simulation/world.py` and `invariants.py`.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {item} |" for name, item in origin.items()),
        *(f"| {name.strip()} | {row} |" for name, row in figures.rows()),
        f"| mutants caught | {caught_of(trials)} |",
        "",
        "## Mutants",
        "",
        "Each is the storage with one guard taken out; the simulation must find it out within 500 seeds, and find",
        "nothing in the same world with the guard in place. What is harmless must not be found out.",
        "",
        *table(trials),
        "",
    ]
    return "\n".join(lines)


def _git(*words: str) -> str:
    # The caller's PATH decides which git runs. The arguments are constants of this module.
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)  # noqa: S603, S607
    return done.stdout.strip()
