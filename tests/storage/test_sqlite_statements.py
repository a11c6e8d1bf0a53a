"""The statements: the shared verbs and the files of the dialect have the same names, and no parameter is positional."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tenure
from tenure.storage.sqlite.statements import STATEMENTS

STORAGE = Path(tenure.__file__).parent / "storage"
FILES = {name.partition(".")[0] for name in STATEMENTS}
KEY = re.compile(rf"({'|'.join(sorted(FILES))})\.[a-z_]+")


def named_in(folder: str) -> Iterator[str]:
    """Yield the statements that the modules of a folder name."""
    for path in (STORAGE / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value):
                yield node.value


def test_each_statement_that_the_shared_verbs_name_is_in_the_files_of_the_dialect() -> None:
    assert set(named_in("sql")) - STATEMENTS.keys() == set()


def test_each_statement_of_a_verb_is_named_by_the_code() -> None:
    # The database names its session statements by variables.
    of_verbs = {name for name in STATEMENTS if not name.startswith("session.")}

    assert of_verbs - {*named_in("sql"), *named_in("sqlite")} == set()
