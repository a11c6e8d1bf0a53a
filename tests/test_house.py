"""Checks the structure of the package: imports, purity, threads and processes, script files, and what the docs say."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tenure
from tenure import errors
from tenure.core.lifecycle import TRANSITIONS
from tenure.storage.moving import MoveTarget
from tenure.storage.protocol import Storage
from tests.conftest import ON_VALKEY

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "tenure"
KITS = ROOT / "src" / "tenure_testing"

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
    "outbox": 4,
    "client": 5,
    "http": 5,
    "runtime": 6,
    "webhooks": 6,
    "maintenance": 7,
    "health": 7,
    "worker": 8,
    "supervisor": 9,
    "ops": 9,
    "app": 10,
    "__init__": 11,
    "console": 11,
    "cli": 12,
    "testing": 13,
    "__main__": 13,
}
"""A room may import from floors below its own, from its own folder, and from nowhere else."""

KIT_FLOORS: dict[str, int] = {
    "__init__": 0,
    "conformance": 0,
    "demo": 0,
    "duplicate_scripts": 0,
    "simulation": 0,
    "mutants": 1,
    "postgres_programs": 1,
    "proxy": 1,
    "evidence": 2,
    "chaos": 3,
    "simulate": 3,
}
"""The floors of `tenure_testing`, by the same rule. Its rooms may import every room of `tenure`."""

INNER_FLOORS: dict[str, tuple[str, ...]] = {
    "tenure.worker": (
        "event_loop injected known_tasks lifespan partitions recycling retry_delay scoreboard stop_signals "
        "supervisor_messages task_publisher worker_metrics",
        "loop_lag",
        "active_runs",
        "deps prefetch stacks",
        "keeper outcomes run supervised transactions watchdog",
        "isolation",
        "executor",
        "loop",
        "assembly",
        "shutdown",
        "worker",
    ),
    "tenure.supervisor": ("child reload systemd", "monitor overview recovery", "supervisor"),
    "tenure.storage": (
        "cursors waiting",
        "forking migrations notifications policies protocol script_files secrets",
        "connections moving notification_retry sql",
        "memory postgres redis sqlite",
        "urls",
    ),
    "tenure_testing.conformance": (
        "helpers state_machine",
        "acts claim_numbers collecting crashes differential due_order enqueue events exchange many_queues notices "
        "order published_tasks reading reclaim regressions renew revise sweep ttl tune unique_keys waiting",
        "concurrency_keys dead_letters figures flows limits moves pause rates retention schedules unknown_tasks",
        "suite",
        "__init__",
    ),
    "tenure_testing.simulation": (
        "call_checks event_loop fault_log job_history record_checks violation workload",
        "fairness_checks key_checks network rate_checks recovery_checks tick_checks",
        "accounts plan",
        "event_checks order_checks sweep_checks transition_checks",
        "change_checks run_checks",
        "invariants",
        "environment",
        "node",
        "faults",
        "world",
        "figures",
        "campaign",
    ),
    "tenure_testing.chaos": (
        "blocking networks records storage",
        "evidence postgres_storage processes redis_storage tasks",
        "faults producer recoveries",
        "audit network_faults sqlite_faults",
        "postgres_faults redis_faults",
        "run",
        "__main__",
    ),
    "tenure_testing.mutants": ("registry", "enqueue rates runs", "__init__", "trials", "__main__"),
    "tenure_testing.demo": (
        "bad_handlers corpus event_follower processes work",
        "handler_log",
        "evidence tasks",
        "audit faults gather workers",
        "gil_holding report",
        "output",
        "run",
        "__main__",
    ),
}
"""The floors inside the large rooms, the lowest first, by the same rule. A folder in a room stands on one floor."""

PURE = {
    "__future__",
    "base64",
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "difflib",
    "enum",
    # A cache changes no answer.
    "functools",
    "hashlib",
    "math",
    "msgspec",
    "random",
    "re",
    "typing",
    # The time zones are a constant table; no clock is read.
    "zoneinfo",
}


@cache
def rooms() -> tuple[Path, ...]:
    """Return all modules of the package."""
    return tuple(sorted(HOUSE.rglob("*.py")))


def sources() -> Iterator[Path]:
    """Return the files of both distributions."""
    yield from rooms()
    yield from sorted(KITS.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def statements(path: Path) -> tuple[ast.AST, ...]:
    """Return all statements of a module, at every depth, in no order. Imports, classes and functions are statements."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = [*parsed(path).body]
    while todo:
        node = todo.pop()
        found.append(node)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo += getattr(node, field, ())
    return tuple(found)


@cache
def imports(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in statements(path):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return tuple(found)


def test_imports_go_to_lower_floors_or_stay_in_their_room() -> None:
    assert {room_of(path) for path in rooms()} <= set(FLOORS), "give each room a floor"

    found: list[str] = []
    for path in rooms():
        here = room_of(path)
        for module in imports(path):
            first, _, rest = module.partition(".")
            there = rest.split(".")[0] or "__init__"
            if first != "tenure" or (there == "__init__" and here in ("cli", "testing")):
                continue
            if there != here and FLOORS[there] >= FLOORS[here]:
                found.append(f"{path.relative_to(HOUSE)} imports {module}")

    assert found == []


def test_imports_of_the_kits_go_to_lower_floors_or_stay_in_their_room() -> None:
    found: list[str] = []
    for path in sorted(KITS.rglob("*.py")):
        here = path.relative_to(KITS).parts[0].removesuffix(".py")
        for module in imports(path):
            first, _, rest = module.partition(".")
            there = rest.split(".")[0] or "__init__"
            if first == "tenure_testing" and there != here and KIT_FLOORS[there] >= KIT_FLOORS[here]:
                found.append(f"{path.relative_to(KITS)} imports {module}")

    assert found == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_floors_on_a_page_are_those_tested(page: str) -> None:
    floors: dict[str, int] = {}
    for floor, rooms_there in re.findall(r"^\| (\d+) \| ([^|]+) \|", (ROOT / page).read_text(), re.MULTILINE):
        for room in re.findall(r"`([^`]+)`", rooms_there):
            name = room.removesuffix(".py").rstrip("/")
            if "/" not in name:
                floors[name] = int(floor)
            else:
                assert FLOORS[name.split("/")[0]] == int(floor), room
                assert (HOUSE / name).is_dir(), room

    assert floors == FLOORS


def test_each_file_that_runs_on_valkey_too_exists() -> None:
    """A renamed file would silently lose its tests on Valkey."""
    assert [name for name in sorted(ON_VALKEY) if not (ROOT / "tests" / name).is_file()] == []


def test_the_package_imports_no_test_dependency() -> None:
    for path in rooms():
        needed = {module.split(".")[0] for module in imports(path)}
        assert not needed & {"tenure_testing", "tests", "pytest", "hypothesis"}, path


@cache
def modules() -> dict[str, Path]:
    """Return the modules of both distributions by their dotted names."""
    found = {".".join(path.relative_to(HOUSE.parent).with_suffix("").parts): path for path in sources()}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imported_modules(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a file imports, a submodule by its own name."""
    found: set[str] = set()
    # Imports below `if __name__ == "__main__"` happen only in a script.
    script = [node for node in parsed(path).body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
    apart = {inner for node in script for inner in ast.walk(node)}
    for node in (node for node in statements(path) if node not in apart):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return {name for name in found if name in known and known[name] != path}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    known = modules()
    sorter = TopologicalSorter({name: imported_modules(path, known) for name, path in known.items()})

    sorter.prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("room", INNER_FLOORS)
def test_imports_inside_a_room_go_to_lower_floors(room: str) -> None:
    floors = {name: floor for floor, names in enumerate(INNER_FLOORS[room]) for name in names.split()}
    known = modules()

    def place(module: str) -> str:
        return module.removeprefix(room).lstrip(".").partition(".")[0] or "__init__"

    inside = [name for name in known if name == room or name.startswith(f"{room}.")]
    empty = {"__init__"} if not imported_modules(known[room], known) else set[str]()
    assert {place(name) for name in inside} - empty == set(floors) - empty, "give each module a floor"

    found = [
        f"{name} imports {other}"
        for name in inside
        for other in imported_modules(known[name], known)
        if other in inside
        and place(other) not in (place(name), *empty)
        and (place(name) in empty or floors[place(other)] >= floors[place(name)])
    ]
    assert found == []


def test_each_class_name_exists_once() -> None:
    named: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in statements(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(name)

    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_a_storage_does_not_import_another() -> None:
    for path in HOUSE.glob("storage/*/**/*.py"):
        mine = path.relative_to(HOUSE / "storage").parts[0]
        for module in imports(path):
            others = {folder.name for folder in (HOUSE / "storage").iterdir() if folder.is_dir()} - {mine}
            if mine in ("postgres", "sqlite"):
                # The verbs that all SQL storages share.
                others -= {"sql"}
            assert not any(f"{module}.".startswith(f"tenure.storage.{other}.") for other in others), (path, module)


def test_the_shared_sql_verbs_name_no_dialect() -> None:
    dialects = re.compile(r"sqlite|postgres|psycopg|mysql", re.IGNORECASE)
    for path in HOUSE.glob("storage/sql/*.py"):
        assert not dialects.findall(path.read_text()), path


def test_only_the_app_and_rooms_above_it_import_storage_urls() -> None:
    may = {"app", "runtime", "supervisor", "worker", "cli", "storage"}
    for path in rooms():
        if any(module == "tenure.storage.urls" for module in imports(path)):
            assert room_of(path) in may, path


def test_the_core_imports_and_calls_nothing_impure() -> None:
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


def test_only_the_clock_reads_time_and_randomness() -> None:
    for path in rooms():
        if path.name == "clock.py" or room_of(path) == "cli":
            continue
        text = path.read_text()
        assert not CLOCKS.search(text), f"{path}: takes the time from elsewhere than a Clock"
        assert not DICE.search(text), f"{path}: uses randomness of its own"


OUTSIDE = re.compile(
    r"\bThread\(|\b(?:Thread|Process)PoolExecutor\(|\bstart_new_thread\(|\bTimer\(|\bto_thread\(|\brun_in_executor\(None"
    r"|\bsubprocess\.(?:Popen|run|call|check_\w+)\(|\bcreate_subprocess_|\bos\.(?:fork|spawn|posix_spawn|exec|system)\w*\("
    r"|\bmultiprocessing\.\w|\btime\.sleep\(|\bthreading\.Event\(\)\.wait\("
)
"""What a simulated world cannot replace: threads, processes and waits that do not use the event loop."""

MAY_START: dict[str, str] = {
    "background_loop.py": "the thread of an event loop for callers without one",
    "processes/process.py": "starts child processes; a thread waits for the end of each",
    "storage/postgres/listener.py": "one thread waits for notifications",
    "storage/postgres/fate.py": "a thread waits before it asks again whether a commit took place",
    "storage/postgres/reader.py": "the reading thread waits before it reads again",
    "storage/postgres/schema.py": "the thread that opens a connection waits before it tries a migration again",
    "storage/postgres/storage.py": "the writers' last transactions block, so a thread waits for them",
    "storage/postgres/writer.py": "the writing thread waits before it tries a transaction again",
    "storage/sql/reader.py": "a database driver blocks: one thread reads",
    "storage/sql/writer.py": "a database driver blocks: one thread writes",
    "storage/sqlite/database.py": "the thread that opens a file waits until other programs release it",
    "storage/sqlite/storage.py": "the writer's last transaction blocks, so a thread waits for it",
    "storage/sqlite/writer.py": "the writing thread waits for a database that is locked",
    "supervisor/supervisor.py": "looks for changed sources in a thread, because a file system may block",
    "threads.py": "the pool that runs plain functions",
    "worker/isolation/main.py": "threads read the channel and send progress while a handler blocks the loop",
    "worker/supervised.py": "a thread follows the supervisor and ends this process with it",
}
"""The modules outside `cli` that start a thread or a process or wait without the loop, each with its reason."""


def test_threads_processes_and_blocking_waits_start_in_few_modules() -> None:
    found = {
        str(path.relative_to(HOUSE))
        for path in rooms()
        if room_of(path) != "cli" and any(OUTSIDE.search(line) for line in code_lines(path))
    }

    assert found == set(MAY_START)


def code_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a module without comments and docstrings."""
    text = path.read_text()
    if not OUTSIDE.search(text):
        return
    for line in ast.unparse(parsed(path)).splitlines():
        if not line.lstrip().startswith(('"', "'")):
            yield line


def test_no_sql_or_redis_command_is_in_a_python_string() -> None:
    spoken = re.compile(r"\b(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|redis\.call)\b", re.DOTALL)
    # A text without these words needs no closer look.
    words = re.compile(r"SELECT\s|INSERT\s|UPDATE\s|DELETE\s|redis\.call")
    for path in sources():
        if not words.search(path.read_text()):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not spoken.search(node.value), f"{path}:{node.lineno}"


def test_each_storage_has_one_script_for_each_verb() -> None:
    calls = {**vars(Storage), **vars(MoveTarget)}
    verbs = {name for name, verb in calls.items() if inspect.iscoroutinefunction(verb)}
    verbs -= {"open", "close", "examine"}
    # Scripts that are not the work of one verb: the start and end of a transaction, the counters and lines that verbs
    # leave behind, and what creates an empty partition.
    shared = {".sql": {"session", "tally", "fair_queue", "rates", "repair"}, ".lua": {"create"}}
    own = {"postgres": {"health", "intake", "front"}}
    folders = [*HOUSE.glob("storage/*/sql"), *HOUSE.glob("storage/*/lua")]

    assert folders

    for folder in folders:
        files = [file for file in folder.iterdir() if file.is_file()]
        [kind] = {file.suffix for file in files}

        assert {file.stem for file in files} == verbs | shared[kind] | own.get(folder.parent.name, set()), folder


def test_each_part_of_a_lua_script_is_required_by_one() -> None:
    lua = HOUSE / "storage" / "redis" / "lua"
    required = re.compile(r"^-- requires: (.+)$", re.MULTILINE)
    named = {
        name.strip()
        for file in lua.rglob("*.lua")
        for line in required.findall(file.read_text())
        for name in line.split(",")
    }

    assert named == {file.stem for file in (lua / "parts").iterdir()}


def test_each_module_has_a_docstring() -> None:
    for path in sources():
        said = ast.get_docstring(parsed(path))
        assert path.name == "_version.py" or said, path


def test_the_package_exports_its_imports_and_defines_nothing() -> None:
    tree = ast.parse((HOUSE / "__init__.py").read_text())
    typed = [statement for node in tree.body if isinstance(node, ast.If) for statement in node.body]
    imported = {
        alias.asname or alias.name
        for node in (*tree.body, *typed)
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]

    assert set(tenure.__all__) == imported
    assert defined == ["__getattr__"]


def test_the_package_imports_the_worker_when_it_is_first_used() -> None:
    program = """if True:
        import sys
        import tenure

        assert not [name for name in sys.modules if name.startswith(("tenure.worker", "tenure.maintenance"))]
        assert set(tenure.__all__) == {name for name in tenure.__all__ if getattr(tenure, name) is not None}
        assert "tenure.worker.worker" in sys.modules
    """

    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_drawn_tree_of_errors_is_the_class_tree() -> None:
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


def test_the_documented_state_machine_is_the_table_of_transitions() -> None:
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


def test_the_lock_names_no_index_and_hashes_each_package() -> None:
    lock = (ROOT / "requirements.lock").read_text()

    assert "://" not in lock
    assert "--index-url" not in lock
    assert lock.count("--hash=sha256:") > lock.count("==")


def test_the_version_is_defined_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert "version" in project["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", tenure.__version__)


def test_the_kits_have_the_version_of_the_package_and_depend_on_it() -> None:
    project = tomllib.loads((KITS / "pyproject.toml").read_text())["project"]

    assert project["version"] == tenure.__version__
    assert f"tenure=={tenure.__version__}" in project["dependencies"]


REPOSITORY = "https://github.com/tenure-queue/tenure/blob/main/"
"""What the links of README.md begin with, so that they also work on a package index."""


def pages() -> list[Path]:
    """Return all pages of the project."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set[str]()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")
        found.add(plain if plain not in found else f"{plain}-1")
    return found


def test_each_link_of_a_page_leads_to_a_file_and_a_heading() -> None:
    broken: list[str] = []
    for page in pages():
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"(?<!`)\]\(([^)\s]+)\)", text):
            target, _, anchor = link.removeprefix(REPOSITORY).partition("#")
            if re.match(r"\w+:", target):
                continue
            folder = ROOT if link.startswith(REPOSITORY) else page.parent
            there = (folder / target).resolve() if target else page
            if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")

    assert broken == []


def test_the_links_of_the_readme_work_on_a_package_index() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text())
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]

    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    assert REPOSITORY.startswith(urls["Source"])


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[0].removesuffix(" (unreleased)") == tenure.__version__
    assert len(headings) == len(set(headings))


def members(node: ast.ClassDef) -> set[str]:
    """Return the names of a class's methods, properties and attributes, those that `__init__` sets included."""
    found = set[str]()
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Attribute(value=ast.Name(id="self"), attr=name):
                found.add(name)
            case _:
                pass
    return found


def implemented_only_above(classes: dict[str, list[tuple[int, ast.ClassDef]]]) -> list[str]:
    """Return the Protocols of several members that one class implements, which is on a higher floor.

    `classes`: each class by its name, with its floor. A class implements a Protocol if it has all of its members,
    inherited ones included. A Protocol of one member is the type of a callback, and one without an implementation is
    for users.
    """
    found = [(floor, node) for places in classes.values() for floor, node in places]

    def bases(node: ast.ClassDef) -> list[str]:
        return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]

    def inherited(node: ast.ClassDef, seen: frozenset[str] = frozenset()) -> set[str]:
        names = members(node)
        for base in bases(node):
            for _, parent in classes.get(base, ()) if base not in seen else ():
                names |= inherited(parent, seen | {base})
        return names

    protocols = [(floor, node) for floor, node in found if "Protocol" in bases(node)]
    rest = [(floor, inherited(node)) for floor, node in found if "Protocol" not in bases(node)]
    lonely: list[str] = []
    for floor, node in protocols:
        asked = inherited(node)
        floors = [there for there, names in rest if asked <= names] if len(asked) > 1 else []
        if len(floors) == 1 and floors[0] > floor:
            lonely.append(node.name)
    return lonely


@pytest.mark.parametrize(("floor", "lonely"), [(10, ["Owner"]), (4, [])])
def test_a_protocol_with_its_only_implementation_above_is_found(floor: int, lonely: list[str]) -> None:
    lines = "class Owner(Protocol):\n def opened(self): ...\n def new_id(self): ..."
    above = "class Base:\n def opened(self): ...\nclass App(Base):\n def new_id(self): ..."
    drawn = [(5, ast.parse(lines).body), (floor, ast.parse(above).body)]
    classes = {node.name: [(at, node)] for at, body in drawn for node in body if isinstance(node, ast.ClassDef)}

    assert implemented_only_above(classes) == lonely


def test_no_protocol_has_its_only_implementation_above_it() -> None:
    classes: dict[str, list[tuple[int, ast.ClassDef]]] = {}
    for path in rooms():
        for node in statements(path):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append((FLOORS[room_of(path)], node))

    assert implemented_only_above(classes) == []


def test_the_number_of_verbs_in_the_architecture_is_that_of_the_protocol() -> None:
    verbs = {name for name, verb in vars(Storage).items() if inspect.iscoroutinefunction(verb)}
    counts = re.findall(r"\b(\d+) verbs", (ROOT / "docs" / "architecture.md").read_text())

    assert counts
    assert {int(count) for count in counts} == {len(verbs - {"open", "close", "examine"})}
