"""Prints the numbered statements with the tests that check them, and those that have none yet.

    python tests/statements.py [REPORT.xml ...]

A test names its statements by a marker, `@pytest.mark.statement(21, "21b")`. The exit status is 1 while one of those
that must be tests has none. With reports of pytest runs, a statement has a test only if a test of it ran and passed
there. A part of a statement that waits for a later feature is printed with its tests.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
PLACES = (ROOT / "tests", ROOT / "src" / "tenure_testing")

ALL = (*(str(number) for number in range(1, 22)), "21b", *(str(number) for number in range(22, 121)))
OWED = {
    "25": "its workflow's node and its figures",
    "65": "its workflow's node",
    "73": "an option to hold the slot between two attempts",
    "83": "Redis; memory and SQLite are held to the same",
}
"""The part of a statement that waits for a later feature; the rest of it has a test."""

NOT_OURS = {"119": "a lock that is a file of its own; no storage of ours has one, SQLite elects by a row"}
"""Statements about what is not built, with the reason."""

REQUIRED = frozenset(ALL) - frozenset(NOT_OURS)


def main(reports: Sequence[str] = ()) -> int:
    """Print the table and return the exit status."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for statement, test in passed(reports) if reports else written():
        found[statement].append(test)
    for name in ALL:
        lines = list(found.get(name, ()))
        if not lines:
            lines.append(f"not ours: {NOT_OURS[name]}" if name in NOT_OURS else "no test yet")
        if name in OWED:
            lines.append(f"(still owed: {OWED[name]})")
        print(f"{name:>4}  " + "\n      ".join(lines))
    unknown = sorted(set(found) - set(ALL))
    missing = [name for name in ALL if name in REQUIRED and name not in found]
    print(f"\n{len(REQUIRED) - len(missing)} of {len(REQUIRED)} required statements have a test")
    if missing:
        print(f"no test yet: {', '.join(missing)}")
    if unknown:
        print(f"no such statement: {', '.join(unknown)}")
    return 1 if missing or unknown else 0


def written() -> Iterator[tuple[str, str]]:
    """Yield each statement that a test in the tree is marked with, and the place of the test."""
    for place in PLACES:
        for path in sorted(place.rglob("*.py")):
            for statement, test in marked(ast.parse(path.read_text("utf-8"))):
                yield statement, f"{path.relative_to(ROOT)}::{test}"


def passed(reports: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each statement that a passed test in these reports names, and that test, once."""
    found: dict[tuple[str, str], None] = {}
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            if any(case.find(trouble) is not None for trouble in ("failure", "error", "skipped")):
                continue
            test = f"{case.get('classname')}::{str(case.get('name')).partition('[')[0]}"
            for statement in case.iterfind("properties/property[@name='statement']"):
                found[str(statement.get("value")), test] = None
    yield from found


def marked(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each statement that a test of this module is marked with, and the test's name."""
    everywhere = [mark for node in module.body if isinstance(node, ast.Assign) for mark in module_marks(node)]
    for node in ast.walk(module):
        match node:
            case ast.ClassDef(name=name, decorator_list=decorators) if numbers(decorators):
                for test in node.body:
                    if is_test(test):
                        yield from ((number, f"{name}::{test_name(test)}") for number in numbers(decorators))
            case ast.FunctionDef(decorator_list=decorators) | ast.AsyncFunctionDef(decorator_list=decorators) if (
                is_test(node)
            ):
                yield from ((number, test_name(node)) for number in numbers(decorators))
                yield from ((number, test_name(node)) for number in numbers(everywhere))
            case _:
                pass


def module_marks(node: ast.Assign) -> list[ast.expr]:
    """Return the marks that `pytestmark` gives to all tests of a module."""
    if not any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets):
        return []
    return list(node.value.elts) if isinstance(node.value, ast.List | ast.Tuple) else [node.value]


def numbers(decorators: list[ast.expr]) -> list[str]:
    """Return the statements that these decorators name."""
    return [
        str(argument.value)
        for decorator in decorators
        if isinstance(decorator, ast.Call) and re.search(r"\bmark\.statement$", ast.unparse(decorator.func))
        for argument in decorator.args
        if isinstance(argument, ast.Constant)
    ]


def is_test(node: ast.AST) -> bool:
    """Return whether this is a test."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


def test_name(node: ast.AST) -> str:
    """Return the name of a test."""
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
