"""The SQL statements of this storage, by `<file>.<name>`."""

from importlib.resources import files

from tenure.storage.script_files import statements

_PACKAGE = "tenure.storage.sqlite"

STATEMENTS = {
    f"{file.name.removesuffix('.sql')}.{name}": text
    for file in files(_PACKAGE).joinpath("sql").iterdir()
    for name, text in statements(_PACKAGE, "sql", file.name).items()
}
