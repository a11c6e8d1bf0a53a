"""The schema: checks it before any change, and creates and migrates it."""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import psycopg

from tenure.errors import SchemaMismatchError, StorageError
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.connection import PATIENCE, Connection
from tenure.storage.postgres.statements import NAMED, STATEMENTS
from tenure.storage.script_files import script

_PACKAGE = "tenure.storage.postgres"
_FILE = re.compile(r"(\d{4})_\w+\.sql")
_OLDEST = 130_000

MIGRATIONS: dict[int, str] = {
    int(match[1]): file.name
    for file in sorted(files(_PACKAGE).joinpath("migrations").iterdir(), key=lambda file: file.name)
    if (match := _FILE.fullmatch(file.name)) is not None
}
"""The files of `migrations/` by their numbers, in order."""

SCHEMA = max(MIGRATIONS)
"""The number of the newest schema."""

FEATURES: frozenset[str] = frozenset()
"""The features of a schema that this version knows."""


class Schema:
    """The schema of an address. `created`: the instant that is recorded as that of its creation; None: the server's."""

    def __init__(self, address: PostgresAddress, *, auto_migrate: bool, created: int | None = None) -> None:
        self._address = address
        self._auto_migrate = auto_migrate
        self._created = created
        self._checked = False

    def check(self, connection: Connection) -> None:
        """Check the server and the schema, once; create or migrate the schema if that is allowed.

        Raises:
            StorageError: the server is too old.
            SchemaMismatchError: the schema is not ours or not of our version; it was left unchanged.
        """
        if self._checked:
            return
        self._check_server(connection)
        version = self.version(connection)
        if version < SCHEMA:
            if not self._auto_migrate:
                found = f"schema {version}" if version else "no schema yet"
                raise SchemaMismatchError(
                    f"{self._address.shown} has {found}, this Tenure needs {SCHEMA}; run `tenure migrate`"
                )
            self.migrate(connection)
        self._checked = True

    def version(self, connection: Connection) -> int:
        """Return the number of the schema, 0 if it does not exist yet.

        Raises:
            SchemaMismatchError: it is not ours, or newer than this version.
        """
        values = {"schema": self._address.schema}
        _, tables, ours = _row(connection, "session.tables", values)
        if not ours:
            if tables:
                raise SchemaMismatchError(
                    f"the schema {self._address.schema!r} of {self._address.shown} has tables of another program; it "
                    "was left untouched. Give Tenure a schema of its own: ?schema=..."
                )
            return 0
        with connection.transaction():
            self._enter(connection)
            version, features = _row(connection, "session.version")
        unknown = sorted(set(json.loads(features)) - FEATURES)
        if version is None or version > SCHEMA or unknown:
            found = f"schema {version}" + (f" with {', '.join(unknown)}" if unknown else "")
            raise SchemaMismatchError(
                f"{self._address.shown} has {found}, this Tenure knows up to {SCHEMA}; it was left untouched. Upgrade "
                "Tenure, or name another schema"
            )
        return int(version)

    def migrate(self, connection: Connection) -> list[int]:
        """Apply the migrations that are missing, each in a transaction of its own; return their numbers."""
        applied: list[int] = []
        for number, file in MIGRATIONS.items():
            with connection.transaction():
                self._enter(connection)
                # Another process may have applied it meanwhile.
                if self.version(connection) >= number:
                    continue
                connection.execute(STATEMENTS["session.create_schema"].encode())
                connection.execute(script(_PACKAGE, "migrations", file).encode())
                connection.execute(
                    NAMED["session.set_version"], {"version": number, "created": self._created}, prepare=False
                )
            applied.append(number)
        return applied

    def _enter(self, connection: Connection) -> None:
        """Take the lock of migrations, and make this schema the current one, for the current transaction."""
        connection.execute(
            NAMED["session.enter"],
            {
                "path": f'"{self._address.schema}", pg_temp',
                "schema": self._address.schema,
                "patience": str(PATIENCE),
                "lock": self._address.migration_lock,
            },
            prepare=False,
        )

    def _check_server(self, connection: Connection) -> None:
        version, encoding = _row(connection, "session.server")
        if version < _OLDEST:
            raise StorageError(
                f"{self._address.shown} is PostgreSQL {version // 10_000}, Tenure needs {_OLDEST // 10_000} or newer"
            )
        if encoding != "UTF8":
            raise SchemaMismatchError(
                f"the database of {self._address.shown} has the encoding {encoding}, Tenure needs UTF8; it was left "
                "untouched. Create a database with ENCODING 'UTF8'"
            )


def _row(connection: Connection, statement: str, values: Mapping[str, object] | None = None) -> tuple[Any, ...]:
    row = connection.execute(NAMED[statement], values, prepare=False).fetchone()
    if row is None:
        raise psycopg.DataError(f"{statement} returns a row")
    return row
