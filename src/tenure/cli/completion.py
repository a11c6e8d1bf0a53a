"""`tenure completion`: prints the script by which a shell completes commands, options and names; finds the names."""

import asyncio
import contextlib
import functools
import io
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterable
from typing import ClassVar, cast

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from tenure.cli.access import reach
from tenure.cli.session import CommandSession, output
from tenure.errors import TenureError
from tenure.ops.access import must_exist
from tenure.ops.names import KnownNames
from tenure.storage.protocol import Survey

VARIABLE = "_TENURE_COMPLETE"
"""The environment variable by which the script of a shell asks for completions."""

LIMIT = 1.0
"""Seconds that the storage gets to list its names."""

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' line
    COMPREPLY=()
    while read -r line; do
        COMPREPLY+=("$line")
    done < <(env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" %(complete_var)s=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class WholeWordsBash(BashComplete):
    """Completion for bash. It reads the whole line, because bash breaks words such as `tasks:app` at each colon."""

    source_template: ClassVar[str] = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the word at the cursor."""
        line = os.environ["COMP_LINE"].encode()[: int(os.environ["COMP_POINT"])].decode(errors="ignore")
        words = split_arg_string(line)
        at_start = not line or line[-1].isspace()
        return (words[1:], "") if at_start else (words[1:-1], words[-1])

    def format_completion(self, item: CompletionItem) -> str:
        """Return what bash puts in place of the part of the word behind its last colon or equals sign."""
        _, incomplete = self.get_completion_args()
        kept = re.match(r".*[:=]", incomplete)
        value = str(item.value)
        return shlex.quote(value[kept.end() :] if kept is not None and value.startswith(kept[0]) else value)


SHELLS: dict[str, type[ShellComplete]] = {"bash": WholeWordsBash, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@output
@click.argument("shell", type=click.Choice(list(SHELLS)), metavar="[bash|zsh|fish]")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which a shell completes commands, options and live names.

    \b
    bash: echo 'source <(tenure completion bash)' >> ~/.bashrc
    zsh:  echo 'source <(tenure completion zsh)' >> ~/.zshrc
    fish: tenure completion fish > ~/.config/fish/completions/tenure.fish

    Names of queues, tasks, schedules and workers come from the storage of --url, --app or TENURE_URL, within a second.
    """  # noqa: D301 - click takes a backspace for a block that keeps its lines
    click.echo(SHELLS[shell](ctx.find_root().command, {}, "tenure", VARIABLE).source())


def prepare() -> None:
    """Make this process answer the script of bash; the scripts of the other shells are click's own."""
    add_completion_class(WholeWordsBash, "bash")


def complete_names(group: str, command: click.Command) -> None:
    """Let the parameters of a command that take a name complete it with the names of the storage and the app."""
    if isinstance(command, click.Group):
        for part in command.commands.values():
            complete_names(group, part)
    for param in command.params:
        found = re.search(r"QUEUE|TASK|WORKER|NAME", param.make_metavar(click.Context(command)))
        kind = _KINDS.get(found[0]) if found is not None else None
        if kind is not None and (found is None or found[0] != "NAME" or group == "schedules"):
            # The parameters are defined in many commands; each of them names what it takes in its metavar.
            setattr(param, "shell_complete", functools.partial(_matching, kind))  # noqa: B010


_KINDS: dict[str, Callable[[KnownNames], Iterable[str]]] = {
    "QUEUE": lambda names: names.queues,
    "TASK": lambda names: names.tasks,
    "WORKER": lambda names: names.workers,
    "NAME": lambda names: names.schedules,
}


def _matching(kind: Callable[[KnownNames], Iterable[str]], ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    # A list such as -q mail,def completes its last name.
    before, comma, last = incomplete.rpartition(",")
    found = (name for name in kind(_known(ctx)) if name.isprintable() and name.startswith(last))
    return [CompletionItem(f"{before}{comma}{name}") for name in sorted(found)]


def _known(ctx: click.Context) -> KnownNames:
    """Return the names that the storage and the app know; none if the storage does not answer."""
    nothing = KnownNames(frozenset(), frozenset(), frozenset(), frozenset())
    session = ctx.find_object(CommandSession) or CommandSession()
    logging.disable()
    try:
        # Modules of the user may print, and a shell takes each line of the output as a completion.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return asyncio.run(_look_up(_with_parameters(ctx, session)))
    except (Exception, SystemExit):
        return nothing


def _with_parameters(ctx: click.Context, session: CommandSession) -> CommandSession:
    """Return the session, with the app that some commands take as their first argument."""
    # An option whose value is missing yet ends the parsing, and leaves the arguments before it here.
    left = next((word for word in ctx.args if re.fullmatch(r"[\w.]+:[\w.]+", word)), None)
    target = cast("str | None", ctx.params.get("target")) or left
    if target is not None:
        session.app = target
    return session


async def _look_up(session: CommandSession) -> KnownNames:
    access = reach(session)
    try:
        must_exist(access.storage)
        async with asyncio.timeout(LIMIT):
            await access.storage.open()
            survey = await access.storage.survey()
            await access.storage.close()
    except (TenureError, TimeoutError):
        # The app alone still knows names.
        survey = Survey()
    return access.known(survey)
