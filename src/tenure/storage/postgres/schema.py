"""The schema: checks it before any change, and creates and migrates it."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg

from tenure.errors import SchemaMismatchError, StorageError, StorageUnavailableError
from tenure.storage.migrations import CutOffWorker
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.compatibility import SchemaState, read_state, require_usable
from tenure.storage.postgres.connection import Connection
from tenure.storage.postgres.migration_files import MIGRATIONS, SCHEMA, Migration
from tenure.storage.postgres.statements import NAMED, STATEMENTS

LIVES = 60_000_000
"""A worker whose last beat is older than this number of microseconds is not waited for."""

_OLDEST = 130_000

_IDLE = 10_000
"""A migration whose process is frozen ends after this number of milliseconds."""

_PATIENCE = 2_000
"""How many milliseconds a migration keeps all others waiting for a transaction that reads a table."""

_TRIES = 10
"""How often a migration tries to get its tables."""

_PAUSE = 1.0
"""Seconds between two tries, in which the others go on."""


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
            StorageError: the server is too old, or the role may not change the schema.
            SchemaMismatchError: the schema is not ours or not of our version; it was left unchanged.
        """
        if self._checked:
            return
        self.check_server(connection)
        state = self.state(connection)
        version = 0 if state is None else state.version or 0
        if version < SCHEMA:
            if not self._auto_migrate:
                found = f"schema {version}" if version else "no schema yet"
                raise SchemaMismatchError(
                    f"{self._address.shown} has {found}, this Tenure needs {SCHEMA}; run `tenure migrate up`"
                )
            self.migrate(connection)
        self._checked = True

    def state(self, connection: Connection) -> SchemaState | None:
        """Return what the schema says about itself, None if it does not exist yet. Waits for a migration to end.

        Raises:
            SchemaMismatchError: it is not ours, or not for this version.
        """
        values = {"schema": self._address.schema}
        _, tables, ours = _row(connection, "session.tables", values)
        if not ours:
            if tables:
                raise SchemaMismatchError(
                    f"the schema {self._address.schema!r} of {self._address.shown} has tables of another program; it "
                    "was left untouched. Give Tenure a schema of its own: ?schema=..."
                )
            return None
        with connection.transaction():
            self.enter(connection)
            state = read_state(_row(connection, "session.state")[0])
        require_usable(state, self._address.shown)
        return state

    def migrate(self, connection: Connection) -> list[int]:
        """Apply the migrations that are missing, each in a transaction of its own; return their numbers.

        A migration takes the lock of migrations, so that two processes take turns, and the gate, so that no transaction
        of a worker runs at the same time.

        Raises:
            SchemaMismatchError: a migration would cut off live workers. Those before it were applied.
            StorageUnavailableError: a transaction that reads a table did not end.
            StorageError: the role may not change the schema.
        """
        applied: list[int] = []
        for migration in MIGRATIONS:
            if self._apply(connection, migration):
                applied.append(migration.number)
        return applied

    def _apply(self, connection: Connection, migration: Migration) -> bool:
        """Apply a migration; return False if the schema has it already."""
        for number in range(_TRIES):
            try:
                with connection.transaction():
                    self.enter(connection)
                    # Another process may have applied it meanwhile.
                    state = self.state(connection)
                    if state is not None and (state.version or 0) >= migration.number:
                        return False
                    self._change(connection, migration, state)
            except pg.LockNotAvailable:
                # The tables are in use. The others go on before the next try.
                if number + 1 < _TRIES:
                    pause(_PAUSE)
            except pg.InsufficientPrivilege as error:
                raise StorageError(
                    f"{self._address.shown} needs schema {migration.number}, and its role may not change the schema "
                    f"({error.diag.message_primary}); run `tenure migrate up` with the role that owns the schema, or "
                    "give its owner what `tenure migrate sql` prints"
                ) from None
            else:
                return True
        raise StorageUnavailableError(
            f"{self._address.shown} has tables in use, so that it could not be raised to schema {migration.number}: "
            f"{self._holders(connection)}; try again when that has ended"
        )

    def _change(self, connection: Connection, migration: Migration, state: SchemaState | None) -> None:
        connection.execute(
            NAMED["session.change"], {"gate": self._address.gate, "patience": str(_PATIENCE)}, prepare=False
        )
        # Behind the gate, so that no worker begins after this look.
        if state is not None and (found := cut_off(connection, migration.oldest, self._address)):
            raise SchemaMismatchError(
                f"{self._address.shown} was not raised to schema {migration.number}, because that would cut off "
                f"{shown_workers(found)}; stop the old workers first, or run `tenure migrate up --drain`, which "
                "lets them end their jobs and stops them"
            )
        connection.execute(STATEMENTS["session.create_schema"].encode())
        connection.execute(migration.script.encode())
        values = {"version": migration.number, "oldest": migration.oldest, "created": self._created}
        connection.execute(NAMED["session.set_version"], values, prepare=False)

    def enter(self, connection: Connection) -> None:
        """Take the lock of migrations, and make this schema the current one, for the current transaction."""
        connection.execute(
            NAMED["session.enter"],
            {
                "path": path_of(self._address),
                "schema": self._address.schema,
                "idle": str(_IDLE),
                "lock": self._address.migration_lock,
            },
            prepare=False,
        )

    def _holders(self, connection: Connection) -> str:
        values = {"schema": self._address.schema, "least": _PATIENCE / 1_000}
        found = connection.execute(NAMED["session.holders"], values, prepare=False).fetchall()
        shown = (
            f"process {pid} of the server ({role}, {program!r}, since {since})" for pid, role, program, since in found
        )
        return ", ".join(shown) or "by transactions of others"

    def check_server(self, connection: Connection) -> None:
        """Check the version of the server, and the encoding of the database.

        Raises:
            StorageError: the server is too old.
            SchemaMismatchError: the database has another encoding.
        """
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


def cut_off(connection: Connection, below: int, address: PostgresAddress) -> tuple[CutOffWorker, ...]:
    """Return the live workers that know only schemas below a number."""
    with connection.transaction():
        connection.execute(NAMED["session.look"], {"path": path_of(address)}, prepare=False)
        values = {"below": below, "lasting": LIVES}
        rows = connection.execute(NAMED["session.cut_off"], values, prepare=False).fetchall()
    return tuple(CutOffWorker(name=name, host=host, pid=pid, knows=knows) for name, host, pid, knows in rows)


def shown_workers(workers: Sequence[CutOffWorker], most: int = 5) -> str:
    """Return workers in words."""
    names = [f"{one.name} (pid {one.pid} on {one.host}, knows schema {one.knows})" for one in workers[:most]]
    more = f" and {len(workers) - most} more" if len(workers) > most else ""
    count = "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
    return f"{count}: {', '.join(names)}{more}"


def path_of(address: PostgresAddress) -> str:
    """Return the search path of all transactions."""
    return f'"{address.schema}", pg_temp'


def pause(seconds: float) -> None:
    """Block the thread."""
    threading.Event().wait(seconds)


def _row(connection: Connection, statement: str, values: Mapping[str, object] | None = None) -> tuple[Any, ...]:
    row = connection.execute(NAMED[statement], values, prepare=False).fetchone()
    if row is None:
        raise psycopg.DataError(f"{statement} returns a row")
    return row
