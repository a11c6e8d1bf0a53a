"""Tables fit a terminal of 80 columns: each table of every command, with long names, with and without rich."""

import asyncio
import os
from pathlib import Path

import pytest

import tenure
from tenure.cli.render import table_lines, text_width
from tenure.core.job import Owner
from tenure.storage.protocol import RenewRequest, WorkerInfo
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.thorough

LONG = "customer.billing.invoices.monthly-statements-Ümlaut-日本語のキュー"

OWNER = Owner("0123456789abcdef", f"worker-of-{LONG}", "the-host-of-the-billing-department.example.com", 1234567)

APP = f"""
from datetime import datetime
from tenure import Tenure, Retry

app = Tenure()

@app.task(name="tasks.{LONG}", queue="{LONG}", retry=Retry(max_attempts=1), timeout="5m", rate="10/s", tags=None)
async def statement(customer: str, month: datetime, *, language: str = "de", copies: int = 1) -> dict[str, int]: ...
""".replace(", tags=None", "")

MESSAGES = ("budgets", "leader", "paused tasks", "worker '", "queue '", "traceback", "  ValueError", "error")

COMMANDS = (
    "info",
    "top",
    "health",
    "tasks --app shop:app",
    "jobs list",
    "jobs show {job}",
    "dead list",
    "dead list --arguments",
    "dead groups",
    "queues list",
    "queues stats",
    "workers list",
    "schedules list",
    "schedules next nightly-{long}",
)


def is_message(line: str) -> bool:
    """Return True if a line is text and not part of a table; the terminal breaks it."""
    return line.startswith(MESSAGES)


@pytest.fixture
def full(there: Terminal) -> tuple[Terminal, str]:
    """Return a terminal whose storage has long names in every table, and the id of a failed job."""
    there.write("shop.py", APP)
    app = there.app()

    @app.task(name=f"tasks.{LONG}", queue=LONG)
    async def long_named(text: str) -> None:
        raise ValueError(f"not {text}")

    there.enqueue("add", 1, 2, work=True, app=app)
    job = there.enqueue("bad", 1, work=True)
    there.enqueue(f"tasks.{LONG}", LONG, work=True, app=app)

    async def fill() -> None:
        async with app:
            call = app.find_task(f"tasks.{LONG}").call("x")
            await app.schedules.put(f"nightly-{LONG}", call, cron="0 4 * * *", tz="America/Argentina/Buenos_Aires")
            await app.queue(LONG).set_rate("10/s")
            await app.find_task(f"tasks.{LONG}").pause()
            beat = RenewRequest(OWNER, worker=WorkerInfo(queues=(LONG, "default", "mail"), concurrency=10))
            await (await app.opened()).renew(beat)

    asyncio.run(fill())
    return there, job


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_is_not_wider_than_the_terminal(full: tuple[Terminal, str], command: str, columns: int) -> None:
    terminal, job = full
    args = command.format(job=job, long=LONG).split()
    shown = terminal.run(*args, env={"COLUMNS": str(columns)})

    assert shown.exit_code in (0, 3), shown.output
    too_wide = [line for line in shown.stdout.splitlines() if text_width(line) > columns and not is_message(line)]
    assert not too_wide, shown.stdout


@pytest.mark.parametrize("command", [each for each in COMMANDS if "show" not in each])
def test_a_real_terminal_without_rich_shows_the_same_table(
    full: tuple[Terminal, str], tmp_path: Path, command: str
) -> None:
    terminal, job = full
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['rich'] = None\n")
    path = os.pathsep.join([str(tmp_path), str(Path(tenure.__file__).parents[1])])
    shown = terminal.drawn(*command.format(job=job, long=LONG).split(), env={"PYTHONPATH": path})

    for line in shown.splitlines():
        assert text_width(line) <= 80 or is_message(line), shown


@pytest.mark.parametrize(
    ("command", "part", "name"),
    [
        ("jobs list", "jobs", "id"),
        ("dead list", "letters", "id"),
        ("dead groups", "groups", "fault"),
        ("workers list", "", "owner"),
    ],
)
def test_ids_stay_whole_on_a_narrow_terminal(full: tuple[Terminal, str], command: str, part: str, name: str) -> None:
    terminal, _ = full
    found = terminal.read(*command.split())
    ids: set[str] = {view[name] for view in (found[part] if part else found)}
    shown = terminal.run(*command.split(), env={"COLUMNS": "80"}).stdout

    assert ids
    assert {each for each in ids if each in shown} == ids


def test_a_pipe_gets_each_row_in_one_line(full: tuple[Terminal, str]) -> None:
    terminal, _ = full
    lines = terminal.run("queues", "stats").stdout.splitlines()

    assert any(line.startswith(f"{LONG}  ") for line in lines)


@pytest.mark.parametrize("width", range(40, 121, 5))
def test_every_width_is_kept_and_nothing_is_lost(width: int) -> None:
    columns = ("id", "name", "count", "text")
    rows = [["01a20b9a-7204-786e-9893-16b2cc7a3e1d", LONG, "7", f"a text about {LONG} and more"], ["x", "y", "0", ""]]
    lines = [
        "".join(text for text, _ in line) for line in table_lines(columns, rows, whole=("id", "count"), width=width)
    ]

    assert all(text_width(line) <= width for line in lines)
    kept = "".join("".join(lines).split())
    assert sorted(kept) == sorted("".join("".join((*columns, *rows[0], *rows[1])).split()))
    assert any(rows[0][0] in line for line in lines)


def test_wide_and_combining_characters_take_their_columns() -> None:
    assert [text_width(text) for text in ("mail", "日本", "e\u0301", "")] == [4, 4, 1, 0]
