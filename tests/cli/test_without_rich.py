"""The command line without rich, the extra `cli`: every command works and prints plain text."""

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import tenure
from tests.cli.terminal import TASKS, Terminal

pytestmark = pytest.mark.thorough

TABLES = (
    "info",
    "top",
    "jobs list",
    "dead list",
    "dead groups",
    "queues list",
    "queues stats",
    "workers list",
    "schedules list",
)
OTHERS = ("doctor", "events", "health", "version", "jobs --help")


@pytest.fixture
def without_rich(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which no process and no child of it can import rich."""
    folder = tmp_path / "blocker"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['rich'] = None\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(tenure.__file__).parents[1])])}


def test_rich_cannot_be_imported_here(without_rich: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import rich"],
        env=os.environ | without_rich,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("command", [*TABLES, *OTHERS])
def test_a_command_on_a_terminal_prints_plain_text(there: Terminal, without_rich: dict[str, str], command: str) -> None:
    there.enqueue("bad", 1, work=True)
    there.enqueue("add", 1, 2)

    shown = there.drawn(*command.split(), columns=400, env=without_rich)

    assert shown
    assert "Error" not in shown.replace("ValueError", "")
    if command in TABLES:
        # The same lines as a pipe gets. Only their first words are compared, because others depend on the time.
        piped = there.run(*command.split()).stdout
        assert [line.split()[:1] for line in shown.splitlines()] == [line.split()[:1] for line in piped.splitlines()]


@pytest.mark.system
def test_a_worker_runs_jobs(there: Terminal, without_rich: dict[str, str]) -> None:
    there.write("tasks.py", TASKS)
    job = there.enqueue("add", 1, 2)

    done = there.ended("worker", "tasks:app", "--burst", "--processes", "2", env=without_rich)

    assert done.returncode == 0, done.stderr
    assert there.read("jobs", "show", job)["state"] == "completed"


def test_the_extra_cli_requires_rich_and_nothing_else_does() -> None:
    required = [Requirement(text) for text in distribution("tenure").requires or ()]

    assert {item.name for item in required if item.marker is None} == {"click", "msgspec"}
    assert [str(requirement.marker) for requirement in required if requirement.name == "rich"] == ['extra == "cli"']
