"""The statements: the shared verbs and the files of the dialect have the same names, and no parameter is positional."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.storage.sqlite.statements import STATEMENTS, positional

STORAGE = Path(tenure.__file__).parent / "storage"
FILES = {name.partition(".")[0] for name in STATEMENTS}
KEY = re.compile(rf"({'|'.join(sorted(FILES))})\.[a-z_]+")


def named_in(folder: str) -> Iterator[str]:
    """Yield the statements that the modules of a folder name."""
    for path in (STORAGE / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value):
                yield node.value


def test_each_statement_of_the_shared_verbs_is_in_the_sql_files() -> None:
    assert set(named_in("sql")) - STATEMENTS.keys() == set()


def test_each_statement_of_a_verb_is_named_by_the_code() -> None:
    # The database names its session statements by variables.
    of_verbs = {name for name in STATEMENTS if not name.startswith("session.")}

    assert of_verbs - {*named_in("sql"), *named_in("sqlite")} == set()


def test_every_parameter_of_a_statement_is_named() -> None:
    assert [name for name, text in STATEMENTS.items() if re.search(r"\?", re.sub(r"--.*|'[^']*'", "", text))] == []


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_finds_the_values_of_its_parameters(name: str) -> None:
    text = re.sub(r"--.*|'[^']*'", "", STATEMENTS[name])
    names = re.findall(r":(\w+)", text)
    sql, order = positional(STATEMENTS[name])

    assert list(order({name: name for name in names})) == names
    assert re.sub(r"--.*|'[^']*'", "", sql).count("?") == len(names)
