"""The data of the charts, for plots.py, which runs in another environment and does not import this."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.growth import Growth
from benchmarks.peers.found import Found, in_order, kind
from benchmarks.peers.goals import shown
from benchmarks.peers.results import Entry

Chart = dict[str, Any]
Panel = tuple[str, str, str, bool]
"""A title, a cell, a figure of it, and whether more of it is better."""

BARS: tuple[tuple[str, str, str, tuple[Panel, ...]], ...] = (
    (
        "process.svg",
        "redis",
        "Redis: no-op jobs a second, one worker process",
        (("100 at once", "process_100", "rate", True), ("10 at once", "process_10", "rate", True)),
    ),
    (
        "enqueue.svg",
        "redis",
        "Redis: jobs enqueued a second",
        (
            ("one by one", "enqueue_one", "rate", True),
            ("50 callers at once", "enqueue_callers", "rate", True),
            ("in bulk, 1,000 a call", "enqueue_bulk", "rate", True),
        ),
    ),
    (
        "latency.svg",
        "redis",
        "Redis: milliseconds from enqueue to start, idle (less is better; logarithmic)",
        (("p50", "latency_idle", "p50", False), ("p99", "latency_idle", "p99", False)),
    ),
    (
        "cost.svg",
        "redis",
        "Redis: what a job costs (less is better)",
        (
            ("worker: processor seconds for 1,000 jobs, 100 at once", "process_100", "worker_cpu", False),
            ("server: processor seconds for 1,000 jobs, 100 at once", "process_100", "server_cpu", False),
            ("bytes of a waiting job of 200 B", "memory", "bytes", False),
        ),
    ),
    (
        "recovery.svg",
        "redis",
        "Redis: seconds until all jobs of a killed worker started again, defaults (less is better)",
        (("those that did not finish them all are missing: see the table", "recovery_default", "last", False),),
    ),
    (
        "sqlite.svg",
        "sqlite",
        "SQLite: jobs a second",
        (
            ("processed, 100 at once", "process_100", "rate", True),
            ("processed, 10 at once", "process_10", "rate", True),
            ("enqueued by 50 callers at once", "enqueue_callers", "rate", True),
            ("enqueued one by one", "enqueue_one", "rate", True),
        ),
    ),
    (
        "postgres.svg",
        "postgresql",
        "PostgreSQL: jobs a second",
        (
            ("processed, 10 at once", "process_10", "rate", True),
            ("processed, 100 at once", "process_100", "rate", True),
            ("processed, 1,000 at once", "process_1000", "rate", True),
            ("processed among a long backlog, 100 at once", "process_backlog", "rate", True),
            ("enqueued one by one", "enqueue_one", "rate", True),
            ("enqueued in bulk, 1,000 a call", "enqueue_bulk", "rate", True),
        ),
    ),
)

DECADES = {"latency.svg"}
"""Drawn over a logarithm: some of its figures are hundreds of times others."""

AXES = (
    ("jobs that wait", "jobs that wait"),
    ("concurrency keys", "concurrency keys"),
    ("queues, all with jobs", "queues"),
)


def charts(found: Found, growth: Growth | None) -> list[Chart]:
    """Return all charts for which figures exist."""
    return [*_bars(found), *_growth(growth)]


def _bars(found: Found) -> Iterator[Chart]:
    for file, storage, title, wanted in BARS:
        panels = [panel for item in wanted if (panel := _panel(found, storage, item))["bars"]]
        if panels:
            yield {"kind": "bars", "file": file, "title": title, "panels": panels, "log": file in DECADES}


def _panel(found: Found, storage: str, panel: Panel) -> dict[str, Any]:
    title, cell, figure, most = panel
    bars: list[dict[str, Any]] = []
    for entry in in_order(found.on(storage), found, cell, figure, most=most):
        got = found.figure(entry.key, cell, figure)
        if got is not None and (figure != "last" or found.lost_nothing(entry.key, cell)):
            bars.append(
                {
                    "label": _label(entry),
                    "kind": kind(entry),
                    "value": got.median,
                    "least": got.least,
                    "most": got.most,
                    "value_label": shown(got.median),
                }
            )
    # Those that release a job before its work are listed separately, below.
    sign = -1 if most else 1
    return {"title": title, "bars": sorted(bars, key=lambda bar: (bar["kind"] == "before", sign * bar["value"]))}


def _label(entry: Entry) -> str:
    version = entry.interpreter.removeprefix("CPython ").rpartition(".")[0]
    return f"{entry.title}, Python {version}" if entry.role == "ours" else entry.title


def _growth(growth: Growth | None) -> Iterator[Chart]:
    if growth is None:
        return
    panels = [panel for axis, below in AXES if (panel := _lines(growth, axis, below))["lines"]]
    if panels:
        title = "Processor time to settle and claim a job, as work grows"
        yield {"kind": "lines", "file": "growth.svg", "title": title, "bound": growth.bound, "panels": panels}


def _lines(growth: Growth, axis: str, below: str) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []
    for medium, label in (("redis", "Redis"), ("sqlite", "SQLite")):
        points = [point for point in growth.points if (point.medium, point.axis) == (medium, axis)]
        sizes: Sequence[str] = [point.shape.title.replace(",", "") for point in points]
        if points:
            lines.append({"label": label, "points": [(int(s), p.times) for s, p in zip(sizes, points, strict=True)]})
    return {"title": axis, "below": below, "lines": lines}
