"""`tenure relay` enqueues the calls of an outbox; `migrate` creates its table, and `doctor` examines it."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tests.cli.terminal import Terminal
from tests.servers import until

SHOP = """
import sqlite3
from tenure import Tenure

app = Tenure(outbox="sqlite:///shop.db")

@app.task(name="charge")
async def charge(order: int) -> int:
    return order

def buy() -> str:
    connection = sqlite3.connect("shop.db")
    job = charge.options(tx=connection).enqueue_sync(7)
    connection.commit()
    connection.close()
    return job.id
"""


@pytest.fixture
def shop(there: Terminal) -> Terminal:
    (there.place / "bookshop.py").write_text(SHOP)
    return there


def bought(shop: Terminal) -> str:
    """Commit a call in a separate process; return its id."""
    done = subprocess.run(
        [sys.executable, "-c", "import bookshop; print(bookshop.buy())"],
        cwd=shop.place,
        env=os.environ | {"PYTHONPATH": str(Path(tenure.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.system
@pytest.mark.parametrize(
    "args", [("bookshop:app",), ("--app", "bookshop:app"), ("--outbox", "sqlite:///shop.db")], ids=" ".join
)
def test_a_relay_runs_until_a_signal(shop: Terminal, args: tuple[str, ...]) -> None:
    job = bought(shop)
    assert shop.run("jobs", "list", "--app", "bookshop:app").exit_code == 2
    with shop.start("relay", *args, "--http", "127.0.0.1:0") as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "relays the calls" in line)
        until(lambda: shop.run("jobs", "show", job).exit_code == 0, "the job")
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()

    assert "shop.db" in line
    assert "relay has stopped" in rest
    assert process.returncode == 0
    assert shop.read("jobs", "show", job)["state"] == "waiting"


def test_a_relay_needs_an_outbox(shop: Terminal) -> None:
    (shop.place / "plain.py").write_text("from tenure import Tenure\napp = Tenure()\n")

    assert "no outbox" in shop.refused("relay", "plain:app")
    assert "--outbox" in shop.refused("relay")
    assert "an outbox of its own" in shop.refused("relay", "bookshop:app", "--outbox", "sqlite:///other.db")
    assert "names no PostgreSQL" in shop.refused("relay", "--outbox", "redis://localhost")


def test_migrate_creates_the_table_or_prints_it(shop: Terminal) -> None:
    absent = shop.read("doctor", "bookshop:app", code=1)
    made = shop.run("migrate", "up", "--app", "bookshop:app")
    again = shop.read("migrate", "up", "--app", "bookshop:app")
    script = shop.run("migrate", "sql", "--outbox", "--app", "bookshop:app").stdout

    assert made.exit_code == 0, made.output
    assert "shop.db has the table tenure_outbox" in made.stdout
    assert again["outbox"] == "sqlite:///shop.db"
    assert "needs an app that has one" in shop.refused("migrate", "sql", "--outbox")
    assert any("no table tenure_outbox" in one["message"] for one in absent["findings"])
    with sqlite3.connect(":memory:") as other, sqlite3.connect("shop.db") as migrated:
        other.executescript(script)
        # A migration of the user's own creates the same table.
        tables = [one.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall() for one in (other, migrated)]
        assert tables[0] == tables[1]
        assert len(other.execute("SELECT * FROM tenure_outbox").fetchall()) == 1
    assert bought(shop)


def test_doctor_reports_calls_that_no_relay_takes(shop: Terminal) -> None:
    shop.run("migrate", "up", "--app", "bookshop:app")
    bought(shop)
    assert outbox_of(shop, code=0) == ["1 call wait, none for long"]
    with sqlite3.connect("shop.db") as connection:
        connection.execute("UPDATE tenure_outbox SET at = at - 60000000 WHERE answer IS NULL")
    [found] = outbox_of(shop, code=3)
    assert found.startswith("1 call wait, the oldest for 6")


def outbox_of(shop: Terminal, *, code: int) -> list[str]:
    findings = shop.read("doctor", "bookshop:app", code=code)["findings"]
    return [one["message"] for one in findings if one["subject"] == "outbox"]
