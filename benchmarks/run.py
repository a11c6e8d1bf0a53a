"""Measures, and prints what it found: `make bench`, or `make bench ARGS="-o json"`."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.cells import Sample, one_round
from benchmarks.report import Report, as_json, as_table, lines, machine


async def measured(rounds: int) -> list[Sample]:
    """Return the samples of so many rounds, each in a fresh temporary folder."""
    samples: list[Sample] = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            samples += [sample async for sample in one_round(Path(folder))]
    return samples


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--rounds", type=int, default=3, help="how often each figure is taken (3)")
    asked = parser.parse_args()
    on, began = machine(), time.perf_counter()
    samples = asyncio.run(measured(asked.rounds))
    report = Report(on, asked.rounds, time.perf_counter() - began, lines(samples))
    print(as_json(report) if asked.output == "json" else as_table(report))


if __name__ == "__main__":
    main()
