"""The class of all command groups: an unknown command gets suggestions."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from tenure.core.suggestion import alternatives, close_to


class Group(click.Group):
    """A group that shows its help if it is called without a command, and suggests commands for an unknown one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"invoke_without_command": True, **kwargs})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names.

        Raises:
            UsageError: it names none; the message suggests similar ones.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            name = args[0]
            if not name[:1].isalnum():
                # An option of another command.
                raise
            found = [repr(known) for known in self.suggestions(ctx, name)]
            end = f" Did you mean {alternatives(found)}?" if found else ""
            raise click.UsageError(f"No such command {name!r}.{end}", ctx) from None

    def suggestions(self, ctx: click.Context, name: str) -> list[str]:
        """Return the commands that an unknown name may mean."""
        return close_to(name, self.list_commands(ctx))


class LazyGroup(Group):
    """A group whose commands are imported when they are called.

    `locations`: by the name of each command, its location (`module:function`) and its short help. `prepare`: called
    with each command and its name before the command is used.
    """

    def __init__(
        self,
        *args: Any,
        locations: Mapping[str, tuple[str, str]],
        prepare: Callable[[click.Context, str, click.Command], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._locations = locations
        self._prepare = prepare

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, the most important first."""
        return list(self._locations)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in self._locations:
            return None
        module, _, name = self._locations[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        self._prepare(ctx, cmd_name, command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in self._locations.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with a text, without importing the commands."""
        found = [CompletionItem(name, help=short) for name, (_, short) in self._locations.items()]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(item for item in found if item.value.startswith(incomplete)), *options]

    def suggestions(self, ctx: click.Context, name: str) -> list[str]:
        """Return the commands that an unknown name may mean, also commands of a group: `purge` is `queues purge`."""
        return super().suggestions(ctx, name) or list(self._parts_named(ctx, name))

    def _parts_named(self, ctx: click.Context, name: str) -> Iterable[str]:
        for group in self._locations:
            command = self.get_command(ctx, group)
            if isinstance(command, click.Group) and name in command.list_commands(ctx):
                yield f"{group} {name}"
