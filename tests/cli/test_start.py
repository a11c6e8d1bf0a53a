"""How the command starts: quickly, identically under both names, and with options in every place."""

import json
import subprocess
import sys

import pytest

from tenure import __version__
from tenure.cli.main import COMMANDS, root
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.thorough

ASKS = """
import sys
from tenure.cli.main import root
try:
    root.main(sys.argv[1:])
except SystemExit:
    print(*sorted(sys.modules), file=sys.stderr)
"""


def imported_by(*args: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", ASKS, *args], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_imports_no_command_and_nothing_that_a_command_needs() -> None:
    modules = imported_by("--help")

    assert "tenure.cli.main" in modules
    assert not {name for name in modules if name.split(".")[0] in ("rich", "sqlite3")}
    assert not {name for name in modules if name.startswith(("tenure.storage.sqlite", "tenure.storage.memory.storage"))}
    assert {name for name in modules if name.startswith("tenure.cli.")} == {
        "tenure.cli.exits",
        "tenure.cli.groups",
        "tenure.cli.main",
        "tenure.cli.session",
    }


def test_a_result_in_plain_lines_does_without_rich() -> None:
    assert "rich" not in imported_by("version")


def test_help_names_every_command_with_the_words_of_its_own_help(terminal: Terminal) -> None:
    shown = " ".join(terminal.run("--help").stdout.split())

    with root.make_context("tenure", ["version"]) as context:
        for name, (_, short) in COMMANDS.items():
            command = root.get_command(context, name)
            assert command is not None
            assert f"{name} {short}" in shown
            assert (command.help or "").startswith(short.split(",")[0].rstrip("."))


def test_without_a_command_the_help_is_shown(terminal: Terminal) -> None:
    assert terminal.run().stdout == terminal.run("--help").stdout
    assert terminal.run("jobs").stdout == terminal.run("jobs", "--help").stdout


def test_python_m_is_the_same_command(terminal: Terminal) -> None:
    done = terminal.ended("--version")

    assert done.returncode == 0
    assert done.stdout == f"tenure {__version__}\n"
    assert terminal.ended("nonsense").stderr == "error: No such command 'nonsense'; see tenure --help\n"


@pytest.mark.parametrize(
    "args", [("-o", "json", "version"), ("version", "-o", "json"), ("-o", "table", "version", "-o", "json")]
)
def test_the_form_of_output_may_stand_before_or_after_the_command(terminal: Terminal, args: tuple[str, ...]) -> None:
    assert json.loads(terminal.run(*args).stdout)["tenure"] == __version__


@pytest.mark.parametrize("name", ["TENURE_OUTPUT", "TENURE_VERSION_OUTPUT"])
def test_every_option_has_a_variable(terminal: Terminal, name: str) -> None:
    assert json.loads(terminal.run("version", env={name: "json"}).stdout).keys() == {"tenure", "python", "sqlite"}


def test_every_command_takes_the_options_of_output(terminal: Terminal) -> None:
    with root.make_context("tenure", ["version"]) as context:
        for name in COMMANDS:
            command = root.get_command(context, name)
            assert command is not None
            assert {"output", "quiet", "no_color"} <= {option.name for option in command.params}, name


@pytest.mark.parametrize(
    ("variable", "value", "args"),
    [
        ("TENURE_JOBS_LIST_QUEUE", "elsewhere", ("jobs", "list")),
        ("TENURE_JOBS_LIST_STATE", "failed", ("jobs", "list")),
        ("TENURE_DEAD_LIST_FAULT", "0123456789ab", ("dead", "list")),
        ("TENURE_EVENTS_SINCE_CURSOR", "1000", ("events",)),
    ],
)
def test_an_environment_variable_with_the_name_of_a_flag_sets_it(
    there: Terminal, variable: str, value: str, args: tuple[str, ...]
) -> None:
    there.enqueue("bad", 1, work=True)
    there.enqueue("add", 1, 2)
    flag = "--" + variable.removeprefix("TENURE_").split("_", len(args))[-1].lower().replace("_", "-")
    plain, message = there.run(*args).stdout, there.run(*args, flag, value).stdout

    assert there.run(*args, env={variable: value}).stdout == message != plain


def test_a_flag_wins_over_the_environment(there: Terminal) -> None:
    job = there.enqueue("add", 1, 2)
    env: dict[str, str | None] = {"TENURE_JOBS_LIST_QUEUE": "elsewhere"}

    assert there.run("jobs", "list", "--queue", "default", "--quiet", env=env).stdout.split() == [job]
