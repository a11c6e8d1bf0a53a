"""Prints results to stdout: tables that fit the terminal, lines, and JSON for programs."""

import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tenure.cli.session import CommandSession

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Row = Sequence[str]

Line = list[tuple[str, str]]
"""The parts of a line, each with the name of its style or an empty text."""

GAP = 2
"""Spaces between two columns."""

INDENT = 4
"""Spaces before the columns that continue in the next line."""

NARROW = 13
"""The width below which a column is not made narrower."""

LEAST_WIDTH = 40
"""The width of a terminal below which tables are not made narrower."""

_STYLES: dict[str, dict[str, Any]] = {
    "bold": {"bold": True},
    "head": {"bold": True},
    "active": {"fg": "cyan"},
    "completed": {"fg": "green"},
    "failed": {"fg": "red"},
    "stalled": {"fg": "red"},
    "stale": {"fg": "red"},
    "trouble": {"fg": "red"},
    "raised": {"fg": "yellow"},
    "cancelled": {"fg": "magenta"},
    "expired": {"fg": "magenta"},
    "paused": {"fg": "yellow"},
    "quiet": {"fg": "yellow"},
    "stopping": {"fg": "yellow"},
    "limited": {"fg": "yellow"},
    "died": {"fg": "red"},
}

_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def as_json(session: CommandSession, result: msgspec.Struct | list[Any]) -> bool:
    """Print a result as JSON if JSON was requested; return whether it was."""
    encode = msgspec.json.encode
    match session.output_format:
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
    """Print rows under their columns, at most as wide as the terminal; see `table_lines`."""
    for line in table_lines(columns, rows, title=title, whole=whole):
        click.echo(styled(line), color=_colors(session))


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


def styled(line: Line) -> str:
    """Return a line with the escape sequences of its styles."""
    return "".join(click.style(text, **_STYLES[style]) if style else text for text, style in line)


def drawn(columns: Row, rows: Sequence[Row], *, title: str | None = None, whole: Sequence[str] = ()) -> "Text":
    """Return rows as a table that rich draws."""
    from rich.text import Text

    lines = table_lines(columns, rows, title=title, whole=whole)
    return Text("\n").join(
        Text.assemble(*((text, _rich_style(style)) for text, style in line), no_wrap=True) for line in lines
    )


def _rich_style(style: str) -> str:
    return " ".join("bold" if name == "bold" else value for name, value in _STYLES.get(style, {}).items())


def table_lines(
    columns: Row, rows: Sequence[Row], *, title: str | None = None, whole: Sequence[str] = (), width: int | None = None
) -> list[Line]:
    """Return the lines of a table: for each line its parts, each with the name of its style.

    `width`: by default that of the terminal; a pipe has no limit, unless $COLUMNS sets one. A table that is too wide
    gets narrower columns, whose cells are broken into lines, except those of the columns in `whole`. If that is not
    enough, each row takes several lines, and the columns continue in the next line.
    """
    limit = terminal_width() if width is None else width
    clean = [[printable(cell) for cell in row] for row in (columns, *rows)]
    natural = [max(text_width(row[index]) for row in clean) for index in range(len(columns))]
    firm = [column in whole for column in columns]
    lines: list[Line] = [] if title is None else [[(f"{title}:", "bold")]]
    groups, gap = _fitted(natural, [text_width(column) for column in columns], firm, limit)
    for number, row in enumerate(clean):
        at = 0
        for place, widths in enumerate(groups):
            cells = [_folded(cell, most) for cell, most in zip(row[at : at + len(widths)], widths, strict=True)]
            styles = [style_of(cell) if number else "head" for cell in row[at : at + len(widths)]]
            lines += _side_by_side(cells, widths, styles, indent=INDENT if place else 0, gap=gap)
            at += len(widths)
    return lines


def _fitted(natural: list[int], heads: list[int], firm: list[bool], limit: int | None) -> tuple[list[list[int]], int]:
    """Return the widths of the columns, in one group for each line that a row takes, and the gap between columns."""
    if limit is None or _total(natural, GAP) <= limit:
        return [natural], GAP
    # The width to which a column may be narrowed: its cells then take several lines.
    least = [
        most if is_firm else min(most, max(head, NARROW))
        for most, head, is_firm in zip(natural, heads, firm, strict=True)
    ]
    for gap in (GAP, 1):
        if _total(least, gap) <= limit:
            return [_shrunk(natural, least, limit, gap)], gap
    half = (limit - INDENT - GAP) // 2
    groups: list[list[int]] = [[]]
    for most, is_firm in zip(natural, firm, strict=True):
        width = min(most, limit - INDENT if is_firm else half)
        if groups[-1] and _total([*groups[-1], width], GAP) > limit - (INDENT if len(groups) > 1 else 0):
            groups.append([])
        groups[-1].append(width)
    if not firm[-1]:
        # The last column, often a text, takes what its line has left.
        left = limit - (INDENT if len(groups) > 1 else 0) - _total(groups[-1], GAP)
        groups[-1][-1] = min(natural[-1], groups[-1][-1] + left)
    return groups, GAP


def _shrunk(natural: list[int], least: list[int], limit: int, gap: int) -> list[int]:
    """Return widths of that total at most; the widest columns give up the most."""
    widths = list(natural)
    while _total(widths, gap) > limit:
        at = max((index for index, width in enumerate(widths) if width > least[index]), key=lambda index: widths[index])
        widths[at] -= 1
    return widths


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _side_by_side(
    cells: list[list[str]], widths: Sequence[int], styles: Sequence[str], *, indent: int, gap: int
) -> list[Line]:
    lines: list[Line] = []
    for height in range(max(map(len, cells))):
        line: Line = [(" " * indent, "")] if indent else []
        filled = 0
        for cell, width, style in zip(cells, widths, styles, strict=True):
            text = cell[height] if height < len(cell) else ""
            if text:
                line += [(" " * filled, ""), (text, style)]
                filled = 0
            # Spaces are written before the next text only, so that no line ends with spaces.
            filled += width - text_width(text) + gap
        lines.append([part for part in line if part[0]])
    return lines


def _folded(text: str, width: int) -> list[str]:
    """Return a text in lines of this width, broken behind spaces and punctuation if possible."""
    lines: list[str] = []
    while text_width(text) > width:
        end = taken = 0
        while end < len(text) and taken + _cells(text[end]) <= width:
            taken += _cells(text[end])
            end += 1
        # A wide character may not fit into the narrowest column.
        end = max(end, 1)
        cut = max((index + 1 for index in range(end) if text[index] in _BREAKS), default=0)
        if text[end] == " ":
            cut = end
        cut = cut if cut > end // 3 else end
        lines.append(text[:cut].rstrip())
        text = text[cut:].lstrip()
    return [*lines, text]


_BREAKS = " ,.:;/_-@+"


def style_of(cell: str) -> str:
    """Return the name of the style for a cell, by its first word; an empty text if it has none."""
    word = cell.split(" ")[0]
    return word if word in _STYLES else ""


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def clipped(text: str, width: int) -> str:
    """Return a text that takes at most this many columns; an ellipsis stands for the rest."""
    if text_width(text) <= width:
        return text
    taken = 0
    for at, character in enumerate(text):
        taken += _cells(character)
        if taken > width - 1:
            return text[:at] + "…" * (width > 0)
    return text


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def terminal_width() -> int | None:
    """Return the width for tables: that of the terminal, else $COLUMNS, else None (no limit)."""
    if sys.stdout.isatty():
        return max(shutil.get_terminal_size((80, 24)).columns, LEAST_WIDTH)
    columns = os.environ.get("COLUMNS", "")
    return max(int(columns), LEAST_WIDTH) if columns.isdecimal() and int(columns) else None


def console(session: CommandSession) -> "Console":
    """Return a console for the terminal."""
    from rich.console import Console

    return Console(no_color=not session.color, highlight=False, markup=False)


def draws() -> bool:
    """Return True if results are drawn live with rich: it is installed (`tenure[cli]`), and stdout is a terminal."""
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
