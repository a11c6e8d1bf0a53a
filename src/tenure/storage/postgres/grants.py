"""The privileges that a role needs, and those that it lacks.

docs/howto/postgres.md has them as SQL. A role that owns the schema has them all.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import psycopg
from psycopg import errors as pg

from tenure.errors import StorageError
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.connection import Session
from tenure.storage.postgres.statements import NAMED

_KINDS = {"s": "SELECT", "i": "INSERT", "u": "UPDATE", "d": "DELETE", "U": "USAGE"}

WORKER = (
    "job:sud job_live:siud job_seq:U call:siud run:sid log:sid tally:siud key:siud slot:sid setting:siud task:siud "
    "worker:siud event:sid reader:siu schedule:siud leader:su window:siud rate:siud fair_line:siud fair_reached:siud "
    "fair_tag:siud meta:siu intake:siud answered:siud act:siud front:siud figure:siud"
)
"""What workers, reapers and operators need: of each table the first letters of the privileges."""

PRODUCER = (
    "job:sud job_live:siud job_seq:U call:siud run:sd log:sd tally:siud key:siud slot:s setting:s task:s worker:s "
    "event:sid schedule:s leader:s window:siud rate:s fair_line:siu fair_reached:siu fair_tag:siu meta:s "
    "intake:siud answered:siud front:su figure:siu"
)
"""What a process needs that enqueues, and reads states and results. UPDATE may be limited to columns."""


class Privilege(NamedTuple):
    """A privilege on a table or a sequence of the schema."""

    table: str
    kind: str

    def grant(self, schema: str, role: str) -> str:
        """Return the statement that grants it."""
        sequence = "SEQUENCE " if self.kind == "USAGE" else ""
        return f'GRANT {self.kind} ON {sequence}{schema}."{self.table}" TO "{role}"'


def privileges(listed: str) -> list[Privilege]:
    """Return the privileges of a list such as WORKER."""
    pairs = (word.partition(":") for word in listed.split())
    return [Privilege(table, _KINDS[letter]) for table, _, letters in pairs for letter in letters]


def parameters(schema: str) -> dict[str, Any]:
    """Return the parameters of the statement `health.grants`, which looks for all privileges."""
    return {"schema": schema, "privileges": json.dumps(privileges(WORKER))}


def missing(rows: Iterable[tuple[Any, ...]], listed: str) -> list[Privilege]:
    """Return the privileges of a list that the role lacks, by the rows of `health.grants`."""
    lacks = {Privilege(table, kind) for table, kind, has in rows if not has}
    return [one for one in privileges(listed) if one in lacks]


def explained(error: BaseException, address: PostgresAddress) -> BaseException:
    """Return an error that names the grant that a role lacks, if that is why a statement failed; else `error`.

    It asks in a connection of its own: that of the statement may not be usable without the grant.
    """
    if not isinstance(error, pg.InsufficientPrivilege | pg.UndefinedTable):
        return error
    session = Session(address, address.server, check=lambda connection: None)
    try:
        connection = session.use()
        role = connection.info.user
        values = parameters(address.schema)
        usage = connection.execute(NAMED["health.usage"], values, prepare=False).fetchone()
        rows = connection.execute(NAMED["health.grants"], values, prepare=False).fetchall()
    except psycopg.Error:
        return error
    finally:
        session.close()
    text = error.diag.message_primary or "permission denied"
    if usage is not None and usage[0] is False:
        # Without it the server finds no table of the schema, and may say that there are none.
        remedy = f'GRANT USAGE ON SCHEMA {address.schema} TO "{role}"'
    elif isinstance(error, pg.UndefinedTable):
        return error
    else:
        name = text.rpartition(" ")[2]
        # What a producer lacks comes first: a worker lacks it, too.
        lists = [[one for one in missing(rows, listed) if one.table == name] for listed in (PRODUCER, WORKER)]
        lacking = [one.grant(address.schema, role) for one in lists[0] or lists[1]]
        remedy = "; ".join(lacking) or "docs/howto/postgres.md lists what a role needs"
    return StorageError(f"{address.shown} refuses this to the role {role!r} ({text}); its owner can grant it: {remedy}")
