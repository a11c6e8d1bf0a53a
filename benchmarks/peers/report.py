"""Writes docs/benchmarks from the results of a run: `make bench-report`."""

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.growth import Growth
from benchmarks.peers.charts import charts
from benchmarks.peers.environments import MADE, ROOT, tool
from benchmarks.peers.found import OURS, OURS_ON_POSTGRES, OURS_ON_SQLITE, Found, in_order, kind
from benchmarks.peers.goals import judged, shown
from benchmarks.peers.results import Entry, Results, Summary, together

PLOTTERS = (
    "contourpy==1.4.0",
    "cycler==0.12.1",
    "fonttools==4.68.0",
    "kiwisolver==1.5.1",
    "matplotlib==3.11.2",
    "numpy==2.5.5",
    "packaging==26.3",
    "pillow==13.0.0",
    "pyparsing==3.3.3",
    "python-dateutil==4.0.0",
    "tzdata==2026.6",
)
ROUNDS_FOR_CLAIMS = 5
IDLE_LOAD = 1.0
LONGEST = 300
"""How many characters of a failure are shown."""

GROUPS = {
    "ours": "",
    "after": "",
    "outside": "*another language, an outside mark*",
    "before": "*acknowledges before the work: what runs is lost with its worker*",
    "floor": "*no queue: the bare storage*",
}


class Column(Struct, frozen=True):
    """A column of a table: one figure of one cell."""

    title: str
    cell: str
    figure: str = "rate"


class Table(Struct, frozen=True):
    """A table of figures; its first column decides the order. `most`: whether more is better there."""

    title: str
    unit: str
    columns: tuple[Column, ...]
    most: bool = True
    note: str = ""


TABLES = (
    Table(
        "Enqueue",
        "jobs per second",
        (
            Column("50 callers at once", "enqueue_callers"),
            Column("one by one", "enqueue_one"),
            Column("in bulk, 1,000 a call", "enqueue_bulk"),
        ),
    ),
    Table(
        "Process no-op jobs",
        "jobs per second",
        (
            Column("100 at once", "process_100"),
            Column("10 at once", "process_10"),
            Column("two processes of 100", "process_100_two"),
            Column("two processes of 10", "process_10_two"),
            Column("1,000 at once", "process_1000"),
        ),
    ),
    Table(
        "Process among many jobs, and after many",
        "jobs per second, 100 at once; jobs that waited at the start; jobs that had gone through before",
        (
            Column("long backlog", "process_backlog"),
            Column("that waited", "process_backlog", "jobs"),
            Column("after many", "process_worn"),
            Column("gone before", "process_worn", "gone"),
        ),
    ),
    Table(
        "Process with 1 KB there and back",
        "jobs per second; results read back per second by 50 callers",
        (
            Column("100 at once", "echo_100"),
            Column("10 at once", "echo_10"),
            Column("results read", "echo_100", "read"),
        ),
    ),
    Table(
        "From enqueue to start",
        "milliseconds; half load is half of what the queue does itself",
        (
            Column("idle, p50", "latency_idle", "p50"),
            Column("idle, p99", "latency_idle", "p99"),
            Column("half load, p50", "latency_loaded", "p50"),
            Column("half load, p99", "latency_loaded", "p99"),
            Column("the load, jobs/s", "latency_loaded", "load"),
        ),
        most=False,
    ),
    Table(
        "What a job costs, and what waiting costs",
        "processor seconds for 1,000 jobs at 100 at once; bytes of a waiting job of 200 B; an idle worker, "
        "whose commands count those within scripts, and on PostgreSQL are transactions",
        (
            Column("worker", "process_100", "worker_cpu"),
            Column("server", "process_100", "server_cpu"),
            Column("bytes waiting", "memory", "bytes"),
            Column("idle: commands/s", "idle", "commands"),
            Column("idle: worker, % of a core", "idle", "worker_cpu"),
        ),
        most=False,
    ),
    Table(
        "kill -9: ten of twenty jobs running",
        "seconds until the last of them started again; jobs; one run of each",
        (
            Column("defaults: back after", "recovery_default", "last"),
            Column("unfinished", "recovery_default", "unfinished"),
            Column("run too often", "recovery_default", "twice"),
            Column("tightest: back after", "recovery_tight", "last"),
            Column("unfinished ", "recovery_tight", "unfinished"),
            Column("run too often ", "recovery_tight", "twice"),
            Column("seen by a supervisor: back after", "recovery_seen", "last"),
            Column("unfinished  ", "recovery_seen", "unfinished"),
        ),
        most=False,
        note="Unfinished 90 s after the kill. The tightest settings cost each peer something else: see the settings.",
    ),
)


def page(found: Found, growth: Growth | None, drawn: Sequence[tuple[str, str]]) -> str:
    """Return the page; `drawn`: the title and file of each plot."""
    parts = [
        _head(found),
        _goals(found, growth),
        _plots(drawn),
        *(
            part
            for storage, title in (("redis", "On Redis"), ("sqlite", "On SQLite"), ("postgresql", "On PostgreSQL"))
            for part in _tables(found, storage, title)
        ),
        _growth(growth),
        _settings(found),
        _odd(found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(found: Found) -> str:
    results = found.results
    on = results.machine
    ours = next((found.entries[key] for key in (OURS, OURS_ON_SQLITE, OURS_ON_POSTGRES) if key in found.entries), None)
    servers = [
        f"{name} {version} ({_listed(settings)})"
        for name, version, settings in (
            ("Redis", on.redis, on.redis_settings),
            ("PostgreSQL", on.postgres, on.postgres_settings),
        )
        if version
    ]
    servers.append(f"SQLite {on.sqlite}")
    minutes = results.seconds / 60
    lines = [
        "<!-- written by python -m benchmarks.peers.report; edit that, or measure again -->",
        "# Benchmarks",
        "",
        "Our queue and others on one machine, in rounds that shuffle them all. `make bench-peers` does the",
        "same on yours, and [this page](../howto/benchmarks.md) says how it measures, and which queues it "
        "puts at a disadvantage.",
        "Quote ratios, and of a run of your own: the figures are this machine's, and that day's.",
        "",
        "| | |",
        "|---|---|",
        f"| begun | {results.began}; rounds: {results.rounds}, in {minutes:.0f} minutes, seed {results.seed} |",
        f"| machine | {on.processor}, {on.cores} cores, {on.memory_gib:g} GiB, {on.system} |",
        f"| load | {on.load:g} at the start |",
        f"| interpreter | {ours.interpreter if ours else on.python}, where an entry names no other below |",
        f"| servers | {', '.join(servers)} |",
        "",
        "Figures are medians of the rounds, ± half of what lies between the least and the most of them; one without",
        "a ± is of one round. Which cells are taken in fewer rounds, that page says. An empty field was not taken.",
    ]
    warnings: list[str] = []
    if on.load > IDLE_LOAD:
        warnings.append(f"the machine was busy with other things (load {on.load:g} on {on.cores} cores)")
    if results.rounds < ROUNDS_FOR_CLAIMS:
        warnings.append(f"of {ROUNDS_FOR_CLAIMS} rounds it took {results.rounds}")
    if warnings:
        lines += ["", f"> **Not for quoting:** {', and '.join(warnings)}."]
    return "\n".join(lines)


def _listed(settings: dict[str, str]) -> str:
    return ", ".join(f"{name} {value or 'nothing'}" for name, value in settings.items())


def _goals(found: Found, growth: Growth | None) -> str:
    goals = judged(found, growth)
    met = sum(goal.met is True for goal in goals)
    missed = sum(goal.met is False for goal in goals)
    rows = [
        (
            goal.what,
            goal.goal,
            "" if goal.ratio is None else f"{shown(goal.ratio)}{goal.unit}",
            goal.against,
            goal.verdict,
        )
        for goal in goals
    ]
    summary = f"{met} met, {missed} missed, {len(goals) - met - missed} not measured in this run."
    return "\n".join(
        ["## The goals", "", summary, "", *_grid(("what", "goal", "measured", "against", ""), rows, right={2})]
    )


def _plots(drawn: Sequence[tuple[str, str]]) -> str:
    return "\n\n".join(["## Plots", *(f"![{title}]({file})" for title, file in drawn)]) if drawn else ""


def _tables(found: Found, storage: str, title: str) -> Iterator[str]:
    entries = found.on(storage)
    if not entries:
        return
    yield f"## {title}"
    for table in TABLES:
        shown_columns = [column for column in table.columns if _any(found, entries, column)]
        if shown_columns:
            yield _table(found, entries, table, shown_columns)


def _any(found: Found, entries: Sequence[Entry], column: Column) -> bool:
    return any(found.figure(entry.key, column.cell, column.figure) for entry in entries)


def _table(found: Found, entries: Sequence[Entry], table: Table, columns: Sequence[Column]) -> str:
    first = columns[0]
    rows: list[tuple[str, ...]] = []
    group = "ours"
    for entry in in_order(entries, found, first.cell, first.figure, most=table.most):
        cells = tuple(_cell(found, entry, column) for column in columns)
        if not any(cells):
            continue
        if kind(entry) != group and GROUPS[group := kind(entry)]:
            rows.append((GROUPS[group], *("" for _ in columns)))
        name = f"**{entry.title}**" if kind(entry) == "ours" else entry.title
        rows.append((f"{name} ({entry.interpreter})" if kind(entry) == "ours" else name, *cells))
    heads = ("", *(column.title.strip() for column in columns))
    lines = [f"### {table.title}", "", f"In {table.unit}.", "", *_grid(heads, rows, right=set(range(1, len(heads))))]
    return "\n".join([*lines, "", table.note] if table.note else lines)


def _cell(found: Found, entry: Entry, column: Column) -> str:
    got = found.figure(entry.key, column.cell, column.figure)
    if got is not None:
        return _with_spread(got)
    # A figure may be missing in a cell that has others, such as when no job ever came back.
    why = found.why_not(entry.key, column.cell)
    if why is None and column.figure == "last" and found.figure(entry.key, column.cell, "unfinished"):
        return "never"
    return why or ""


def _with_spread(got: Summary) -> str:
    return shown(got.median) if got.rounds < 2 else f"{shown(got.median)} ±{got.spread:.0%}"


def _growth(growth: Growth | None) -> str:
    if growth is None:
        return ""
    rows = [
        (
            point.medium,
            point.axis,
            point.shape.title,
            f"{point.worker_us:.0f}",
            f"{point.server_us:.0f}" if point.server_us else "",
            f"{point.times:.2f} ({point.least:.2f} to {point.most:.2f})",
            f"{point.enqueue_us:.0f}",
            f"{point.enqueue_times:.2f}",
        )
        for point in growth.points
    ]
    heads = ("", "what grows", "to", "worker, µs", "server, µs", "times the first", "enqueue, µs", "times")
    return "\n".join(
        [
            "## What a job costs as work grows",
            "",
            "Processor time to settle and claim a job, ten in an exchange, and to enqueue it; medians of",
            f"{growth.blocks} blocks of {growth.jobs_a_block} jobs taken in turns (`make bench-growth`, load "
            f"{growth.machine.load:g} at its start).",
            "",
            *_grid(heads, rows, right={3, 4, 5, 6, 7}),
        ]
    )


def _settings(found: Found) -> str:
    lines = ["## Versions and settings"]
    for entry in found.results.peers:
        versions = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
        lines += [
            "",
            f"**{entry.title}** on {entry.storage}: {', '.join(filter(None, (versions, entry.interpreter)))}",
            "",
        ]
        lines += [f"- {name}: {value}" for name, value in entry.settings.items()]
        if entry.tight:
            lines.append(f"- tightest: {'; '.join(f'{name} {value}' for name, value in entry.tight.items())}")
        if entry.recovery:
            lines.append(f"- jobs of a dead worker, by its documentation: {entry.recovery}")
        lines += [f"- note: {note}" for note in entry.notes]
    return "\n".join(lines)


def _odd(found: Found) -> str:
    lines: dict[str, None] = {}
    for sample in found.results.samples:
        if sample.cannot:
            lines[f"- {sample.peer}, {sample.cell}: cannot: {_short(sample.cannot)}"] = None
        for words in (sample.failed and f"failed: {sample.failed}", *sample.remarks):
            if words:
                lines[f"- {sample.peer}, {sample.cell}, round {sample.round}: {_short(words)}"] = None
    for key, why in found.results.unavailable.items():
        lines[f"- {key} could not be had here: {_short(why)}"] = None
    return "\n".join(["## What failed, cannot be had, or was odd", "", *lines]) if lines else ""


def _short(words: str) -> str:
    words = " ".join(words.split())
    # The end of a traceback names the error.
    return words if len(words) <= LONGEST else f"{words[: LONGEST // 5]} ... {words[-LONGEST * 4 // 5 :]}"


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: set[int]) -> list[str]:
    rules = ["---:" if place in right else "---" for place in range(len(heads))]
    return [f"| {' | '.join(line)} |" for line in (heads, rules, *rows)]


def _draw(found: Found, growth: Growth | None, folder: Path) -> list[tuple[str, str]]:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    wanted = charts(found, growth)
    program = Path(__file__).with_name("plots.py")
    python = tool("plots", PLOTTERS)
    subprocess.run([python, str(program), str(folder)], input=json.dumps(wanted), text=True, check=True)
    return [(str(chart["title"]), f"{folder.name}/{chart['file']}") for chart in wanted]


def main() -> None:
    """Write the page, the plots and a copy of the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "results", nargs="*", type=Path, default=[MADE / "results.json"], help="what a run has written, or several runs"
    )
    parser.add_argument("--growth", type=Path, default=MADE / "growth.json", help="what make bench-growth has written")
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "docs" / "benchmarks", help="the folder to write to"
    )
    parser.add_argument(
        "--name", default="", help="of a run on another machine, such as one of a single storage: begins its file names"
    )
    args = parser.parse_args()
    results = together([msgspec.json.decode(path.read_bytes(), type=Results) for path in args.results])
    found = Found(results)
    with_growth = args.growth.exists() and not args.name
    growth = msgspec.json.decode(args.growth.read_bytes(), type=Growth) if with_growth else None
    named = f"{args.name}-" if args.name else ""
    drawn = _draw(found, growth, args.output / f"{named}plots")
    (args.output / f"{named}results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    if growth is not None:
        (args.output / "growth.json").write_bytes(args.growth.read_bytes())
    (args.output / f"{args.name or 'README'}.md").write_text(page(found, growth, drawn))
    print(f"written to {args.output}")


if __name__ == "__main__":
    main()
