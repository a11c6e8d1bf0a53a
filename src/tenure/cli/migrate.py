"""`tenure migrate`: shows, prints and applies what a storage's schema needs."""

import asyncio
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import click
from msgspec import Struct, structs

from tenure.cli.access import reach
from tenure.cli.groups import Group
from tenure.cli.render import as_json, printable
from tenure.cli.session import CommandSession, length, storage
from tenure.errors import SchemaMismatchError, UsageError
from tenure.outbox.outbox import Outbox
from tenure.storage.migrations import MigrationStatus
from tenure.storage.postgres.address import PostgresAddress

if TYPE_CHECKING:
    from tenure.storage.postgres.migrate import PostgresMigrations


class MigratedView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a migration. `before`: 0 if there was no schema; equal to `after` if nothing had to be done.

    `outbox`: the database that has the table of the app's outbox now; left out without an outbox.
    """

    url: str
    before: int
    after: int
    outbox: str | None = None


class MigrationScriptView(Struct, frozen=True, kw_only=True):
    """What `up` would run; empty if nothing."""

    url: str
    sql: str


@click.group(cls=Group)
@storage
@click.pass_context
def migrate(ctx: click.Context) -> None:
    """Create a storage, or upgrade its schema to this version; also the table of the app's outbox.

    On PostgreSQL a schema is raised by numbered files, one after another, while workers run. Most of them add
    something, and workers of the version before go on. The schema of a SQLite file and of a namespace of Redis is made
    whole, and has no migrations yet. A SQLite file may have tables of yours: they stay as they are, and the file is
    switched to a write-ahead log (journal mode WAL).
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@migrate.command()
@storage
@click.option(
    "--drain",
    is_flag=True,
    help="Stop the workers that are too old for the new schema: they end their jobs, and take no more.",
)
@click.option(
    "--timeout",
    type=length("--timeout"),
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="How long --drain waits for the workers.",
)
@click.pass_obj
def up(session: CommandSession, drain: bool, timeout: timedelta) -> None:
    """Create the schema, or apply the migrations that it lacks. Safe to repeat.

    Each migration is one transaction, so a failure leaves nothing half done. Two calls at once take turns. A migration
    that would cut off running workers is refused, unless --drain stops them first.
    """

    def waits(workers: str) -> None:
        if not session.quiet:
            click.echo(f"waiting for {printable(workers)}", err=True)

    migrations = _migrations(session)
    if migrations is None:
        done = asyncio.run(_made(session))
    else:
        before, after = migrations.up(drain=timeout.total_seconds() if drain else None, waits=waits)
        done = MigratedView(url=migrations.url, before=before, after=after)
    outbox = reach(session).outbox
    if outbox is not None:
        asyncio.run(_create_outbox(outbox))
        done = structs.replace(done, outbox=outbox.url)
    if as_json(session, done) or session.quiet:
        return
    if done.before == done.after:
        result = f"is at schema {done.after}, nothing to do"
    else:
        result = f"was brought from {f'schema {done.before}' if done.before else 'nothing'} to schema {done.after}"
    click.echo(printable(f"{done.url} {result}"))
    if done.outbox is not None:
        click.echo(printable(f"{done.outbox} has the table tenure_outbox"))


@migrate.command()
@storage
@click.pass_obj
def status(session: CommandSession) -> None:
    """Show the schema, what it lacks, and the workers cut off by that. Applies nothing."""
    migrations = _migrations(session)
    view = asyncio.run(_looked(session)) if migrations is None else migrations.status()
    if as_json(session, view):
        return
    lines = [
        ("schema", str(view.schema) if view.schema else "none yet"),
        ("newest", f"{view.newest} (this Tenure)"),
        ("features", ", ".join(view.features) or "none"),
        ("pending", "none"),
    ]
    if view.pending:
        lines[-1:] = [("pending", f"{one.file}: {_effect(one.number, one.oldest)}") for one in view.pending]
    elif view.schema < view.newest:
        lines[-1] = ("pending", "the schema is made as a whole")
    lines += [("cut off", f"{one.name}: pid {one.pid} on {one.host}, knows schema {one.knows}") for one in view.cut_off]
    if view.schema and view.pending and not view.cut_off:
        lines.append(("cut off", "no worker"))
    click.echo(printable(view.url))
    for number, (name, text) in enumerate(lines):
        again = number > 0 and lines[number - 1][0] == name
        click.echo(f"  {'' if again else name:<9} {printable(text)}")
    if view.cut_off:
        click.echo("Stop these workers before `tenure migrate up`, or let `up --drain` do it.")


def _effect(number: int, oldest: int) -> str:
    if number == 1:
        return "makes the first tables"
    return "cuts off all older programs" if oldest == number else f"programs that know schema {oldest} go on"


@migrate.command()
@storage
@click.option("--outbox", is_flag=True, help="Print the table of the app's outbox, for a migration of your own.")
@click.pass_obj
def sql(session: CommandSession, outbox: bool) -> None:
    """Print the script of `up`, for psql. Changes nothing.

    It is for a DBA, where Tenure's role may not change a schema. Each migration is a transaction of its own, and
    refuses another schema than the one that it is for. The script does not look for
    workers that would be cut off; `status` shows them.
    """
    if outbox:
        view = _outbox_script(session)
    else:
        migrations = _migrations(session)
        if migrations is None:
            raise UsageError(f"{reach(session).storage.url} has no SQL to print: only PostgreSQL is changed by scripts")
        view = MigrationScriptView(url=migrations.url, sql=migrations.sql())
    if as_json(session, view):
        return
    click.echo(view.sql or f"-- {printable(view.url)} needs no migration", nl=not view.sql)


def _outbox_script(session: CommandSession) -> MigrationScriptView:
    found = reach(session).outbox
    if found is None:
        raise UsageError('--outbox needs an app that has one: --app MODULE:APP, and Tenure(..., outbox="...")')
    return MigrationScriptView(url=found.url, sql=found.tables())


def _migrations(session: CommandSession) -> "PostgresMigrations | None":
    """Return the migrations of the storage; None if its schema is not changed by numbered files."""
    address = getattr(reach(session).storage, "address", None)
    if not isinstance(address, PostgresAddress):
        return None
    from tenure.storage.postgres.migrate import PostgresMigrations

    return PostgresMigrations(address)


async def _create_outbox(outbox: Outbox) -> None:
    await outbox.create()
    await outbox.close()


async def _made(session: CommandSession) -> MigratedView:
    """Open a storage whose schema is made as a whole."""
    found = await _looked(session)
    access = reach(session, auto_migrate=True)
    await access.storage.open()
    await access.storage.close()
    return MigratedView(url=found.url, before=found.schema, after=found.newest)


async def _looked(session: CommandSession) -> MigrationStatus:
    """Return the state of a storage whose schema is made as a whole, without making it."""
    looked_at = reach(session).storage
    try:
        await looked_at.open()
        findings = await looked_at.examine(deep=False)
        schema = next((_schema(finding.message) for finding in findings if finding.subject == "schema"), None) or 0
    except SchemaMismatchError as error:
        # It has no schema yet. Another or a newer schema is refused.
        newest = re.search(r"no schema yet, this Tenure needs (\d+)", str(error))
        if newest is None:
            raise
        return MigrationStatus(url=looked_at.url, schema=0, newest=int(newest[1]))
    finally:
        await looked_at.close()
    return MigrationStatus(url=looked_at.url, schema=schema, newest=schema)


def _schema(text: str) -> int | None:
    found = re.search(r"\bschema (\d+)", text)
    return None if found is None else int(found[1])
