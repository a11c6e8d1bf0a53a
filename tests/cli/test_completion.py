"""Completion for bash, zsh and fish: commands, options, and live names of the storage and the app."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tests.cli.terminal import TASKS, Terminal

pytestmark = pytest.mark.thorough

ASK = """
source <(tenure completion bash)
COMP_LINE=$1
COMP_POINT=${#COMP_LINE}
_tenure_completion tenure
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def filled(there: Terminal) -> Terminal:
    """Return a terminal with a command `tenure` on its path, and a storage with queues, tasks and a schedule."""
    there.write("tasks.py", TASKS)
    there.enqueue("elsewhere")
    there.enqueue("add", 1, 2)
    command = there.place / "bin" / "tenure"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tenure "$@"\n')
    command.chmod(0o755)
    return there


def completed(terminal: Terminal, line: str, **env: str) -> list[str]:
    """Return what a real bash completes at the end of a line."""
    path = f"{terminal.place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", line],
        cwd=terminal.place,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(Path(tenure.__file__).parents[1])} | env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tenure sched", ["schedules"]),
        ("tenure to", ["top"]),
        ("tenure top --on", ["--once"]),
        ("tenure queues pa", ["pause"]),
        ("tenure worker --concur", ["--concurrency"]),
        ("tenure queues pause ", ["default", "elsewhere"]),
        ("tenure queues pause else", ["elsewhere"]),
        ("tenure jobs list --queue def", ["default"]),
        ("tenure queues pause --task ha --app tasks:app", []),
        ("tenure --app tasks:app queues pause --task ha", ["hang"]),
        ("tenure worker tasks:app -q elsewhere,def", ["elsewhere,default"]),
        ("tenure --app tasks:app enqueue a", ["add"]),
    ],
)
def test_bash_completes_commands_options_and_live_names(filled: Terminal, line: str, expected: list[str]) -> None:
    assert completed(filled, line) == expected


@pytest.mark.parametrize("url", ["sqlite:///nowhere.db", "redis://127.0.0.1:1/0", "nonsense"])
def test_a_storage_that_does_not_answer_completes_nothing_silently(filled: Terminal, url: str) -> None:
    assert completed(filled, f"tenure --url {url} queues pause ") == []
    assert completed(filled, "tenure queues pause ", TENURE_URL=url) == []
    assert not (filled.place / "nowhere.db").exists()


def test_a_url_with_colons_is_one_word(filled: Terminal) -> None:
    assert completed(filled, f"tenure --url {filled.url} queues pause d", TENURE_URL="memory://") == ["default"]


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef tenure"), ("fish", "function _tenure_completion")])
def test_other_shells_get_the_script_of_click(filled: Terminal, shell: str, begins: str) -> None:
    assert filled.run("completion", shell).stdout.startswith(begins)
    done = filled.ended(
        env={
            "_TENURE_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": "tenure queues pause el",
            "COMP_CWORD": "3" if shell == "zsh" else "el",
        }
    )

    assert "elsewhere" in done.stdout
    assert done.stderr == ""


def test_an_unknown_shell_is_a_usage_error(terminal: Terminal) -> None:
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in terminal.refused("completion", "tcsh")
