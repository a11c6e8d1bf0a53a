"""Draws the figures of `tenure top` as lines of text that fit a terminal: pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from tenure.cli.info import leading
from tenure.cli.queues import queue_state
from tenure.cli.render import Line, clipped, printable, size_text, span_text, style_of, text_width
from tenure.core.lifecycle import State
from tenure.ops.top import RUNS, TopView

COMPLAINTS = 2
"""How many lines the problems take at most."""

NARROWEST = 8
"""The width below which a column is not made narrower; the line is cut instead."""

SPACED = 24
"""From how many lines on there are empty lines between the sections."""


@dataclass(frozen=True)
class TopColumn:
    """A column. `right`: its cells are aligned to the right. `long`: they are cut if the line is too long.

    `least`: its width, so that the other columns stay where they are although the figures change.
    """

    heading: str
    least: int = 0
    right: bool = False
    long: bool = False


@dataclass(frozen=True)
class TopSection:
    """A table. `total`: how many rows there are, those that are not listed included.

    `usual`: for how many rows there should be room, so that other sections keep their size although rows come and go.
    """

    columns: Sequence[TopColumn]
    rows: Sequence[Sequence[str]]
    total: int
    usual: int = 0


def frame(
    view: TopView | None, *, url: str, width: int, height: int | None, trouble: str = "", hint: str = ""
) -> list[Line]:
    """Return the lines of a screen, none wider than `width`, at most `height` of them; None: as many as it takes.

    `view`: the last figures that were read. `trouble`: why there are no newer ones. `hint`: the keys.
    """
    at = "" if view is None else f"{view.now:%Y-%m-%d %H:%M:%S}Z"
    lines = [_between([("tenure top", "bold"), (f"  {printable(url)}", "")], at, width)]
    if trouble:
        lines.append([(printable(trouble), "trouble")])
    if view is not None:
        lines += _totals(view, width, hint)
        left = None if height is None else height - len(lines)
        lines += _sections(view, width, left, spaced=height is None or height >= SPACED)
    return [_cut(line, width) for line in lines[:height]]


def _totals(view: TopView, width: int, hint: str) -> list[Line]:
    names = {worker.owner: worker.name for worker in view.workers}
    leader = printable(leading(view.leaders, names, view.swept_ago))
    counts = [(state, view.counts[state]) for state in (State.WAITING, State.ACTIVE, State.DELAYED, State.FAILED)]
    if suspended := view.counts.get(State.SUSPENDED, 0):
        counts.append((State.SUSPENDED, suspended))
    jobs = "   ".join([*(f"{state} {count}" for state, count in counts), f"oldest {span_text(view.oldest_waiting)}"])
    rates = f"completed {_rate(view.completed_per_second)}/s   failed {_rate(view.failed_per_second)}/s   "
    shown = [[(printable(line), "trouble")] for line in view.complaints[:COMPLAINTS]]
    if len(view.complaints) > COMPLAINTS:
        more = len(view.complaints) - COMPLAINTS + 1
        shown[-1] = [(f"and {more} more problems, see tenure info", "trouble")]
    return [_between([(jobs, "")], hint, width), [(rates, ""), (leader, "")], *shown]


def _sections(view: TopView, width: int, lines: int | None, *, spaced: bool) -> list[Line]:
    sections = [_queues(view), _workers(view), _faults(view), _runs(view)]
    if lines is None:
        rooms = [len(section.rows) + (section.total > len(section.rows)) for section in sections]
    else:
        # Each section takes its headings and at least one row.
        sections = sections[: max(0, lines // (2 + spaced))]
        needs = [max(section.total, section.usual, 1) for section in sections]
        rooms = _shares(needs, lines - len(sections) * (1 + spaced))
    drawn: list[Line] = []
    for section, room in zip(sections, rooms, strict=True):
        drawn += [[("", "")]] * spaced
        drawn += _section(section, width, room)
    return drawn


def _shares(needs: Sequence[int], lines: int) -> list[int]:
    """Divide lines among sections: none gets more than it needs, and those that get less get the same."""
    shares = [0] * len(needs)
    for _ in range(lines):
        wanting = [at for at, need in enumerate(needs) if shares[at] < need]
        if not wanting:
            break
        shares[min(wanting, key=lambda at: shares[at])] += 1
    return shares


def _section(section: TopSection, width: int, room: int) -> list[Line]:
    """Return the headings of a section and at most `room` lines below them."""
    rows = list(section.rows[:room])
    if section.total > len(rows):
        rows = rows[: max(0, room - 1)]
    clean = [[printable(cell) for cell in row] for row in rows]
    widths, gap = _widths(section.columns, clean, width)
    drawn = [_row([column.heading for column in section.columns], section.columns, widths, gap, heading=True)]
    drawn += [_row(row, section.columns, widths, gap) for row in clean]
    if section.total > len(rows):
        drawn.append([(f"{'and ' * bool(rows)}{section.total - len(rows)} more", "")])
    elif not rows:
        drawn.append([("none", "")])
    return drawn


def _widths(columns: Sequence[TopColumn], rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], int]:
    """Return the widths of the columns and the gap between them; the widest of the long columns give up the most."""
    widths = [
        max(column.least, text_width(column.heading), *(text_width(row[at]) for row in rows), 0)
        for at, column in enumerate(columns)
    ]
    gap = 2 if sum(widths) + 2 * (len(columns) - 1) <= width else 1
    while sum(widths) + gap * (len(columns) - 1) > width:
        long = [at for at, column in enumerate(columns) if column.long and widths[at] > NARROWEST]
        if not long:
            break
        widths[max(long, key=lambda at: widths[at])] -= 1
    return widths, gap


def _row(
    cells: Sequence[str], columns: Sequence[TopColumn], widths: Sequence[int], gap: int, *, heading: bool = False
) -> Line:
    line: Line = []
    for at, (cell, column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        text = clipped(cell, width)
        space = " " * (width - text_width(text))
        style = "head" if heading else style_of(cell) if column.heading == "state" else ""
        line += [(" " * gap if at else "", ""), (space if column.right else "", ""), (text, style)]
        # A line does not end with spaces.
        line.append(("" if column.right or at == len(columns) - 1 else space, ""))
    return [part for part in line if part[0]]


def _queues(view: TopView) -> TopSection:
    columns = [
        TopColumn("queue", long=True),
        *(TopColumn(heading, right=True) for heading in ("waiting", "delayed", "active", "failed")),
        TopColumn("oldest", 7, right=True),
        TopColumn("done/s", right=True),
        TopColumn("state", 7),
    ]
    rows = [
        [
            queue.queue,
            *(str(queue.counts[state]) for state in (State.WAITING, State.DELAYED, State.ACTIVE, State.FAILED)),
            *(span_text(queue.oldest_waiting), _rate(queue.completed_per_second), queue_state(queue)),
        ]
        for queue in view.queues
    ]
    return TopSection(columns, rows, len(rows))


def _workers(view: TopView) -> TopSection:
    columns = [
        TopColumn("worker", long=True),
        TopColumn("host", long=True),
        TopColumn("pid", right=True),
        TopColumn("state", 5),
        TopColumn("active", right=True),
        TopColumn("lag", 6, right=True),
        TopColumn("memory", 7, right=True),
        TopColumn("beat", 6, right=True),
    ]
    rows = [
        [
            *(worker.name, worker.host, str(worker.pid), worker.state, f"{worker.active}/{worker.concurrency}"),
            *(span_text(worker.lag), size_text(worker.memory), span_text(worker.seen_ago)),
        ]
        for worker in view.workers
    ]
    return TopSection(columns, rows, len(rows))


def _faults(view: TopView) -> TopSection:
    columns = [
        TopColumn("newest fault", long=True),
        TopColumn("error", long=True),
        TopColumn("jobs", 5, right=True),
        TopColumn("last", 7, right=True),
    ]
    rows = [
        [
            fault.task,
            " ".join(f"{fault.error or fault.reason}: {fault.message}".split()),
            str(fault.count),
            span_text((view.now - fault.last).total_seconds()),
        ]
        for fault in view.faults
    ]
    return TopSection(columns, rows, len(rows))


def _runs(view: TopView) -> TopSection:
    columns = [
        TopColumn("longest run", long=True),
        TopColumn("job", 36),
        TopColumn("runs for", right=True),
        TopColumn("worker", long=True),
    ]
    rows = [[run.task, run.id, span_text(run.ran), run.worker] for run in view.running]
    capacity = sum(worker.concurrency for worker in view.workers if worker.state != "died")
    return TopSection(columns, rows, max(len(rows), view.counts[State.ACTIVE]), min(capacity, RUNS))


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    if 0 < rate < 0.1:
        return "<0.1"
    return f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _between(left: Line, right: str, width: int) -> Line:
    """Return a line with a text at its right end; the left part is cut if both do not fit."""
    if not right:
        return left
    room = width - text_width(right) - 2
    if room < 0:
        return left
    left = _cut(left, room)
    filled = sum(text_width(text) for text, _ in left)
    return [*left, (" " * (width - filled - text_width(right)), ""), (right, "")]


def _cut(line: Line, width: int) -> Line:
    """Return a line that is not wider than this."""
    cut: Line = []
    for text, style in line:
        cut.append((clipped(text, width), style))
        width -= text_width(cut[-1][0])
    return [part for part in cut if part[0]]
