"""`tenure version`: shows the installed versions."""

import platform

import click
from msgspec import Struct

from tenure._version import __version__
from tenure.cli.render import as_json
from tenure.cli.session import CommandSession, output


class VersionsView(Struct, frozen=True, kw_only=True):
    """The versions that a bug report should name."""

    tenure: str
    python: str
    sqlite: str


@click.command()
@output
@click.pass_obj
def version(session: CommandSession) -> None:
    """Show the version."""
    import sqlite3

    versions = VersionsView(tenure=__version__, python=platform.python_version(), sqlite=sqlite3.sqlite_version)
    if not as_json(session, versions):
        click.echo(f"tenure {versions.tenure} (Python {versions.python}, SQLite {versions.sqlite})")
