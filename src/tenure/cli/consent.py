"""Asking before something is done that cannot be undone."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tenure.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def consenting(command: F) -> F:
    """Give a command the option that answers its question."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def consent(question: str, *, yes: bool) -> None:
    """Return if it may be done.

    Raises:
        UsageError: nobody is there to be asked.
        ClickException: the answer was no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} Nobody can be asked here; give --yes")
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was done")
