"""Measures our queue and others on this machine, in this run: `make bench-peers`.

It starts its own Redis on the loopback, which keeps nothing on disk, and a PostgreSQL that writes through to the disk,
installs each peer into its own environment below .bench/ the first time, and writes the results as JSON.
docs/howto/benchmarks.md explains how to read it.
"""

import argparse
import os
import platform
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import get_args

import msgspec

from benchmarks.peers.cells import BACKLOG, CELLS, QUANTITIES, STARTING, WORN, Cell, Known, place, taken
from benchmarks.peers.environments import MADE, Source, Storage, command, sources
from benchmarks.peers.order import Order
from benchmarks.peers.plan import TOGETHER, Turn, chosen, expected, turns
from benchmarks.peers.process import ADAPTERS, Adapter, Cannot, Failed
from benchmarks.peers.results import Entry, Machine, Results, Sample, values
from benchmarks.peers.server import POSTGRES_SETTINGS, SETTINGS, Postgres, RedisServer, Server, a_server
from benchmarks.peers.tally import MOST
from benchmarks.server import a_postgres, postgres_version
from tests.postgres_servers import PostgresServer, missing_postgres

STORAGES = get_args(Storage)


class Run:
    """One run: what is measured, and the results so far."""

    def __init__(self, args: argparse.Namespace, server: RedisServer, postgres: PostgresServer | None) -> None:
        self._asked = args
        self._server = server
        self._postgres = None if postgres is None else Postgres(postgres)
        self._sources: dict[str, Source] = {}
        self._commands: dict[str, list[str]] = {}
        self._entries: dict[str, Entry] = {}
        self._unavailable: dict[str, str] = {}
        self._samples: list[Sample] = []
        self._began = datetime.now(UTC)
        self._clock = time.monotonic()
        self._machine = _machine(server, self._postgres)
        self._rounds = 0

    def prepare(self) -> None:
        """Install what is missing, and ask each adapter for its facts."""
        known = sources()
        if unknown := set(self._asked.only) - set(known):
            raise SystemExit(f"unknown peer {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        for key, source in known.items():
            if key in (self._asked.only or known) and source.storage in (self._asked.storage or STORAGES):
                try:
                    if source.storage == "postgresql" and self._postgres is None:
                        raise RuntimeError(str(missing_postgres(own=True)))
                    words = command(key)
                    self._entries[key] = _described(key, source, words, self._server)
                except (RuntimeError, OSError, Failed) as error:
                    self._unavailable[key] = str(error)
                    _tell(f"{key} cannot be had: {error}")
                else:
                    self._commands[key], self._sources[key] = words, source
        # An installation just now does not count for the time.
        self._clock = time.monotonic()

    def measure(self, write: Callable[[Results], None]) -> None:
        """Run the rounds for which there is time; the results are written after each."""
        peers, cells = {key: cells_of(self._sources[key]) for key in self._entries}, chosen(self._asked.cells)
        for number in range(1, self._asked.rounds + 1):
            due = turns(peers, cells, number=number, seed=self._asked.seed)
            if self._passed() + expected(due, self._samples) > 60 * self._asked.within:
                _tell(f"no time for round {number} within {self._asked.within:g} minutes")
                break
            self._rounds = number
            self._round(due)
            write(self.results())

    def results(self) -> Results:
        """Return the results so far."""
        options = {name: str(value) for name, value in vars(self._asked).items() if value and name != "output"}
        return Results(
            began=self._began.isoformat(timespec="seconds"),
            seconds=round(self._passed(), 1),
            seed=self._asked.seed,
            rounds=self._rounds,
            options=options,
            machine=self._machine,
            peers=list(self._entries.values()),
            quantities=list(QUANTITIES),
            samples=self._samples,
            unavailable=self._unavailable,
        )

    def _round(self, due: Sequence[Turn]) -> None:
        alone = [turn for turn in due if turn[1].alone]
        for place_in_round, (key, cell) in enumerate(alone, 1):
            if self._passed() > 60 * self._asked.within:
                _tell("no time for the rest of the round")
                return
            with self._lent(key, self._server) as server:
                self._keep(self._taken(key, cell, server), f"{place_in_round}/{len(alone)}")
        with ThreadPoolExecutor(TOGETHER) as pool:
            try:
                for sample in pool.map(self._run_with_others, [turn for turn in due if not turn[1].alone]):
                    self._keep(sample, "with others")
            except BaseException:
                # Otherwise they would be waited for, and they are the ones that wait for minutes.
                pool.shutdown(wait=False, cancel_futures=True)
                ADAPTERS.end()
                raise

    def _run_with_others(self, turn: Turn) -> Sample:
        key, cell = turn
        with self._lent(key) as server:
            return self._taken(key, cell, server)

    @contextmanager
    def _lent(self, key: str, redis: RedisServer | None = None) -> Generator[Server | None]:
        """Lend the server that a peer keeps its jobs in, if any; `redis`: this one, and not another."""
        storage = self._sources[key].storage
        if storage == "redis" and redis is None:
            with a_server() as another:
                yield another
        elif storage == "postgresql":
            assert self._postgres is not None
            with self._postgres.database() as database:
                yield database
        else:
            yield redis if storage == "redis" else None

    def _taken(self, key: str, cell: Cell, server: Server | None) -> Sample:
        sizes = {"backlog": self._asked.backlog, "worn": self._asked.worn}
        with place(self._entries[key], self._commands[key], server, cell.name, **sizes) as at:
            return taken(cell, at, self._known(key), self._rounds)

    def _known(self, key: str) -> Known:
        def known(cell: str, figure: str) -> float | None:
            found = values(self._samples, peer=key, cell=cell, figure=figure)
            return median(found) if found else None

        return known

    def _keep(self, sample: Sample, where: str) -> None:
        self._samples.append(sample)
        shown = (
            sample.failed
            or sample.cannot
            or ", ".join(f"{name} {value:,.3f}" for name, value in sample.figures.items())
        )
        remarks = "".join(f" ({remark})" for remark in sample.remarks)
        word = "FAILED: " if sample.failed else "cannot: " if sample.cannot else ""
        _tell(f"round {self._rounds} {where} {sample.peer} {sample.cell}: {word}{shown}{remarks} [{sample.took:.1f} s]")

    def _passed(self) -> float:
        return time.monotonic() - self._clock


def cells_of(source: Source) -> list[str]:
    """Return the cells that a peer is measured in."""
    return source.cells or [cell.name for cell in CELLS if not cell.on or source.storage in cell.on]


def _described(key: str, source: Source, words: list[str], server: Server) -> Entry:
    url = server.url if source.storage == "redis" else f"{source.storage}:///nowhere"
    with tempfile.TemporaryDirectory() as folder, Adapter(words, Order("describe", url=url, tally=folder)) as adapter:
        try:
            output = adapter.hear("described", STARTING)
        except Cannot as why:
            raise Failed(str(why)) from None
    return msgspec.convert({**output, "key": key, "storage": source.storage}, Entry)


def _machine(server: RedisServer, postgres: Postgres | None) -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(memory, 1),
        load=round(os.getloadavg()[0], 2),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        redis=server.version,
        redis_settings=SETTINGS,
        sqlite=sqlite3.sqlite_version,
        postgres=None if postgres is None else postgres_version(),
        postgres_settings={} if postgres is None else postgres.settings,
    )


def _processor() -> str:
    try:
        output = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in output.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _names(text: str) -> list[str]:
    return [name for name in text.replace(",", " ").split() if name]


def main() -> None:
    """Measure, and write."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each figure is taken at most (5)")
    parser.add_argument("--only", type=_names, default=[], metavar="PEERS", help="these peers: tenure,saq,floor")
    parser.add_argument("--cells", type=_names, default=[], metavar="CELLS", help="these cells: process_10,process_100")
    parser.add_argument(
        "--storage", type=_names, default=[], metavar="STORAGES", help="peers on these: redis,sqlite,postgresql"
    )
    parser.add_argument("--backlog", type=int, default=BACKLOG, help="jobs that wait in process_backlog (%(default)s)")
    parser.add_argument("--worn", type=int, default=WORN, help="jobs that go through before process_worn (%(default)s)")
    parser.add_argument(
        "--within", type=float, default=60.0, metavar="MINUTES", help="begin no round that would end later"
    )
    parser.add_argument("--seed", type=int, default=7, help="decides the order of the cells (7)")
    parser.add_argument("-o", "--output", type=Path, default=MADE / "results.json", help="where the JSON goes")
    args = parser.parse_args()
    if unknown := set(args.storage) - set(STORAGES):
        parser.error(f"unknown storage {', '.join(sorted(unknown))}; there are {', '.join(STORAGES)}")
    if not 0 < args.worn <= MOST:
        # One worker notes them all.
        parser.error(f"--worn is from 1 to {MOST}")
    try:
        chosen(args.cells)
    except ValueError as error:
        parser.error(str(error))

    def write(results: Results) -> None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
        _tell(f"written to {args.output}")

    # So that the end of this ends the adapters and servers too.
    signal.signal(signal.SIGTERM, _end)
    with a_server() as server, a_postgres(**POSTGRES_SETTINGS) as postgres:
        run = Run(args, server, postgres)
        run.prepare()
        run.measure(write)


if __name__ == "__main__":
    main()
