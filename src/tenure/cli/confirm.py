"""Asks for confirmation before an operation that cannot be undone."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tenure.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def confirm_option(command: F) -> F:
    """Add the option `--yes` to a command."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Ask the question, and return if the answer is yes. `yes`: do not ask.

    Raises:
        UsageError: standard input is not a terminal, so the question cannot be asked.
        ClickException: the answer was no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} This is not a terminal to ask on; give --yes")
    if not click.confirm(question, err=True):
        raise click.ClickException("aborted; nothing was changed")
