"""The options that all commands share; they may stand before or after the command's name."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from click.core import ParameterSource

from tenure.core.check import named
from tenure.core.duration import duration, instant, moment
from tenure.core.size import size
from tenure.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

OutputFormat = Literal["table", "json", "jsonl"]


@dataclass
class CommandSession:
    """The requested app, storage and output format.

    `url` is given on the command line; `fallback` is `$TENURE_URL`, which an app with its own URL overrides.
    """

    app: str | None = None
    app_dir: Path | None = None
    url: str | None = None
    fallback: str | None = None
    output_format: OutputFormat = "table"
    quiet: bool = False
    color: bool = field(default_factory=lambda: not os.environ.get("NO_COLOR"))


def length(flag: str, *, zero: bool = False) -> Callable[[Any], timedelta]:
    """Return a parser for the duration of a flag: "30s", "1.5h", or a bare number of seconds.

    The parser raises UsageError if the value is not a duration, or out of range.
    """

    def read(value: Any) -> timedelta:
        bare = isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d+)?", value.strip())
        return duration(float(value) if bare else value, field=flag, zero=zero)

    return read


def bytes_of(flag: str) -> Callable[[Any], int]:
    """Return a parser for the size of a flag: "500MB", "2GiB", or a bare number of bytes.

    The parser raises UsageError if the value is not a size.
    """

    def read(value: Any) -> int:
        return size(value, field=flag)

    return read


def since(flag: str) -> Callable[[Any], datetime | timedelta]:
    """Return a parser for an instant, or for a duration before now.

    The parser raises UsageError if the value is neither.
    """
    ago = length(flag)

    def read(value: Any) -> datetime | timedelta:
        try:
            at = datetime.fromisoformat(str(value))
        except ValueError:
            pass
        else:
            return moment(instant(at if at.tzinfo is not None else at.replace(tzinfo=UTC), field=flag))
        try:
            return ago(value)
        except UsageError as error:
            raise UsageError(f"{error}; or give an instant, such as 2026-01-31T10:00Z") from None

    return read


def naming(flag: str) -> Callable[[Any], str]:
    """Return a parser for the name given by a flag; an empty name is an error, not an omitted flag.

    The parser raises UsageError if the value is not a name.
    """

    def read(value: Any) -> str:
        return named(value, field=flag)

    return read


def no_cursor(flag: str, value: str | None, remedy: str = "use the one at the end of the previous page") -> UsageError:
    """Return the error for a cursor that the storage has never returned."""
    shown = repr(value) if len(value or "") <= 40 else f"{(value or '')[:40]!r}..."
    return UsageError(f"{flag} {shown} is not a cursor; {remedy}")


def output(command: F) -> F:
    """Add the options of output to a command; every command has them."""
    return _with(_OUTPUT, command)


def storage(command: F) -> F:
    """Add the options of output and those that name a storage to a command."""
    return _with([*_STORAGE, *_OUTPUT], command)


def _with(options: list[Callable[[Any], Any]], command: F) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    session = ctx.ensure_object(CommandSession)
    # An option after the command's name is read later, so it overrides the same option before the name.
    match param.name:
        case "app" if value is not None:
            session.app = value
        case "app_dir" if value is not None:
            session.app_dir = value
        case "url" if value is not None:
            plain = ctx.parent is None and ctx.get_parameter_source("url") is ParameterSource.ENVIRONMENT
            setattr(session, "fallback" if plain else "url", value)
        case "output" if value is not None:
            session.output_format = value
        case "quiet" if value:
            session.quiet = True
        case "no_color" if value:
            session.color = False
        case _:
            pass


_STORAGE: list[Callable[[Any], Any]] = [
    click.option("--app", metavar="MODULE:APP", expose_value=False, callback=_keep, help="The app."),
    click.option(
        "--app-dir",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        expose_value=False,
        callback=_keep,
        help="Where the app's module is, instead of the working directory.",
    ),
    click.option("--url", metavar="URL", expose_value=False, callback=_keep, help="The storage, instead of the app's."),
]

_OUTPUT: list[Callable[[Any], Any]] = [
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "jsonl"]),
        expose_value=False,
        callback=_keep,
        help="Output format; by default a table.",
    ),
    click.option("--quiet", is_flag=True, expose_value=False, callback=_keep, help="Print only the requested data."),
    click.option("--no-color", is_flag=True, expose_value=False, callback=_keep, help="Use no colours."),
]
