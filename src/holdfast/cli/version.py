"""`holdfast version`: what is installed."""

import platform

import click
from msgspec import Struct

from holdfast._version import __version__
from holdfast.cli.render import as_json
from holdfast.cli.session import Session, output


class Versions(Struct, frozen=True, kw_only=True):
    """What a report of a bug should name."""

    holdfast: str
    python: str
    sqlite: str


@click.command()
@output
@click.pass_obj
def version(session: Session) -> None:
    """Show the version."""
    import sqlite3

    versions = Versions(holdfast=__version__, python=platform.python_version(), sqlite=sqlite3.sqlite_version)
    if not as_json(session, versions):
        click.echo(f"holdfast {versions.holdfast} (Python {versions.python}, SQLite {versions.sqlite})")
