"""The SQL statements of this storage, by `<file>.<name>`."""

import re
from importlib.resources import files

from tenure.storage.script_files import statements

_PACKAGE = "tenure.storage.postgres"
_PARAMETER = re.compile(r"(?<![\w:']):([a-z_]+)")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def named(text: str) -> str:
    """Return a statement without its comments, with parameters as psycopg names them: `%(queue)s` for `:queue`."""
    return _PARAMETER.sub(r"%(\1)s", _COMMENT.sub("", text).replace("%", "%%"))


STATEMENTS = {
    f"{file.name.removesuffix('.sql')}.{name}": text
    for file in files(_PACKAGE).joinpath("sql").iterdir()
    for name, text in statements(_PACKAGE, "sql", file.name).items()
}

NAMED = {name: named(text).encode() for name, text in STATEMENTS.items()}
