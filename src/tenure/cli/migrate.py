"""`tenure migrate`: brings a storage to the schema of this version."""

import asyncio
import re

import click
from msgspec import Struct

from tenure.cli.access import reach
from tenure.cli.render import as_json, printable
from tenure.cli.session import CommandSession, storage
from tenure.errors import SchemaMismatchError


class MigratedView(Struct, frozen=True, kw_only=True):
    """The result of a migration; `before` is 0 if there was no schema, and equals `after` if nothing had to be done."""

    url: str
    before: int | None
    after: int | None


@click.command()
@storage
@click.pass_obj
def migrate(session: CommandSession) -> None:
    """Create a storage, or upgrade its schema to this version. Safe to repeat."""
    done = asyncio.run(_migrated(session))
    if as_json(session, done) or session.quiet:
        return
    if done.before == done.after:
        result = f"is at schema {done.after}, nothing to do"
    else:
        result = f"was brought from {f'schema {done.before}' if done.before else 'nothing'} to schema {done.after}"
    click.echo(printable(f"{done.url} {result}"))


async def _migrated(session: CommandSession) -> MigratedView:
    url, before = await _looked(session)
    access = reach(session, auto_migrate=True)
    await access.storage.open()
    try:
        findings = await access.storage.examine(deep=False)
    finally:
        await access.storage.close()
    after = next((_schema(finding.message) for finding in findings if finding.subject == "schema"), None)
    return MigratedView(url=url, before=after if before is None else before, after=after)


async def _looked(session: CommandSession) -> tuple[str, int | None]:
    """Return the storage's URL and its schema version, or None if that is the current version already."""
    looked_at = reach(session).storage
    try:
        await looked_at.open()
    except SchemaMismatchError as error:
        # A foreign or newer schema is refused later, by the `open` that may migrate.
        return looked_at.url, _schema(str(error)) or 0
    finally:
        await looked_at.close()
    return looked_at.url, None


def _schema(text: str) -> int | None:
    found = re.search(r"\bschema (\d+)", text)
    return None if found is None else int(found[1])
