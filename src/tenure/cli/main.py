"""The command `tenure`: its command groups, imported on demand, and the behaviour that all commands share."""

import errno
import importlib
import os
import sys
from typing import Any, NoReturn, cast

import click

from tenure._version import __version__
from tenure.cli.exits import FAILURE, OK, report_error
from tenure.cli.groups import LazyGroup
from tenure.cli.session import storage

COMMANDS = {
    "worker": ("tenure.cli.worker:worker", "Claim jobs and run them."),
    "reaper": ("tenure.cli.reaper:reaper", "Recover jobs of dead and silent workers."),
    "relay": ("tenure.cli.relay:relay", "Enqueue the calls of an outbox."),
    "serve": ("tenure.cli.serve:serve", "Serve health and metrics over HTTP."),
    "console": ("tenure.cli.console:console", "Serve pages that show the queue, and the admin API."),
    "info": ("tenure.cli.info:info", "Show queues, workers and the leader."),
    "top": ("tenure.cli.top:top", "Watch queues, workers, faults and runs live."),
    "health": ("tenure.cli.health:health", "Check that jobs are served."),
    "doctor": ("tenure.cli.doctor:doctor", "Diagnose the storage and the setup."),
    "enqueue": ("tenure.cli.enqueue:enqueue", "Enqueue one job."),
    "tasks": ("tenure.cli.tasks:tasks", "List the tasks of an app."),
    "jobs": ("tenure.cli.jobs:jobs", "List, show, redrive, cancel and delete jobs."),
    "dead": ("tenure.cli.dead:dead", "List failed jobs, group them by fault, redrive and purge them."),
    "queues": ("tenure.cli.queues:queues", "List, pause, limit and purge queues, show statistics."),
    "workers": ("tenure.cli.workers:workers", "List, quiet and stop workers, and show the stacks of their runs."),
    "schedules": ("tenure.cli.schedules:schedules", "List, pause, trigger and remove schedules."),
    "events": ("tenure.cli.events:events", "Show past events, and follow new ones."),
    "audit": ("tenure.cli.audit:audit", "Show what operators did."),
    "migrate": ("tenure.cli.migrate:migrate", "Create a storage, or upgrade its schema."),
    "move": ("tenure.cli.move:move", "Move waiting, delayed and failed jobs to another storage."),
    "completion": ("tenure.cli.completion:completion", "Print the script by which a shell completes commands."),
    "version": ("tenure.cli.version:version", "Show the version."),
}
"""The location and the short help of each command. The help is here, so that showing it imports no command."""


_WRITE_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Root(LazyGroup):
    """The command `tenure`."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run a command and end with its exit code; an error is one line on stderr."""
        _prepare_output()
        if _completes():
            importlib.import_module("tenure.cli.completion").prepare()
        try:
            code = cast("object", super().main(*args, **{**kwargs, "standalone_mode": False}))
        except OSError as error:
            if error.errno not in _WRITE_ERRORS:
                raise
            # Storages translate such errors into a TenureError, so stdout itself has failed. Point it at /dev/null, so
            # that the interpreter does not report the failure again when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            # A closed pipe, as after `| head`, needs no message.
            code = (
                FAILURE
                if error.errno == errno.EPIPE
                else report_error(click.ClickException(f"stdout: {error.strerror}"))
            )
        except (Exception, KeyboardInterrupt) as error:
            code = report_error(error)
        sys.exit(code if isinstance(code, int) else OK)


def _prepare_output() -> None:
    """Make sure that stdout and stderr exist, and that stdout can print every character."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # The stream was closed before the start.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")


def _prepare(ctx: click.Context, name: str, command: click.Command) -> None:
    _name_variables(command, f"{ctx.auto_envvar_prefix}_{_shouted(name)}")
    if _completes():
        importlib.import_module("tenure.cli.completion").complete_names(name, command)


def _completes() -> bool:
    """Return True if a shell asks for completions."""
    return bool(os.environ.get("_TENURE_COMPLETE"))


def _name_variables(command: click.Command, prefix: str) -> None:
    """Name the environment variable of each option `TENURE_<COMMAND>_<FLAG>`, after its flag, not its parameter."""
    for param in command.params:
        if isinstance(param, click.Option):
            own = [f"{prefix}_{_shouted(flag[2:])}" for flag in param.opts if flag.startswith("--")]
            more = [param.envvar] if isinstance(param.envvar, str) else param.envvar or ()
            # The command's own variable has precedence over one that several commands share.
            param.envvar = list(dict.fromkeys([*own, *more]))
            param.allow_from_autoenv = False
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            _name_variables(part, f"{prefix}_{_shouted(name)}")


def _shouted(name: str) -> str:
    return name.replace("-", "_").upper()


@click.group(
    cls=Root,
    locations=COMMANDS,
    prepare=_prepare,
    context_settings={"auto_envvar_prefix": "TENURE", "help_option_names": ["-h", "--help"]},
)
@storage
@click.version_option(__version__, prog_name="tenure", message="%(prog)s %(version)s")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Run and watch a job queue that does not lose, strand or silently repeat work.

    Every option can also be set in the environment: TENURE_URL, TENURE_APP, TENURE_WORKER_CONCURRENCY.
    Exit codes: 0 done, 1 failed, 2 usage error, 3 unhealthy, 4 not found.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
