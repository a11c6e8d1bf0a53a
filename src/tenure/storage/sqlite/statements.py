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
"""Puts named values in the order in which a statement uses them."""


def positional(text: str) -> tuple[str, Order]:
    """Return a statement with `?` in place of each use of a named parameter, and the order of these uses.

    `sqlite3` looks up each name at each call, which takes 0.1 microseconds. For the 34 parameters of a new job, that
    would make an enqueue 10 % slower. Numbers (`?1`) would do as well, but Python 3.14 refuses them with a sequence.
    """
    names = _PARAMETER.findall(text)
    sql = _PARAMETER.sub("?", text)
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

POSITIONAL = {name: positional(text) for name, text in STATEMENTS.items()}
