"""The SQL statements of this storage, by `<file>.<name>`."""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from operator import itemgetter
from typing import Any

from tenure.storage.script_files import statements

_PACKAGE = "tenure.storage.sqlite"
_PARAMETER = re.compile(r"(?<![\w:'])(?<!--):([a-z_]+)")

Order = Callable[[Mapping[str, Any]], Sequence[Any]]
"""Puts named values in the order of a statement's numbered parameters."""


def numbered(text: str) -> tuple[str, Order]:
    """Return a statement with numbers in place of the names of its parameters, and the order of these.

    `sqlite3` looks up each name at each call, which takes 0.1 microseconds. For the 34 parameters of a new job, that
    would make an enqueue 10 % slower.
    """
    names = list(dict.fromkeys(_PARAMETER.findall(text)))
    sql = _PARAMETER.sub(lambda found: f"?{names.index(found[1]) + 1}", text)
    match names:
        case []:
            return sql, lambda values: ()
        case [name]:
            return sql, lambda values: (values[name],)
        case _:
            return sql, itemgetter(*names)


STATEMENTS = {
    f"{file.name.removesuffix('.sql')}.{name}": text
    for file in files(_PACKAGE).joinpath("sql").iterdir()
    for name, text in statements(_PACKAGE, "sql", file.name).items()
}

NUMBERED = {name: numbered(text) for name, text in STATEMENTS.items()}
