"""Measures, and prints the results: `make bench`, or `make bench ARGS="-o json"`.

Redis and PostgreSQL are measured on servers that are started for it, if this machine has them.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.cells import Places, Sample, one_round
from benchmarks.report import Report, as_json, as_table, lines, machine
from benchmarks.server import a_postgres, a_server, postgres_version
from tests.postgres_servers import PostgresServer


async def measured(rounds: int, server: str | None, postgres: PostgresServer | None) -> list[Sample]:
    """Return the samples of this many rounds, each in a fresh temporary folder and fresh namespaces."""
    samples: list[Sample] = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
            samples += [sample async for sample in one_round(Places(Path(folder), server, postgres))]
    return samples


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--rounds", type=int, default=3, help="how often each figure is taken (3)")
    args = parser.parse_args()
    with a_server() as server, a_postgres() as postgres:
        on = machine(server.version if server else None, postgres_version() if postgres else None)
        began = time.perf_counter()
        samples = asyncio.run(measured(args.rounds, server.url if server else None, postgres))
    report = Report(on, args.rounds, time.perf_counter() - began, lines(samples))
    print(as_json(report) if args.output == "json" else as_table(report))


if __name__ == "__main__":
    main()
