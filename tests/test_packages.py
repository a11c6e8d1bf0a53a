"""The two distributions as they are built: what the wheels hold, what `tenure` imports and requires."""

import subprocess
import sys
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
KITS = ROOT / "src" / "tenure_testing"


def built(project: Path, folder: Path) -> ZipFile:
    """Build the wheel of a project, and open it."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return ZipFile(wheel)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return built(ROOT, tmp_path_factory.mktemp("tenure"))


@pytest.fixture(scope="module")
def kits_wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return built(KITS, tmp_path_factory.mktemp("tenure-testing"))


def metadata(wheel: ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def files(package: Path) -> set[str]:
    """Return the files of a package in this checkout that belong into its wheel, relative to src/."""
    kinds = (".py", ".sql", ".lua", ".typed", ".html", ".css", ".js", ".svg", ".toml", ".txt")
    return {
        str(path.relative_to(ROOT / "src"))
        for path in package.rglob("*")
        if path.suffix in kinds and path.name != "pyproject.toml"
    }


def test_the_wheel_holds_exactly_the_modules_and_scripts_of_tenure(wheel: ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert names == {*files(ROOT / "src" / "tenure"), "pytest_tenure.py"}
    assert "tenure/py.typed" in names
    assert {name.rpartition(".")[2] for name in names} == {
        *("py", "sql", "lua", "typed"),
        *("html", "css", "js", "svg", "toml", "txt"),  # the pages of the console
    }


def test_the_wheel_holds_the_kit_of_users_and_no_demo_or_test(wheel: ZipFile) -> None:
    names = [name for name in wheel.namelist() if "test" in name or "demo" in name]

    assert sorted(names) == [
        "pytest_tenure.py",
        *(f"tenure/testing/{name}.py" for name in ("__init__", "clock", "jobs")),
    ]


def test_the_wheel_registers_the_pytest_plugin(wheel: ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]

    assert "[pytest11]\npytest_tenure = pytest_tenure\n" in wheel.read(name).decode()


def test_only_click_and_msgspec_are_required(wheel: ZipFile) -> None:
    required = [str(text) for text in metadata(wheel).get_all("Requires-Dist", [])]

    assert {text.partition(">")[0] for text in required if "extra ==" not in text} == {"click", "msgspec"}


def test_the_wheel_of_the_kits_holds_all_their_modules_and_nothing_else(kits_wheel: ZipFile) -> None:
    names = {name for name in kits_wheel.namelist() if ".dist-info/" not in name}

    assert names == files(KITS)
    assert metadata(kits_wheel)["Name"] == "tenure-testing"


def test_the_lock_holds_all_that_the_kits_and_the_extras_require(wheel: ZipFile, kits_wheel: ZipFile) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = {
        line.partition("==")[0].lower() for line in lock.splitlines() if "==" in line and not line.startswith(" ")
    }
    texts = [*metadata(wheel).get_all("Requires-Dist", []), *metadata(kits_wheel).get_all("Requires-Dist", [])]

    assert {Requirement(str(text)).name for text in texts} - {"tenure"} <= locked


LOADS = """
import sys
{statement}
print(*sorted(sys.modules))
"""

UNUSED: Mapping[str, str] = {
    "import tenure": "click rich redis hiredis psycopg sqlite3 uvicorn uvloop multiprocessing tempfile",
    "import tenure.cli.main": "rich redis hiredis psycopg sqlite3 uvicorn uvloop multiprocessing",
    "import tenure.cli.worker": "rich redis hiredis psycopg sqlite3 uvicorn multiprocessing",
    "import tenure.testing": "rich redis hiredis psycopg sqlite3",
}


@pytest.mark.parametrize("statement", UNUSED)
def test_an_import_loads_nothing_that_it_does_not_need(wheel: ZipFile, statement: str) -> None:
    """The package is imported from its wheel, so no file of this checkout helps."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {wheel.filename!r})" + LOADS.format(statement=statement),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}

    assert "tenure" in loaded
    assert not loaded & {*UNUSED[statement].split(), "pytest", "hypothesis", "_pytest", "tenure_testing", "tests"}
