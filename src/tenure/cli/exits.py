"""The exit codes of commands, and the one-line error messages."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn, cast

import click

from tenure.errors import JobNotFoundError, TenureError, UnknownScheduleError, UsageError

OK = 0
FAILURE = 1
USAGE = 2
UNHEALTHY = 3
NOT_FOUND = 4
INTERRUPTED = 130
"""The exit code that shells report for an end by Ctrl-C."""


class NotFound(click.ClickException):
    """An object that was requested by its name does not exist."""

    exit_code = NOT_FOUND


class LoadError(UsageError):
    """The module of an app raised an exception. `trace`: its traceback, with the user's frames only."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


def report_error(error: BaseException) -> int:
    """Print an error, in one line if it is one of Tenure's errors; return the exit code."""
    leaves = list(_leaves(error))
    known = [leaf for leaf in leaves if isinstance(leaf, TenureError)]
    match error:
        case click.UsageError():
            return _said(_usage(error), USAGE)
        case click.ClickException():
            return _said(error.format_message(), error.exit_code)
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED
        case _ if known and len(known) == len(leaves):
            if isinstance(known[0], LoadError):
                click.echo(known[0].trace, err=True, nl=False)
            return _said(str(known[0]), _code(known[0]))
        case _:
            traceback.print_exception(error)
            return FAILURE


def leave(code: int) -> NoReturn:
    """Exit the process now, even if threads still hang."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # The reader of the stream is gone.
            continue
    os._exit(code)


def _said(message: str, code: int) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code


def _code(error: TenureError) -> int:
    match error:
        case UnknownScheduleError():
            return NOT_FOUND
        case UsageError():
            return USAGE
        case JobNotFoundError():
            return NOT_FOUND
        case _:
            return FAILURE


def _usage(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        # The message of click is written in another form than that for an unknown command.
        message = f"{error.message.rstrip('.')}. Did you mean {' or '.join(map(repr, error.possibilities))}?"
    if error.ctx is None:
        return message
    # A message may end with a suggestion, which is a question.
    see = f"see {error.ctx.command_path} --help"
    return f"{message} S{see[1:]}" if message.endswith("?") else f"{message}; {see}"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(part)
    else:
        yield error
