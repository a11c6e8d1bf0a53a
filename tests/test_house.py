"""The walls of the house guard themselves: who may import whom, where time and chance come from, what is drawn."""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tenure
from tenure import errors
from tenure.core.lifecycle import TRANSITIONS
from tenure.storage.protocol import Storage

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "tenure"

FLOORS: dict[str, int] = {
    "_version": 0,
    "errors": 0,
    "core": 1,
    "clock": 2,
    "waiting": 2,
    "failures": 2,
    "metrics": 2,
    "handlers": 3,
    "ids": 3,
    "processes": 3,
    "threads": 3,
    "storage": 3,
    "background_loop": 4,
    "options": 4,
    "events": 4,
    "client": 5,
    "runtime": 6,
    "maintenance": 7,
    "health": 7,
    "worker": 8,
    "supervisor": 9,
    "ops": 9,
    "app": 10,
    "__init__": 11,
    "demo": 11,
    "cli": 12,
    "testing": 12,
    "__main__": 13,
}
"""A room may import from floors below its own, from its own folder, and from nowhere else."""

PURE = {
    "__future__",
    "base64",
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "enum",
    "hashlib",
    "math",
    "msgspec",
    "random",
    "re",
    "typing",
    # What the clocks of a zone show is a table that lies still; no clock is read.
    "zoneinfo",
}


def rooms() -> Iterator[Path]:
    yield from sorted(HOUSE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return tuple(found)


@pytest.mark.parametrize("path", list(rooms()), ids=lambda path: str(path.relative_to(HOUSE)))
def test_an_import_goes_down_or_stays_in_its_own_folder(path: Path) -> None:
    here = room_of(path)

    assert here in FLOORS, f"{here} stands on no floor; give it one"

    for module in imports(path):
        first, _, rest = module.partition(".")
        if first != "tenure":
            continue
        there = rest.split(".")[0] or "__init__"
        if there == "__init__" and here in ("demo", "cli", "testing"):
            continue
        assert there == here or FLOORS[there] < FLOORS[here], f"{here} must not import {module}"


def modules() -> dict[str, Path]:
    """Return the modules of the package by their dotted names."""
    found = {".".join(path.relative_to(HOUSE.parent).with_suffix("").parts): path for path in rooms()}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imported_modules(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a file imports, a submodule by its own name."""
    found: set[str] = set()
    # What a module imports only as a script is not imported with it.
    script = [node for node in parsed(path).body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
    apart = {inner for node in script for inner in ast.walk(node)}
    for node in (node for node in ast.walk(parsed(path)) if node not in apart):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return {name for name in found if name in known and known[name] != path}


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    sorter = TopologicalSorter({name: imported_modules(path, known) for name, path in known.items()})

    sorter.prepare()  # raises CycleError, which names the circle


def test_a_class_name_stands_for_one_class() -> None:
    named: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(name)

    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_one_storage_does_not_know_another() -> None:
    for path in HOUSE.glob("storage/*/**/*.py"):
        mine = path.relative_to(HOUSE / "storage").parts[0]
        for module in imports(path):
            others = {folder.name for folder in (HOUSE / "storage").iterdir() if folder.is_dir()} - {mine}
            if mine == "sqlite":
                # The verbs that all SQL storages share.
                others -= {"sql"}
            assert not any(f"{module}.".startswith(f"tenure.storage.{other}.") for other in others), (path, module)


def test_the_shared_sql_verbs_name_no_dialect() -> None:
    dialects = re.compile(r"sqlite|postgres|psycopg|mysql", re.IGNORECASE)
    for path in HOUSE.glob("storage/sql/*.py"):
        assert not dialects.findall(path.read_text()), path


def test_only_the_app_and_those_above_it_locate_a_storage() -> None:
    may = {"app", "runtime", "supervisor", "worker", "cli", "demo", "testing", "storage"}
    for path in rooms():
        if any(module == "tenure.storage.urls" for module in imports(path)):
            assert room_of(path) in may, path


def test_the_core_is_pure() -> None:
    for path in HOUSE.glob("core/*.py"):
        tree = parsed(path)
        foreign = {module.split(".")[0] for module in imports(path)} - PURE - {"tenure"}
        awaits = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor)]
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}

        assert not foreign, (path, foreign)
        assert not awaits, path
        assert not {call for call in calls if call.startswith("random.") or call.endswith((".now", ".today"))}, path


CLOCKS = re.compile(
    r"\btime\.(time|time_ns|monotonic|monotonic_ns|perf_counter|clock_gettime)\(|datetime\.(now|utcnow)\("
)
DICE = re.compile(
    r"\brandom\.(random|randint|choice|uniform|Random|SystemRandom)\(|\buuid\.uuid|\bos\.urandom|\bsecrets\.(token|choice)"
)


def test_time_and_chance_are_read_in_one_place() -> None:
    for path in rooms():
        if path.name == "clock.py" or room_of(path) in ("testing", "demo", "cli"):
            continue
        text = path.read_text()
        assert not CLOCKS.search(text), f"{path}: takes the time from elsewhere than a Clock"
        assert not DICE.search(text), f"{path}: rolls a die of its own"


def test_sql_stands_in_files_of_its_own() -> None:
    spoken = re.compile(r"\b(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|redis\.call)\b", re.DOTALL)
    for path in rooms():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not spoken.search(node.value), f"{path}:{node.lineno}"


def test_each_storage_has_a_script_for_each_verb_that_reads_or_writes_and_for_nothing_else() -> None:
    verbs = {name for name, verb in vars(Storage).items() if inspect.iscoroutinefunction(verb)}
    verbs -= {"open", "close", "examine"}
    # What is not the work of one verb: the brackets of a transaction, the counters and lines that verbs leave behind;
    # the look at many cells, which tells which of them a sweep has to go to; and what creates an empty partition.
    shared = {".sql": {"session", "tally", "line", "rates", "mend"}, ".lua": {"look", "create"}}
    folders = [*HOUSE.glob("storage/*/sql"), *HOUSE.glob("storage/*/lua")]

    assert folders

    for folder in folders:
        files = [file for file in folder.iterdir() if file.is_file()]
        [kind] = {file.suffix for file in files}

        assert {file.stem for file in files} == verbs | shared[kind], folder


def test_every_part_of_a_script_is_a_part_of_one() -> None:
    lua = HOUSE / "storage" / "redis" / "lua"
    required = re.compile(r"^-- requires: (.+)$", re.MULTILINE)
    named = {
        name.strip()
        for file in lua.rglob("*.lua")
        for line in required.findall(file.read_text())
        for name in line.split(",")
    }

    assert named == {file.stem for file in (lua / "parts").iterdir()}


def test_every_room_says_in_one_sentence_what_it_is() -> None:
    for path in rooms():
        said = ast.get_docstring(parsed(path))
        assert path.name == "_version.py" or said, path


def test_the_face_is_what_is_exported() -> None:
    tree = ast.parse((HOUSE / "__init__.py").read_text())
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]

    assert set(tenure.__all__) == imported
    assert not defined


def test_every_error_stands_in_the_drawn_tree() -> None:
    drawn: dict[str, str] = {}
    trail: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^((?:[│ ] {3})*)(?:[├└]── )?([A-Z]\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4 + ("──" in line)
            trail[depth:] = [found[2]]
            drawn[found[2]] = trail[depth - 1] if depth else "Exception"
    made = {
        name: thing.__bases__[0].__name__
        for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, Exception)
    }

    assert drawn == made


def test_the_drawn_state_machine_is_the_table() -> None:
    drawn: set[tuple[str | None, str]] = set()
    in_table = False
    for line in (ROOT / "docs" / "state-machine.md").read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if cells[:2] == ["from", "to"]:
            in_table = True
        elif in_table and not line.startswith("|"):
            in_table = False
        elif in_table and (cells[0] == "-" or not set(cells[0]) <= set("-: ")):
            drawn.add((None if cells[0] == "-" else cells[0], cells[1]))

    assert drawn == {(before and str(before), str(after)) for before, after in TRANSITIONS}


def test_the_lock_names_no_package_index_and_every_line_is_hashed() -> None:
    lock = (ROOT / "requirements.lock").read_text()

    assert "://" not in lock
    assert "--index-url" not in lock
    assert lock.count("--hash=sha256:") > lock.count("==")


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert "version" in project["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", tenure.__version__)
