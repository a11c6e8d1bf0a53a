"""The output of the demo: live on a terminal, as plain lines elsewhere, or none until its report is printed."""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tenure.core.lifecycle import State
from tenure_testing.demo.audit import Check
from tenure_testing.demo.report import Progress, RecoveryReport, Report

EVERY = 1.0
"""Seconds between two plain lines of progress."""


class Show(Protocol):
    """Receives what the conductor reports."""

    def __enter__(self) -> Self:
        """Begin the output."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""
        ...

    def say(self, text: str) -> None:
        """Show a message."""
        ...

    def progress(self, progress: Progress) -> None:
        """Show the progress of the jobs."""
        ...

    def verdict(self, report: Report) -> None:
        """Show the checks of the audit."""
        ...


class Silent:
    """Shows nothing. The caller prints the report."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def say(self, text: str) -> None:
        """Do nothing."""

    def progress(self, progress: Progress) -> None:
        """Do nothing."""

    def verdict(self, report: Report) -> None:
        """Do nothing."""


class PlainOutput(Silent):
    """Writes plain lines."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._next = 0.0

    def say(self, text: str) -> None:
        """Write the message."""
        self._write(text)

    def progress(self, progress: Progress) -> None:
        """Write a line each second."""
        if progress.seconds >= self._next:
            self._next = progress.seconds + EVERY
            self._write(
                f"{progress.seconds:5.1f} s  {_counted(progress)}  "
                f"{progress.per_second:4.0f} jobs/s  {progress.workers} workers"
            )

    def verdict(self, report: Report) -> None:
        """Write a line for each check."""
        width = max(len(check.name) for check in report.checks)
        for check in report.checks:
            self._write(f"{'ok    ' if check.holds else 'FAILED'}  {check.name:{width}}  {check.summary}")
            for example in check.examples:
                self._write(f"          {example}")
            if check.wrong > len(check.examples):
                self._write(f"          and {check.wrong - len(check.examples):,} more")


class Lively(Silent):
    """Keeps a live picture of the queue on a terminal, with messages above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print the message above the picture."""
        self._console.print(Text(text))

    def progress(self, progress: Progress) -> None:
        """Redraw the picture."""
        done = progress.counts.get(State.COMPLETED, 0)
        figures = Text(
            f"{progress.seconds:5.1f} s  {_counted(progress)}  {progress.per_second:.0f} jobs/s  "
            f"{progress.workers} workers"
        )
        self._live.update(Group(figures, ProgressBar(total=progress.jobs, completed=done, width=60)))

    def verdict(self, report: Report) -> None:
        """Print a table with a line for each check."""
        self._live.stop()
        table = Table(box=None, show_header=False, pad_edge=False)
        for check in report.checks:
            table.add_row(_mark(check), check.name, Text(check.summary, style="dim"))
            for example in check.examples:
                table.add_row("", "", Text(example, style="red"))
            if check.wrong > len(check.examples):
                table.add_row("", "", Text(f"and {check.wrong - len(check.examples):,} more", style="red"))
        self._console.print(table)


def recovery_line(recovered: RecoveryReport) -> str:
    """Return a recovery as one line."""
    where = f"worker {recovered.pid}" if recovered.pid is not None else f"owner {recovered.worker}"
    when = f"{recovered.delay:.2f} s after the fault" if recovered.delay is not None else "with no fault of ours"
    return f"  recovered  job {recovered.job} run {recovered.run} from {where}: {recovered.reason}, {when}"


def post_mortem_lines(text: str) -> str:
    """Return a post-mortem, indented to set it off from other lines."""
    first, *rest = text.splitlines()
    return "\n".join([f"  post-mortem: {first}", *(f"    {line}" for line in rest)])


def _counted(progress: Progress) -> str:
    shown = [State.WAITING, State.ACTIVE, State.COMPLETED]
    rest = [state for state in State if state not in shown and progress.counts.get(state)]
    return "  ".join(f"{state} {progress.counts.get(state, 0):,}" for state in shown + rest)


def _mark(check: Check) -> Text:
    return Text("ok", style="green") if check.holds else Text("FAILED", style="bold red")
