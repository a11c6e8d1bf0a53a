"""The SQL statements of this storage, by verb and name."""

from tenure.storage.script_files import statements

_PACKAGE = "tenure.storage.sqlite"


def query(verb: str, name: str) -> str:
    """Return the statement of that name from `sql/<verb>.sql`."""
    return statements(_PACKAGE, "sql", f"{verb}.sql")[name]
