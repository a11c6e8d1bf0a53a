"""Where another process finds an app: in the modules that refer to it, in the script, or not at all."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure
from tenure.client.app_location import known_as, locate_app

MAKES = "from tenure import Tenure\n\napp = Tenure('memory://')\n"
ADDS = """import asyncio

from PACKAGE.app import app


@app.task(run="process")
def add(a: int, b: int) -> int:
    return a + b
"""
STARTS = """

async def main() -> None:
    async with app, app.worker():
        print("came to", await add.enqueue_and_wait(20, 22), add.name)


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a package whose app is created in one module, and gets its tasks in another."""
    name = f"whereabouts_of_{os.getpid()}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "app.py").write_text(MAKES)
    (folder / "tasks.py").write_text(ADDS.replace("PACKAGE", name) + STARTS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def test_an_app_is_found_with_all_the_modules_that_refer_to_it(package: str) -> None:
    tasks: Any = importlib.import_module(f"{package}.tasks")
    where = tasks.app.runtime().app_location()

    assert where is not None
    assert set(where.modules) == {f"{package}.app", f"{package}.tasks"}
    assert where.attribute == "app"
    assert (where.script, where.started) == (None, None)


def test_an_app_in_a_local_variable_is_not_found() -> None:
    app = Tenure("memory://")

    assert app.runtime().app_location() is None
    assert locate_app(app, []) is None


def test_an_app_with_a_task_of_unknown_origin_is_not_found(package: str) -> None:
    made: Any = importlib.import_module(f"{package}.app")
    scope: dict[str, Any] = {"__name__": "made_by_hand"}
    exec("def lost() -> None: ...", scope)
    made.app.task(name="lost")(scope["lost"])

    assert made.app.runtime().app_location() is None


def test_a_task_of_the_main_script_keeps_its_name_when_loaded_again() -> None:
    assert known_as("__mp_main__.add") == "__main__.add"
    assert known_as("__mp_mainly.add") == "__mp_mainly.add"
    assert known_as("shop.add") == "shop.add"


@pytest.mark.system
@pytest.mark.parametrize("how", ["script", "module"])
def test_isolated_processes_find_a_started_script_or_module(package: str, tmp_path: Path, how: str) -> None:
    started = [f"{package}/tasks.py"] if how == "script" else ["-m", f"{package}.tasks"]
    done = subprocess.run(
        [sys.executable, *started],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout.split("\n")[0] == "came to 42 __main__.add", done.stderr
