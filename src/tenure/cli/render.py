"""Prints results to stdout: tables on a terminal if rich is installed, aligned lines otherwise, JSON for programs."""

import sys
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tenure.cli.session import CommandSession

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Sequence[str]

_STYLES = {
    "active": "cyan",
    "completed": "green",
    "failed": "red",
    "stalled": "red",
    "stale": "red",
    "raised": "yellow",
    "cancelled": "magenta",
    "expired": "magenta",
    "paused": "yellow",
    "quiet": "yellow",
    "died": "red",
}

_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def as_json(session: CommandSession, result: msgspec.Struct | list[Any]) -> bool:
    """Print a result as JSON if JSON was requested; return whether it was."""
    encode = msgspec.json.encode
    match session.form:
        case "table":
            return False
        case "json":
            click.echo(msgspec.json.format(encode(result), indent=2))
        case "jsonl":
            for item in result if isinstance(result, list) else [result]:
                click.echo(encode(item))
    return True


def table(
    session: CommandSession, columns: Row, rows: Sequence[Row], *, title: str | None = None, whole: Sequence[str] = ()
) -> None:
    """Print rows under their columns; cells of the columns in `whole` are never broken into lines."""
    if draws():
        console(session).print(drawn(columns, rows, title=title, whole=whole))
        return
    if title is not None:
        click.echo(f"{title}:")
    clean = [[printable(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[column]) for row in clean) for column in range(len(columns))]
    for row in clean:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def pairs(session: CommandSession, items: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    width = max((len(name) for name, _ in items), default=0)
    for name, value in items:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {printable(value)}", color=_colors(session))


def block(session: CommandSession, title: str, text: str) -> None:
    """Print a text of several lines under its title."""
    click.echo(f"\n{click.style(title, bold=True)}", color=_colors(session))
    for line in text.rstrip().splitlines():
        click.echo(f"  {printable(line)}")


def drawn(columns: Row, rows: Sequence[Row], *, title: str | None = None, whole: Sequence[str] = ()) -> "Table":
    """Return rows as a table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    for row in rows:
        table.add_row(*(Text(printable(cell), style=_STYLES.get(cell.split(" ")[0], "")) for cell in row))
    return table


def console(session: CommandSession) -> "Console":
    """Return a console for the terminal."""
    from rich.console import Console

    return Console(no_color=not session.color, highlight=False, markup=False)


def draws() -> bool:
    """Return True if results are drawn with rich: it is installed (`tenure[cli]`), and stdout is a terminal."""
    return sys.stdout.isatty() and find_spec("rich") is not None


def printable(text: str) -> str:
    """Return a text with control characters escaped, so that it cannot control the terminal or break a line."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def moment_text(at: datetime | None) -> str:
    """Return an instant for people, or a dash."""
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}Z"


def span_text(seconds: float | None) -> str:
    """Return a duration for people, or a dash."""
    if seconds is None:
        return "-"
    for length, unit in _STEPS:
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds * 1000:.0f} ms" if abs(seconds) < 1 else f"{seconds:.1f} s"


def size_text(count: int) -> str:
    """Return a number of bytes for people, or a dash if it is unknown (0)."""
    return f"{count / 1_048_576:,.0f} MiB" if count else "-"


def _colors(session: CommandSession) -> bool | None:
    return None if session.color else False
