"""Decides whether this process may use a schema, at its first use and again in each transaction (contract rule 13).

    schema_version   the number of the last migration
    oldest           programs that know only an older schema than this one cannot use the tables
    features         what is in use of the schema; a program that does not know one of them cannot use the tables
    closing          while `tenure migrate up --drain` waits: workers that know only a schema older than `below` get no
                     more jobs, may end those that they have, and get the order to stop

A migration that only adds tables, columns or indexes leaves `oldest` as it is, and running processes go on.
"""

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from tenure.errors import SchemaMismatchError
from tenure.storage.postgres.migration_files import FEATURES, SCHEMA


class OutdatedError(SchemaMismatchError):
    """The schema is newer than this process. It cannot go on with it."""


class Closing(Struct, frozen=True):
    """An announced migration. `below`: the first number that it does not cut off. `until`: valid up to then (µs)."""

    below: int
    until: int


class SchemaState(Struct, frozen=True):
    """What a schema says about itself. `version`: None if that is missing."""

    version: int | None = None
    oldest: int = 0
    features: tuple[str, ...] = ()
    closing: Closing | None = None

    @property
    def unknown(self) -> list[str]:
        """The features in use that this version does not know."""
        return sorted(set(self.features) - FEATURES)

    def closes(self, now: int) -> str:
        """Return why a worker of this version must stop at this instant, empty if it may go on."""
        closing = self.closing
        if closing is None or closing.below <= SCHEMA or now >= closing.until:
            return ""
        return (
            f"the schema is about to be raised to a number for which a Tenure must know schema {closing.below}, and "
            f"this one knows {SCHEMA}; upgrade Tenure here"
        )


@lru_cache(maxsize=64)
def read_state(text: str | None) -> SchemaState:
    """Return the state that the statement `session.state` found."""
    found: dict[str, Any] = msgspec.json.decode(text or "{}")
    version = int(found["schema_version"]) if "schema_version" in found else None
    return SchemaState(
        version,
        # Without a limit of its own, a schema is for programs that know its number.
        int(found.get("oldest", version or 0)),
        msgspec.json.decode(found.get("features", "[]"), type=tuple[str, ...]),
        msgspec.json.decode(found["closing"], type=Closing) if "closing" in found else None,
    )


def require_usable(state: SchemaState, shown: str) -> None:
    """Check that a process of this version can use a schema. `shown`: the URL without passwords.

    Raises:
        OutdatedError: it cannot.
    """
    if state.version is not None and state.oldest <= SCHEMA and not state.unknown:
        return
    found = f"schema {state.version}"
    if state.unknown:
        found += f" with {', '.join(state.unknown)}"
    raise OutdatedError(
        f"{shown} has {found}, this Tenure knows up to {SCHEMA}; it was left untouched. Upgrade Tenure, or name "
        "another schema"
    )
