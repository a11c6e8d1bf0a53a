"""Makes the table that is printed, or the same as JSON, from the samples of several rounds."""

import os
import platform
import sqlite3
from collections.abc import Sequence
from statistics import median, quantiles
from typing import get_args

import msgspec
from msgspec import Struct

from benchmarks.cells import BEATING, BEATS, BURST, CALLERS, FRESH, TRIP, TURNS, Column, Sample


class Row(Struct, frozen=True):
    """A row of the table: what is counted, and how finely; `part` is the percentile, if one round gives many."""

    title: str
    sample: str
    unit: str
    digits: int = 0
    part: int = 50


ROWS = (
    Row("enqueue, one by one", "enqueue_one", "jobs/s"),
    Row(f"enqueue, {CALLERS} callers at once", "enqueue_callers", "jobs/s"),
    Row(f"enqueue, {TRIP} in a trip", "enqueue_many", "jobs/s"),
    Row("process, concurrency 10", "process_10", "jobs/s"),
    Row("process, concurrency 100", "process_100", "jobs/s"),
    Row("worker CPU for 1,000 jobs, concurrency 10", "cpu_10", "s", 3),
    Row("worker CPU for 1,000 jobs, concurrency 100", "cpu_100", "s", 3),
    Row("jobs/s in steady state, of a fresh storage's", "steady", "%", 1),
    Row("worker CPU in steady state, of a fresh storage's", "steady_cpu", "%", 1),
    Row("jobs/s with 10,000 runs that report progress each second, of silent ones", "reporting", "%", 1),
    Row("jobs/s with log records of each run (INFO), of those without", "logging", "%", 1),
    Row("enqueue to start, same process, p50", "wait_here", "ms", 2),
    Row("enqueue to start, same process, p99", "wait_here", "ms", 2, 99),
    Row("enqueue to start, other process, p50", "wait_there", "ms", 2),
    Row("enqueue to start, other process, p99", "wait_there", "ms", 2, 99),
    Row("enqueue to start, other process after a quiet time, p50", "wait_quiet", "ms", 2),
    Row("enqueue to start, other process after a quiet time, p99", "wait_quiet", "ms", 2, 99),
    Row("idle worker, of one core", "idle", "%", 2),
    Row("heartbeats of 10,000 active jobs, worker, of one core", "beats_client", "%", 1),
    Row("heartbeats of 10,000 active jobs, server, of one core", "beats_server", "%", 1),
    Row("jobs/s under a snapshot held for a minute, of those before", "snapshot", "%", 1),
    Row("testing kit: enqueue and drain 1,000 jobs", "kit_drain", "s", 2),
    Row("testing kit: travel 30 days with a cron of each minute", "kit_cron", "s", 2),
)

COLUMNS: tuple[Column, ...] = get_args(Column)


class Figure(Struct, frozen=True):
    """The median of the rounds, and the least and the most of them."""

    median: float
    least: float
    most: float


class Line(Struct, frozen=True):
    """A row of the table with its figures; None where a column has none."""

    title: str
    unit: str
    memory: Figure | None
    sqlite: Figure | None
    sqlite_floor: Figure | None
    redis: Figure | None
    redis_floor: Figure | None
    postgres: Figure | None


class Machine(Struct, frozen=True):
    """The machine that the figures were measured on."""

    python: str
    sqlite: str
    redis: str | None
    postgres: str | None
    system: str
    cores: int
    load: float


class Report(Struct, frozen=True):
    """The printed report."""

    machine: Machine
    rounds: int
    seconds: float
    lines: list[Line]


def machine(redis: str | None = None, postgres: str | None = None) -> Machine:
    """Return the facts about this machine; `redis`, `postgres`: the version of the server, if there is one."""
    return Machine(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        sqlite=sqlite3.sqlite_version,
        redis=redis,
        postgres=postgres,
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        load=round(os.getloadavg()[0], 2),
    )


def lines(samples: Sequence[Sample]) -> list[Line]:
    """Return the lines of the table."""
    return [Line(row.title, row.unit, *(_figure(row, column, samples) for column in COLUMNS)) for row in ROWS]


def as_json(report: Report) -> str:
    """Return the report for a program to read."""
    return msgspec.json.format(msgspec.json.encode(report)).decode()


def as_table(report: Report) -> str:
    """Return the report as text."""
    on = report.machine
    body = [_cells(row, line) for row, line in zip(ROWS, report.lines, strict=True)]
    rows = [("", "memory", "SQLite", "floor", "of it", "Redis", "floor", "of it", "PostgreSQL"), *body]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    table = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "\n".join(
        [
            f"{on.python}, SQLite {on.sqlite}, {f'Redis {on.redis}' if on.redis else 'no Redis'}, "
            f"{f'PostgreSQL {on.postgres}' if on.postgres else 'no PostgreSQL'}, {on.system}, {on.cores} cores, "
            f"load {on.load:g} at the start",
            f"{report.rounds} rounds in {report.seconds:.0f} s; medians, and how far the rounds lie apart",
            "",
            *table,
            "",
            "SQLite: durability full, a worker in a process of its own. Floor: bare INSERTs in this run with the same",
            "pragmas, as many to a COMMIT as callers, calls in a trip or runs at once; for the waits two COMMITs.",
            "Redis: a server of its own on the loopback, appendonly with fsync each second. Floor: bare calls of a",
            "script that does nothing, by redis-py, as many in a trip; for the waits two trips.",
            "PostgreSQL: a server of its own on the loopback, fsync on, synchronous_commit on.",
            f"Heartbeats: of {BEATING:,} active jobs, over {BEATS:.0f} s; the server and the worker apart.",
            "Steady state: the maximum of completed jobs is kept, so each that completes deletes another;",
            f"concurrency 100; medians of {FRESH * TURNS} turns of {BURST:,} jobs; {FRESH} fresh storages.",
        ]
    )


def _figure(row: Row, column: Column, samples: Sequence[Sample]) -> Figure | None:
    rounds = [_part(found.values, row.part) for found in samples if (found.row, found.column) == (row.sample, column)]
    return Figure(median(rounds), min(rounds), max(rounds)) if rounds else None


def _part(values: Sequence[float], part: int) -> float:
    if len(values) == 1:
        return values[0]
    return median(values) if part == 50 else quantiles(values, n=100, method="inclusive")[part - 1]


def _cells(row: Row, line: Line) -> tuple[str, ...]:
    return (
        f"{line.title} ({line.unit})",
        _shown(line.memory, row.digits),
        _shown(line.sqlite, row.digits),
        _shown(line.sqlite_floor, row.digits),
        _share(line.sqlite, line.sqlite_floor),
        _shown(line.redis, row.digits),
        _shown(line.redis_floor, row.digits),
        _share(line.redis, line.redis_floor),
        _shown(line.postgres, row.digits),
    )


def _share(figure: Figure | None, floor: Figure | None) -> str:
    return f"{figure.median / floor.median:.0%}" if figure and floor else ""


def _shown(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return ""
    spread = (figure.most - figure.least) / 2 / figure.median if figure.median else 0.0
    return f"{figure.median:,.{digits}f} ±{spread:3.0%}"
