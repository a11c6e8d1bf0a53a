"""Sets up logging to stderr: as lines or JSON for long-running commands, and only warnings for the others."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec

from tenure.core.check import shown
from tenure.core.text import storable
from tenure.handlers.log_fields import STANDARD

F = TypeVar("F", bound=Callable[..., Any])

LEVELS = ["debug", "info", "warning", "error", "critical"]


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object per line, with the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        try:
            line = msgspec.json.encode(fields, enc_hook=repr)
        except Exception:
            # A file name may not be valid text, and `extra` may contain any objects.
            line = msgspec.json.encode({name: _writable(value) for name, value in fields.items()})
        return line.decode()


def _writable(value: object) -> object:
    match value:
        case datetime():
            return value
        case str():
            return storable(value)
        case _:
            return storable(shown(value))


def logged(command: F) -> F:
    """Add the options of logging to a command."""
    level = click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        default="info",
        show_default=True,
        help="Lowest level that is logged.",
    )
    log_format = click.option(
        "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="To stderr."
    )
    return level(log_format(command))


def set_up(level: str, log_format: str, *, quiet: bool) -> None:
    """Log to stderr from here on. An app that sets up logging when it is loaded overrides this."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else _lines())
    least = logging.WARNING if quiet else logging.NOTSET
    logging.basicConfig(handlers=[handler], level=max(least, getattr(logging, level.upper())))


class PlainFormatter(logging.Handler):
    """Prints a record as one line on stderr, in the form of the command line's error messages."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        click.echo(f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}", err=True)


def warn(*, quiet: bool) -> None:
    """Print warnings in one line if logging is not set up; with `quiet`, only errors."""
    logging.lastResort = PlainFormatter(logging.ERROR if quiet else logging.WARNING)


def _lines() -> logging.Formatter:
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter
