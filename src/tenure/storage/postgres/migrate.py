"""The part of `tenure migrate` for PostgreSQL: shows, prints and applies the migrations that a schema needs."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import psycopg

from tenure.clock import SystemClock
from tenure.errors import SchemaMismatchError
from tenure.storage.migrations import MigrationStatus, PendingMigration
from tenure.storage.postgres import errors, grants
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.compatibility import SchemaState
from tenure.storage.postgres.connection import Connection, Session
from tenure.storage.postgres.migration_files import MIGRATIONS, SCHEMA, Migration
from tenure.storage.postgres.schema import Schema, cut_off, pause, shown_workers
from tenure.storage.postgres.statements import NAMED, STATEMENTS

_ANNOUNCED = 30.0
"""For this number of seconds a migration stays announced if the process that announced it has died."""

_LOOK_EVERY = 0.5


class PostgresMigrations:
    """The migrations of one schema. Each call uses a connection of its own, and blocks."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self.url = address.shown
        self._schema = Schema(address, auto_migrate=True)
        self._clock = SystemClock()

    def status(self) -> MigrationStatus:
        """Return the state of the schema, and what `up` would do to it.

        Raises:
            SchemaMismatchError: it is not ours, or not for this version.
            StorageError: the server cannot be reached, or refuses this.
        """
        with self._connected() as connection:
            state = self._schema.state(connection)
            pending = _pending(state)
            workers = () if state is None else cut_off(connection, _needed(pending), self._address)
        return MigrationStatus(
            url=self._address.shown,
            schema=_number(state),
            newest=SCHEMA,
            features=() if state is None else state.features,
            pending=tuple(PendingMigration(number=each.number, file=each.file, oldest=each.oldest) for each in pending),
            cut_off=workers,
        )

    def up(self, *, drain: float | None = None, waits: Callable[[str], None] = lambda workers: None) -> tuple[int, int]:
        """Apply what is missing; return the number of the schema before and after.

        `drain`: stop the workers that would be cut off, and wait for them for up to this number of seconds; None:
        refuse to cut off any. `waits`: called with the workers that are waited for, whenever they change.

        Raises:
            SchemaMismatchError: it is not ours or not for this version, or workers would be cut off.
            StorageError: the server cannot be reached, refuses this, or keeps its tables in use.
        """
        with self._connected() as connection:
            state = self._schema.state(connection)
            if state is not None and drain is not None:
                self._drain(connection, _needed(_pending(state)), drain, waits)
            self._schema.migrate(connection)
        return _number(state), SCHEMA

    def sql(self) -> str:
        """Return a script for psql that does what `up` would do; empty if there is nothing to do.

        Raises:
            SchemaMismatchError: it is not ours, or not for this version.
            StorageError: the server cannot be reached, or refuses this.
        """
        with self._connected() as connection:
            state = self._schema.state(connection)
        return "\n".join(self._script(migration) for migration in _pending(state))

    def _drain(self, connection: Connection, below: int, seconds: float, waits: Callable[[str], None]) -> None:
        """Announce a migration, and wait until no worker lives that it would cut off."""
        end = self._clock.uptime() + seconds
        announced_at, before = float("-inf"), ""
        while workers := cut_off(connection, below, self._address):
            now = self._clock.uptime()
            if now >= end:
                self._announce(connection, below, 0)
                raise SchemaMismatchError(
                    f"{self._address.shown} was left as it was: after {seconds:g} s there is still "
                    f"{shown_workers(workers)}; wait longer (--timeout), or stop them"
                )
            if now - announced_at > _ANNOUNCED / 3:
                self._announce(connection, below, round(_ANNOUNCED * 1_000_000))
                announced_at = now
            if (text := shown_workers(workers)) != before:
                waits(text)
                before = text
            pause(_LOOK_EVERY)

    def _announce(self, connection: Connection, below: int, lasting: int) -> None:
        with connection.transaction():
            self._schema.enter(connection)
            connection.execute(NAMED["session.close"], {"below": below, "lasting": lasting}, prepare=False)

    def _script(self, migration: Migration) -> str:
        values = {
            "file": migration.file,
            "path": f'"{self._address.schema}", pg_temp',
            "schema": f'"{self._address.schema}"',
            "lock": str(self._address.migration_lock),
            "gate": str(self._address.gate),
            "version": str(migration.number),
            "previous": str(migration.number - 1),
            "oldest": str(migration.oldest),
        }
        first = migration.number == MIGRATIONS[0].number
        begin, check, end = (
            _filled(STATEMENTS[f"session.script_{part}"], values)
            for part in ("begin", "first" if first else "next", "end")
        )
        return f"{begin}\n{check}\n\n{migration.script.strip()}\n\n{end}\n"

    @contextmanager
    def _connected(self) -> Generator[Connection]:
        session = Session(self._address, self._address.server, check=self._schema.check_server)
        try:
            yield session.use()
        except psycopg.Error as error:
            raise errors.translate_error(grants.explained(error, self._address), self._address.shown) from error
        finally:
            session.close()


def _pending(state: SchemaState | None) -> list[Migration]:
    return [migration for migration in MIGRATIONS if migration.number > _number(state)]


def _needed(pending: list[Migration]) -> int:
    """Return the number that a worker must know to go on after these migrations."""
    return max((migration.oldest for migration in pending), default=0)


def _number(state: SchemaState | None) -> int:
    return 0 if state is None else state.version or 0


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
