"""The numbered files that make a schema, each with the oldest schema whose programs still work after it.

A file `0002_name.sql` is applied in one transaction. If processes that know only an older schema can go on after it,
its line `-- oldest: 1` names the first number of which that is true. Without this line the file cuts off all of them.
"""

import re
from dataclasses import dataclass
from importlib.resources import files

from tenure.storage.script_files import script

_PACKAGE = "tenure.storage.postgres"
_FILE = re.compile(r"(\d{4})_\w+\.sql")
_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Migration:
    """One file. `oldest`: programs that know this schema number or a newer one can use the result."""

    number: int
    file: str
    script: str
    oldest: int


def _read(number: int, file: str) -> Migration:
    text = script(_PACKAGE, "migrations", file)
    oldest = _OLDEST.search(text)
    return Migration(number, file, text, number if oldest is None else int(oldest[1]))


MIGRATIONS: tuple[Migration, ...] = tuple(
    _read(int(match[1]), file)
    for file in sorted(entry.name for entry in files(_PACKAGE).joinpath("migrations").iterdir())
    if (match := _FILE.fullmatch(file)) is not None
)
"""All migrations, in order."""

SCHEMA = MIGRATIONS[-1].number
"""The number of the newest schema."""

FEATURES: frozenset[str] = frozenset()
"""The features of a schema that this version knows."""
